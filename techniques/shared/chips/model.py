"""Models the papers' accelerators with one model: phases of work on multipliers and a memory. Modelled, and nothing
measured.

    compute     macs (b / the units' bits)^2 / (units x clock x share of the units that are busy)    b: bits of operands
    transfer    bytes / bandwidth
    time        sum over phases of the larger of the two: a phase loads while it computes, and the next one waits
    energy      macs x (multiplication and addition of b bits) + bits moved x DRAM's

Levels of fidelity, which every number names: ``closed form`` is the bound of all phases' totals with every unit busy;
``phases`` is the above with counts of a real mask; ``replay`` is the authors' own published arithmetic, beside each
technique. Constants stand in ``chips.toml``, each with its source. Where one is from memory, the model can say of a
paper's number that it is consistent or not, and no more: ``interval`` has the times with such constants halved and
doubled.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, Literal, NamedTuple

TABLE = Path(__file__).with_name("chips.toml")
Source = Literal["paper", "code", "second-hand", "memory"]
GUESSED = (0.5, 1.0, 2.0)  # times what is from memory


@dataclass(frozen=True)
class Chip:
    """Describes a machine. ``units`` are multiply-adds of ``bits`` by ``bits`` a cycle; ``power_w`` None is not
    known."""

    name: str
    title: str
    clock_hz: float
    units: float
    bits: int
    bytes_per_s: float
    power_w: float | None = None
    source: dict[str, Source] = field(default_factory=dict)

    @property
    def guessed(self) -> list[str]:
        """Returns what of its speed is from memory."""
        return [name for name in ("clock_hz", "units", "bytes_per_s") if self.source[name] == "memory"]


@dataclass(frozen=True)
class EnergyTable:
    """Holds picojoules of 32-bit integer arithmetic and of a bit of DRAM."""

    name: str
    multiply_pj: float
    add_pj: float
    dram_pj_per_bit: float
    source: str

    def mac_pj(self, bits: int) -> float:
        return self.multiply_pj * (bits / 32) ** 2 + self.add_pj * bits / 32


@dataclass(frozen=True)
class Context:
    """Holds a figure that is quoted, from ``low`` to ``high``, None where the text has none."""

    statement: str
    against: str
    source: Source
    place: str
    conditions: str
    low: float | None = None
    high: float | None = None


class Phase(NamedTuple):
    """Describes work that begins when the one before has ended: multiply-adds of operands of ``bits``, bytes of memory,
    and the share of the units that are busy meanwhile."""

    macs: float
    bits: int
    bytes: float
    busy: float = 1.0


def compute_s(phase: Phase, chip: Chip) -> float:
    """Raises ValueError for a share outside (0, 1]."""
    if not 0 < phase.busy <= 1:
        raise ValueError(f"busy is a share of the units, in (0, 1], not {phase.busy:g}")
    return phase.macs * (phase.bits / chip.bits) ** 2 / (chip.units * chip.clock_hz * phase.busy)


def time_s(phases: Iterable[Phase], chip: Chip) -> float:
    """Computes the time, phase after phase."""
    return sum(max(compute_s(phase, chip), phase.bytes / chip.bytes_per_s) for phase in phases)


def bound_s(phases: Sequence[Phase], chip: Chip) -> float:
    """Computes the closed form: no schedule of the same work takes less time."""
    compute = sum(compute_s(phase._replace(busy=1.0), chip) for phase in phases)
    return max(compute, sum(phase.bytes for phase in phases) / chip.bytes_per_s)


def energy_j(phases: Iterable[Phase], table: EnergyTable) -> float:
    pj = sum(phase.macs * table.mac_pj(phase.bits) + 8 * phase.bytes * table.dram_pj_per_bit for phase in phases)
    return pj * 1e-12


def interval(phases: Sequence[Phase], chip: Chip) -> tuple[float, float]:
    """Computes the least and the most :func:`time_s` with what is from memory halved, kept and doubled."""
    names = chip.guessed
    times = [
        time_s(phases, replace(chip, **{name: getattr(chip, name) * by for name, by in zip(names, factors)}))
        for factors in product(GUESSED, repeat=len(names))
    ]
    return min(times), max(times)


# the constants ------------------------------------------------------------------------------------------------------


@cache
def _table() -> dict[str, list[dict[str, Any]]]:
    return tomllib.loads(TABLE.read_text("utf-8"))


def chips() -> dict[str, Chip]:
    return {values["name"]: Chip(**values) for values in _table()["chip"]}


def energy_tables() -> list[EnergyTable]:
    return [EnergyTable(**values) for values in _table()["energy"]]


def context() -> list[Context]:
    return [Context(**values) for values in _table()["context"]]
