"""Change points of a technique's gain, each against a fresh comparison of the code as it is now."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from suite.judge.history import ChangePoint, judged, series
from suite.measure.campaign import measure
from suite.measure.comparison import Progress, silent
from suite.measure.plan import Pair
from suite.record.schema import Record
from suite.record.store import Store

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
    """The change points, the last one of each series judged by a fresh comparison of the code as it is now.

    The fresh records are appended to ``folder``. A step that a later one hides cannot be measured again, and one whose
    comparison gave no number stays suspected.
    """
    fresh: dict[Pair, list[Record]] = {}
    wanted = list(dict.fromkeys(_pair(each) for each in steps if each.last))
    for pair in wanted:
        with TemporaryDirectory(prefix="leantrain-") as empty:  # where nothing counts as measured already
            fresh[pair] = measure(
                [pair], Path(empty), seeds=seeds, minutes=minutes / len(wanted), progress=progress, warn=warn
            )
        store = Store(folder)
        for record in fresh[pair]:
            with store.writing(record.machine.name):
                store.append(record)
    result = []
    for each in steps:
        if not each.last:
            result.append(replace(each, verdict="not comparable"))
            continue
        again = series(fresh[_pair(each)], metrics=(each.series.metric,))
        same = [one for one in again if one.conditions.key == each.series.conditions.key]
        if not same or len(same[0].points) < (1 if each.series.exact else 2):
            why = "other data" if again and not same else "too few replicates that gave a number"
            warn(f"{each.series.name} stays suspected: its fresh comparison had {why}")
            result.append(each)
        else:
            result.append(judged(each, same[0].values))
    return result


def _pair(step: ChangePoint) -> Pair:
    return Pair(step.series.setting, step.series.stack, step.series.reference)
