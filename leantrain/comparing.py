"""Compares two stacks head to head, from Python."""

from __future__ import annotations

import warnings
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from leantrain.training import Effort, Training, refuses_unknown
from suite.entries.setting import setting_of, task_named
from suite.judge.rows import Row
from suite.measure.asked import check_pairs
from suite.measure.campaign import measure
from suite.measure.contenders.result import result_of
from suite.measure.missing import pair_of
from suite.measure.provenance import Progress, silent
from suite.record.store import Store
from suite.show.terminal import summary

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, repr=False)
class Compared:
    """Holds a stack against its reference; prints as a sentence and the numbers.

    Attributes:
        row: all that the records say: ``row.metrics["step_time"].number`` is a cost ratio, contender over reference,
            ``row.metrics["step_time"].interval`` its 95 % interval, ``row.failed`` whether nothing was measured of it.
    """

    row: Row

    def __repr__(self) -> str:
        return summary(self.row)

    def _repr_html_(self) -> str:
        sentence, _, rest = summary(self.row).partition("\n")
        columns = ["metric", "kind", "value", "low", "high", "reason", "note"]
        table = self.to_frame()[columns].fillna({"reason": "", "note": ""}).to_html(index=False, na_rep="")
        return f"<p>{escape(sentence)}</p>{f'<pre>{escape(rest)}</pre>' if self.row.failed else table}"

    def to_frame(self) -> pd.DataFrame:
        """Returns a line for each metric, with the columns of :func:`leantrain.records`."""
        from leantrain.tables import frame_of

        return frame_of([self.row])


@refuses_unknown(training=Training, effort=Effort)
def compare(
    stack: str,
    against: str | None = None,
    *,
    baseline: str = "gpt",
    size: str = "nano",
    training: Training = Training(),  # noqa: B008  it is frozen
    effort: Effort = Effort(),  # noqa: B008
    results: str | Path = "results",
    progress: Progress = silent,
) -> Compared:
    """Compares what two stacks learn and what they cost; what ``leantrain compare`` does.

    Each side is counted, learns with several seeds, and is timed in lock-step with the other. What the folder
    ``results`` holds already, under the same conditions and code, is not measured again, and new evidence is appended
    to it. Each run is a process of its own, which imports nothing of yours.

    Args:
        stack: a technique or a stack with hyper-parameters, ``"lion"`` or ``"lion+sam:rho=0.1"``.
        against: the reference; None for the one that the technique's card names.
        baseline: ``"bert"``, ``"gpt"``, ``"vit"`` or ``"mae"``.
        size: ``"nano"``, ``"micro"``, ``"mini"``, ``"base"`` or ``"large"``.
        training: what a run has besides: recipe, task, steps, data, model, device and threads.
        effort: how much is measured: seeds, timings, the ruler, minutes and limits.
        results: the folder of the records.
        progress: called with the finished share in [0, 1] and what is being done.

    Raises:
        TypeError: for a keyword that it does not take, with the group that has it or the nearest one.
        LookupError: for a name that does not exist, with the nearest ones; or no record came about.
        ValueError: for a stack that cannot be built, or whose cards do not name the baseline (with a model of yours,
            anything may be tried); or data or a model that do not fit.
        OSError: for data or a model that is not there.
        suite.loop.technique.Unavailable: for a device that this machine does not have.
        suite.process.child.ContenderFailed: where a technique's module fails as it is loaded, or data does
        not arrive. suite.record.store.StoreError: if the folder cannot be written, or another run writes to it.

    A contender that fails is no exception: the result says how it ended.
    """
    setting = setting_of(baseline=baseline, size=size, **asdict(training))
    wanted = effort.of_campaign()
    pair = pair_of(setting, stack, against, task_named(training.task))
    check_pairs([pair])
    folder = Path(results)
    measure([pair], folder, wanted, progress=progress, warn=lambda sentence: warnings.warn(sentence, stacklevel=3))
    return Compared(result_of(pair, Store(folder).read()[0]))
