"""Has a reference learned anything? Each baseline beside the classical methods that it must beat, on the same data.

A ratio of two plateaus is noise. So a reference is trained as it always is, and its test scores stand beside those of
classical methods fitted to the same training examples, on the same test batches, masks and noise included.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from suite.contract.baseline import Sample, baseline_of
from suite.contract.run import Diverged, Run
from suite.measure.evidence import Progress, silent
from suite.record.job import Job, Setting

HIGHER_IS_BETTER = ("accuracy",)


@dataclass(frozen=True)
class Bar:
    """A classical method that the reference is held against; ``scores`` by metric."""

    method: str
    scores: Mapping[str, float]
    passed: bool


@dataclass(frozen=True)
class LearnedReference:
    """A baseline's reference: its final test scores, seed by seed, and the bars; what the first seed's model makes of
    test examples. ``why``: what kept it from an end."""

    setting: Setting
    judged_by: str
    quality: str
    seeds: Sequence[Mapping[str, float]]
    bars: Sequence[Bar]
    further: Mapping[str, float] = field(default_factory=dict)  # what else it is worth, means over the seeds
    samples: Sequence[Sample] = ()
    why: str = ""

    @property
    def scores(self) -> dict[str, float]:
        """Means over the seeds."""
        return means(self.seeds)

    @property
    def passed(self) -> bool:
        """Whether it is at least as good as every classical method."""
        return not self.why and all(bar.passed for bar in self.bars)

    def as_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {
            **self.setting.model_dump(),
            "judged_by": self.judged_by,
            "quality": self.quality,
            "scores": self.scores,
            "seeds": [dict(each) for each in self.seeds],
            "bars": [{"method": bar.method, "scores": dict(bar.scores), "passed": bar.passed} for bar in self.bars],
            "further": dict(self.further),
            "passed": self.passed,
            "samples": [sample.as_dict() for sample in self.samples],
            "why": self.why,
        }


def learned(setting: Setting, seeds: Iterable[int]) -> LearnedReference:
    """Trains the setting's reference with each seed, in this process, and scores the classical methods beside it."""
    baseline = baseline_of(setting)
    data = baseline.data(setting.size, setting.task, setting.data)
    batches = data.held_out("test", baseline.recipe_of(setting).batch_size)
    ends: list[dict[str, float]] = []
    further: list[dict[str, float]] = []
    samples: list[Sample] = []
    why = ""
    for seed in seeds:
        run = Run(Job(setting=setting, seed=seed))
        try:
            run.train(run.recipe.steps)
            ends.append(run.evaluate("test"))
            further.append(baseline.further_scores(run.model, data, batches))
            samples = samples or run.samples()
        except Diverged as error:
            why = f"seed {seed}: {error}"
    metric = baseline.judged_by
    scores = means(ends)
    bars = []
    for method, predict in baseline.classical(setting.size, data).items():
        theirs = baseline.mean_scores(predict, batches)
        bars.append(Bar(method, theirs, at_least_as_good(scores.get(metric, math.nan), theirs[metric], metric)))
    return LearnedReference(setting, metric, baseline.quality, ends, bars, means(further), samples, why)


def means(seeds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Means over the seeds, by name."""
    return {name: fmean(each[name] for each in seeds) for name in seeds[0]} if seeds else {}


def at_least_as_good(reference: float, bar: float, metric: str) -> bool:
    """Whether the reference's score reaches the bar's; a score that is no number does not."""
    return reference >= bar if metric in HIGHER_IS_BETTER else reference <= bar


def learned_references(settings: Sequence[Setting], seeds: int, progress: Progress = silent) -> list[LearnedReference]:
    """The references of several settings, one after the other."""
    references = []
    for number, setting in enumerate(settings):
        progress(number / len(settings), str(setting))
        references.append(learned(setting, range(seeds)))
    return references
