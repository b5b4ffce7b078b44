"""Has a study's laboratory: where it gets its runs from, and the tables that it makes of them.

Runs go through the same campaigns and evidence as everything else: what is stored already is not measured again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from suite.judge.study_tables import NOT_FINITE as NOT_FINITE
from suite.judge.study_tables import Cell as Cell
from suite.judge.study_tables import StudyTable as StudyTable
from suite.measure.campaign import Effort, measure
from suite.measure.missing import CampaignPlan, Wanted, pairs_of
from suite.measure.provenance import Progress, silent
from suite.record.job import Setting
from suite.record.schema import Counted, Learned
from suite.record.store import Store


@dataclass(frozen=True)
class Lab:
    """Gives a study its runs, from: a setting, stored records, and a budget for what is missing."""

    setting: Setting
    folder: Path
    seeds: int
    minutes: float
    progress: Progress = silent
    warn: Callable[[str], None] = lambda text: None

    def runs(self, stacks: Sequence[str]) -> dict[str, list[tuple[Learned, Learned]]]:
        """Returns (reference, contender) of every seed for each stack, learned where they are missing and time
        allows."""
        plan = self._measured(stacks)
        return {pair.stack: plan.learned_pairs(pair)[: self.seeds] for pair in plan.pairs}

    def counts(self, stacks: Sequence[str]) -> dict[str, Counted]:
        """Returns the counts of each stack, where it was counted."""
        plan = self._measured(stacks)
        counted = {pair.stack: plan.counted(pair.setting, pair.stack) for pair in plan.pairs}
        return {stack: counts for stack, counts in counted.items() if counts}

    def _measured(self, stacks: Sequence[str]) -> CampaignPlan:
        at, wanted = self.setting, Wanted(self.seeds, timings=0, tuned=False)
        pairs = pairs_of(stacks, [at.baseline], [at.recipe], at)
        effort = Effort(wanted, self.minutes)
        measure(pairs, self.folder, effort, progress=self.progress, warn=self.warn)
        return CampaignPlan(pairs, Store(self.folder).read()[0], wanted)
