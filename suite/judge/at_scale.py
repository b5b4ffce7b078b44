"""Counts at the papers' own sizes, read from a results folder, and which of them are of older code."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from suite.entries.sources import code_of
from suite.record import paper_scale
from suite.record.job import Setting
from suite.record.paper_scale import Beside, PaperScale, SizeCount
from suite.record.placed import CountPlace


@dataclass(frozen=True)
class CountsAtScale:
    """Holds counts, and those of older code as (place, stack)."""

    counts: PaperScale = field(default_factory=PaperScale)
    changed: frozenset[tuple[CountPlace, str]] = frozenset()

    def __bool__(self) -> bool:
        return any(self.counts.beside().values())

    def has_changed(self, beside: Beside) -> bool:
        """Tells whether older code than the installed one was counted, on either side."""
        return any((side.place, side.stack) in self.changed for side in (beside.reference, beside.stack))


def counts_at_scale(
    folder: Path, stacks: Collection[str] = (), on: Collection[str] = ()
) -> tuple[CountsAtScale, list[str]]:
    """Returns what the folder has of these ``stacks`` on the baselines ``on``, of all where none is named; with a
    sentence where that cannot be read."""
    try:
        counts = paper_scale.read(folder).only(stacks, on)
    except (ValueError, OSError) as error:
        return CountsAtScale(), [str(error)]
    old = {(counted.place, counted.stack) for counted in counts.counts if _code_now(counted) != counted.code}
    return CountsAtScale(counts, frozenset(old)), []


def _code_now(count: SizeCount) -> str:
    """Returns a hash of the installed code of what was counted; empty where there is none."""
    at = count.place
    setting = Setting(baseline=at.baseline, size=at.size, recipe=at.recipe, device=at.device, task=at.task)
    try:
        return code_of(setting, count.stack).counts
    except (LookupError, ValueError):
        return ""
