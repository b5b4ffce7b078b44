"""Models a board's power under a limit, against power that others measured at several limits and batches.

    free power  =  what the step would draw                (suite.topics.modelled_time.roofline)
    power       =  min(free power, limit)
    clock       =  ((limit - rest) / (free power - rest)) ^ (1 / exponent), at most 1
    time        =  computing share / clock  +  the rest

``rest`` is a share of the highest limit that no clock changes, ``exponent`` is how steeply power grows with the clock:
voltage rises with it (Hong & Kim, ISCA 2010, section 3, have power linear in each unit's rate; DVFS adds the
exponent). Both are fitted to the *other* GPUs. Only ratios within one GPU and one data set are compared: of a power
limit to the highest one, and of batches at the highest limit. Imports no torch.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from scipy.optimize import least_squares

from research.published_steps.published_rows import PublishedRow, rows, traces
from suite.topics.modelled_time.devices import devices
from suite.topics.modelled_time.roofline import Software, modelled

LIMITS, BATCHES = "power limit", "batch"
EXPONENT, REST = 3.0, 0.25
"""Before anything was seen."""


@dataclass(frozen=True)
class Drawn:
    """Holds a row with what its step would draw without a limit, W, and the share of its time that computes."""

    row: PublishedRow
    free_w: float
    computing: float

    def power_w(self) -> float:
        return min(self.free_w, self.row.limit_w)

    def slowdown(self, exponent: float, rest: float, highest_w: float) -> float:
        """Returns the time over that of an unlimited clock."""
        still_w = min(rest * highest_w, 0.95 * self.row.limit_w)
        if self.free_w <= self.row.limit_w:
            return 1.0
        clock = ((self.row.limit_w - still_w) / (self.free_w - still_w)) ** (1 / exponent)
        return self.computing / clock + 1 - self.computing


@dataclass(frozen=True)
class PowerRatio:
    """Compares a row with another of its set-up: power, and energy an epoch, modelled and measured."""

    of: Drawn
    to: Drawn
    change: str
    power: float
    energy: float | None

    @property
    def power_error(self) -> float:
        assert self.of.row.power_w and self.to.row.power_w
        return math.log(self.power * self.to.row.power_w / self.of.row.power_w)

    @property
    def energy_error(self) -> float | None:
        """Returns the error of the energy, None between batches: an epoch's time depends on what is no part of a
        step."""
        ours, theirs = self.of.row, self.to.row
        assert ours.power_w and theirs.power_w
        measured = ours.power_w * ours.epoch_s / (theirs.power_w * theirs.epoch_s)
        return math.log(self.energy / measured) if self.energy else None


def drawn() -> list[Drawn]:
    """Returns the rows that have a power and a trace."""
    drawn = []
    for row in rows():
        known = traces().get(row.case.key) if row.case is not None and row.power_w else None
        if known is not None and known.step is not None:
            device = devices()[row.device]
            step = modelled(known.step, device, Software(synchronised=True))
            computing = sum(step.by_kind[kind] for kind, bound in step.bound_by.items() if bound == "compute")
            drawn.append(Drawn(row, step.energy_j / step.step_s, min(1.0, computing / step.step_s)))
    return drawn


def _groups(of: Sequence[Drawn]) -> Iterator[tuple[Drawn, list[Drawn]]]:
    """Yields each set-up's row at its highest limit, with the others."""
    groups: dict[str, list[Drawn]] = defaultdict(list)
    for run in of:
        groups[run.row.alike].append(run)
    for group in groups.values():
        highest = max(group, key=lambda member: member.row.limit_w)
        yield highest, [other for other in group if other is not highest]


def _fitted(of: Sequence[Drawn]) -> tuple[float, float]:
    """Returns the exponent and rest by which times at lower limits are nearest to the measured ones."""

    def off(values: Sequence[float]) -> list[float]:
        exponent, rest = values
        return [
            math.log(
                other.slowdown(exponent, rest, highest.row.limit_w)
                / highest.slowdown(exponent, rest, highest.row.limit_w)
                * highest.row.epoch_s
                / other.row.epoch_s
            )
            for highest, others in _groups(of)
            for other in others
        ]

    fit = least_squares(off, [EXPONENT, REST], bounds=([0.5, 0.0], [6.0, 0.6]), loss="soft_l1", f_scale=0.1)
    return float(fit.x[0]), float(fit.x[1])


def power_ratios() -> list[PowerRatio]:
    """Returns all ratios, each GPU's by what was fitted to the others."""
    known = drawn()
    ratios = []
    for name in dict.fromkeys(run.row.device for run in known):
        own = [run for run in known if run.row.device == name]
        exponent, rest = _fitted([run for run in known if run.row.device != name])
        tops: dict[str, list[Drawn]] = defaultdict(list)
        for highest, others in _groups(own):
            tops[highest.row.alike.rpartition(" ")[0]].append(highest)
            limit = highest.row.limit_w
            for other in others:
                power = other.power_w() / highest.power_w()
                time = other.slowdown(exponent, rest, limit) / highest.slowdown(exponent, rest, limit)
                ratios.append(PowerRatio(other, highest, LIMITS, power, power * time))
        for group in tops.values():
            first, *others = sorted(group, key=lambda run: run.row.case.batch if run.row.case else 0)
            ratios += [PowerRatio(other, first, BATCHES, other.power_w() / first.power_w(), None) for other in others]
    return ratios
