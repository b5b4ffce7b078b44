"""Judges change points of a technique's gain, each against a fresh comparison of the code as it is now."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from suite.judge.metrics import METRICS
from suite.measure.campaign import Effort, measure
from suite.measure.missing import Pair, Wanted
from suite.measure.provenance import Progress, silent
from suite.process.scratch import scratch
from suite.record.machine import fingerprint
from suite.record.store import Records, Store
from suite.topics.history.change_points import ChangePoint, judged, series

SEEDS = 5


def confirm(
    steps: Sequence[ChangePoint],
    folder: Path,
    *,
    minutes: float,
    seeds: int = SEEDS,
    progress: Progress = silent,
    warn: Callable[[str], None] = lambda text: None,
) -> list[ChangePoint]:
    """Returns the change points, the last one of each series judged by a fresh comparison of the code as it is now.

    A comparison has ``seeds`` replicates of the kinds of evidence that its series are of. The fresh evidence is
    appended to ``folder``. A step that a later one hides cannot be measured again, and one whose comparison gave no
    number stays suspected.
    """
    metrics: dict[Pair, set[str]] = defaultdict(set)
    for step in steps:
        if step.last:
            metrics[_pair(step)].add(step.series.metric)
    fresh: dict[Pair, Records] = {}
    for pair, of_pair in metrics.items():
        effort = Effort(_wanted(of_pair, seeds), minutes=minutes / len(metrics))
        with TemporaryDirectory(dir=scratch()) as empty:  # where nothing counts as measured already
            measured = measure([pair], Path(empty), effort, progress=progress, warn=warn)
        fresh[pair] = Records.of(measured.added)
        store, machine = Store(folder), fingerprint(pair.setting.device, pair.setting.threads).name
        with store.writing(machine):
            for line in measured.added:
                store.append(line, machine)
    result = []
    for step in steps:
        if not step.last:
            result.append(replace(step, verdict="not comparable"))
            continue
        again = [
            one
            for one in series(fresh[_pair(step)], metrics=(step.series.metric,))
            if (one.stack, one.reference) == (step.series.stack, step.series.reference)
        ]
        same = [one for one in again if one.conditions.key == step.series.conditions.key]
        if not same or len(same[0].points) < (1 if step.series.exact else 2):
            why = "other data" if again and not same else "too few replicates that gave a number"
            warn(f"{step.series.name} stays suspected: its fresh comparison had {why}")
            result.append(step)
        else:
            result.append(judged(step, same[0].values))
    return result


def _wanted(metrics: Collection[str], replicates: int) -> Wanted:
    """Returns what has these metrics; counts, which take seconds, are always there."""
    kinds = {METRICS[name].kind for name in metrics}
    return Wanted(
        seeds=replicates if "learned" in kinds else 0,
        timings=replicates if kinds & {"timed", "measured"} else 0,
        tuned=False,
    )


def _pair(step: ChangePoint) -> Pair:
    return Pair(step.series.setting, step.series.stack, step.series.reference)
