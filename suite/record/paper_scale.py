"""Counts at the papers' own sizes, in one file of a results folder: what a step of each technique takes there."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from pydantic import Field

from suite.record.files import Stored, parse_versioned, read_plain, write_json
from suite.record.job import RecipeName, Size, Task

NAME = "paper_scale.json"
SCHEMA = 1
PROVENANCE = "counted at paper scale"
PER_PARAMETER = {
    "state_bytes_per_parameter": "state_bytes",
    "communication_bytes_per_parameter": "communication_bytes",
}
"""What only a count at scale has, by what it is the quotient of: bytes of one rank over the parameters of its model, of
as many ranks as the stack names."""


class CountPlace(NamedTuple):
    """What all counts of one table share. ``device``: whose operators."""

    baseline: str
    size: Size
    recipe: RecipeName
    device: str
    task: Task

    @property
    def title(self) -> str:
        operators = "the operators of a GPU" if self.device == "cuda" else "the operators of a CPU"
        return f"{self.baseline} · {self.size} · {self.recipe} · {self.task} · {operators}"


class SizeCount(Stored):
    """One step of a stack, counted without its values; or the reason why it is not.

    Attributes:
        reference: the stack that it is compared with; itself where it is one.
        code: a hash of the code that was counted.
        quantities: bytes, FLOPs and parameters by the name of their counter.
        batch: shapes of the batch, by name.
    """

    place: CountPlace
    stack: str
    reference: str
    code: str
    quantities: dict[str, int] = Field(default_factory=dict)
    batch: dict[str, tuple[int, ...]] = Field(default_factory=dict)
    unavailable: str = ""


def per_parameter(metric: str, quantities: Mapping[str, int]) -> float | None:
    """A metric of ``PER_PARAMETER``; None where it was not counted."""
    size, count = quantities.get(PER_PARAMETER[metric]), quantities.get("parameter_count")
    return size / count if size is not None and count else None


class Beside(NamedTuple):
    """A stack's counts beside its reference's, at one place."""

    reference: SizeCount
    stack: SizeCount

    def ratio(self, quantity: str) -> float | None:
        """Stack over reference; None where either has none of it."""
        ours, theirs = self.stack.quantities.get(quantity), self.reference.quantities.get(quantity)
        return ours / theirs if ours is not None and theirs else None

    def of(self, quantity: str, absolute: bool) -> float | None:
        """The stack's own where ``absolute``, else the ratio; None where there is none."""
        if quantity in PER_PARAMETER:
            return per_parameter(quantity, self.stack.quantities)
        return self.stack.quantities.get(quantity) if absolute else self.ratio(quantity)


class PaperScale(Stored):
    """``versions``: of the libraries whose models were counted."""

    schema_version: int = SCHEMA
    made: str = ""
    versions: dict[str, str] = Field(default_factory=dict)
    counts: Sequence[SizeCount] = ()

    def with_newer(self, newer: PaperScale) -> PaperScale:
        """Both; a stack's newer count takes the place of its older one."""
        known = {(counted.place, counted.stack): counted for counted in [*self.counts, *newer.counts]}
        return newer.model_copy(update={"counts": [known[key] for key in sorted(known)]})

    def beside(self) -> Mapping[CountPlace, list[Beside]]:
        """Shows by place what was counted of every stack and of its reference."""
        known = {(counted.place, counted.stack): counted for counted in self.counts}
        return {
            place: [
                Beside(reference, counted)
                for counted in counts
                if counted.stack != counted.reference and (reference := known.get((place, counted.reference)))
            ]
            for place, counts in self._by_place()
        }

    def only(self, stacks: Collection[str], baselines: Collection[str]) -> PaperScale:
        """Keeps the counts of some stacks on some baselines, and their references'; all where none is named."""
        wanted = [counted for counted in self.counts if not baselines or counted.place.baseline in baselines]
        named = {name for each in wanted if not stacks or each.stack in stacks for name in (each.stack, each.reference)}
        return self.model_copy(update={"counts": [each for each in wanted if each.stack in named]})

    def _by_place(self) -> Iterator[tuple[CountPlace, list[SizeCount]]]:
        for place, counts in groupby(
            sorted(self.counts, key=lambda counted: counted.place), key=lambda counted: counted.place
        ):
            yield place, list(counts)


def read(folder: Path) -> PaperScale:
    """The counts of a results folder. Raises ValueError or OSError where they cannot be read."""
    path = folder / NAME
    try:
        return parse_versioned(read_plain(path), PaperScale, SCHEMA)
    except FileNotFoundError:
        return PaperScale()
    except ValueError as error:
        raise ValueError(f"{path}: {error}; delete it and count again: leantrain count --keep") from None


def write(counts: PaperScale, folder: Path) -> Path:
    """Writes the counts into a results folder, whole or not at all. Raises OSError."""
    write_json(counts, folder / NAME)
    return folder / NAME
