"""Counts at the papers' own sizes, in one file of a results folder: what a step of each technique takes there."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from pydantic import Field

from suite.record.files import Stored, write_json
from suite.record.placed import CountPlace, PlacedStep, newest, read_kept

NAME = "paper_scale.json"
SCHEMA = 1
PROVENANCE = "counted at paper scale"
PER_PARAMETER = {
    "state_bytes_per_parameter": "state_bytes",
    "communication_bytes_per_parameter": "communication_bytes",
}
"""What only a count at scale has, by what it is the quotient of: bytes of one rank over the parameters of its model, of
as many ranks as the stack names."""


class SizeCount(PlacedStep):
    """Records one step of a stack, counted without its values; or the reason why it is not.

    Attributes:
        code: a hash of the code that was counted.
        quantities: bytes, FLOPs and parameters by the name of their counter.
        batch: shapes of the batch, by name.
    """

    code: str
    quantities: dict[str, int] = Field(default_factory=dict)
    batch: dict[str, tuple[int, ...]] = Field(default_factory=dict)


def per_parameter(metric: str, quantities: Mapping[str, int]) -> float | None:
    """Returns a metric of ``PER_PARAMETER``; None where it was not counted."""
    size, count = quantities.get(PER_PARAMETER[metric]), quantities.get("parameter_count")
    return size / count if size is not None and count else None


class Beside(NamedTuple):
    """Holds a stack's counts beside its reference's, at one place."""

    reference: SizeCount
    stack: SizeCount

    def ratio(self, quantity: str) -> float | None:
        """Returns the ratio of stack over reference; None where either has none of it."""
        ours, theirs = self.stack.quantities.get(quantity), self.reference.quantities.get(quantity)
        return ours / theirs if ours is not None and theirs else None

    def of(self, quantity: str, absolute: bool) -> float | None:
        """Returns the stack's own where ``absolute``, else the ratio; None where there is none."""
        if quantity in PER_PARAMETER:
            return per_parameter(quantity, self.stack.quantities)
        return self.stack.quantities.get(quantity) if absolute else self.ratio(quantity)


class PaperScale(Stored):
    """Holds all counts at the papers' sizes, with the ``versions``: of the libraries whose models were counted."""

    schema_version: int = SCHEMA
    made: str = ""
    versions: dict[str, str] = Field(default_factory=dict)
    counts: Sequence[SizeCount] = ()

    def with_newer(self, newer: PaperScale) -> PaperScale:
        """Joins both; a stack's newer count takes the place of its older one."""
        return newer.model_copy(update={"counts": newest(self.counts, newer.counts)})

    def beside(self) -> Mapping[CountPlace, list[Beside]]:
        """Shows by place what was counted of every stack and of its reference."""
        known = {(count.place, count.stack): count for count in self.counts}
        return {
            place: [
                Beside(reference, count)
                for count in counts
                if count.stack != count.reference and (reference := known.get((place, count.reference)))
            ]
            for place, counts in self._by_place()
        }

    def only(self, stacks: Collection[str], baselines: Collection[str]) -> PaperScale:
        """Keeps the counts of some stacks on some baselines, and their references'; all where none is named."""
        wanted = [count for count in self.counts if not baselines or count.place.baseline in baselines]
        named = {
            name for count in wanted if not stacks or count.stack in stacks for name in (count.stack, count.reference)
        }
        return self.model_copy(update={"counts": [count for count in wanted if count.stack in named]})

    def _by_place(self) -> Iterator[tuple[CountPlace, list[SizeCount]]]:
        for place, counts in groupby(sorted(self.counts, key=lambda count: count.place), key=lambda count: count.place):
            yield place, list(counts)


def read(folder: Path) -> PaperScale:
    """Reads the counts of a results folder. Raises ValueError or OSError where they cannot be read."""
    return read_kept(folder / NAME, PaperScale, SCHEMA, "leantrain count --keep")


def write(counts: PaperScale, folder: Path) -> Path:
    """Writes the counts into a results folder, whole or not at all. Raises OSError."""
    write_json(counts, folder / NAME)
    return folder / NAME
