"""Two stacks head to head, from Python."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from suite.contract.setting import check_model, chosen, setting_of
from suite.contract.stack import build
from suite.judge.rows import Row
from suite.measure.campaign import measure
from suite.measure.comparison import Procedure, Progress, silent
from suite.measure.contender import Limits
from suite.measure.plan import pair_of
from suite.measure.result import result_of
from suite.record.job import BASELINE, TASKS
from suite.record.store import Store
from suite.show.terminal import summary

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, repr=False)
class Compared:
    """A stack against its reference; prints as a sentence and the numbers.

    Attributes:
        row: all that the records say: ``row.metrics["step_time"].number`` is a cost ratio, contender over reference,
            ``row.metrics["step_time"].interval`` its 95 % interval, ``row.failed`` whether no seed finished.
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
        """A line for each metric, with the columns of :func:`leantrain.records`."""
        from leantrain.tables import frame_of

        return frame_of([self.row])


def compare(
    stack: str,
    against: str | None = None,
    *,
    baseline: str = "gpt",
    size: str = "nano",
    recipe: str = "modern",
    task: str | None = None,
    steps: int | None = None,
    data: str | None = None,
    model: str | None = None,
    device: str = "cpu",
    threads: int = 1,
    seeds: int = 3,
    minutes: float = 10.0,
    rounds: int | None = None,
    time_limit_s: float = 3600.0,
    hang_limit_s: float = 600.0,
    sequential: bool = False,
    results: str | Path = "results",
    progress: Progress = silent,
) -> Compared:
    """Trains two stacks side by side and compares what they cost and reach; what ``leantrain compare`` does.

    What the folder ``results`` holds already, under the same conditions, machine and code, is not measured again, and
    new records are appended to it. Each contender is a process of its own, which imports nothing of yours.

    Args:
        stack: a technique or a stack with hyper-parameters, ``"lion"`` or ``"lion+sam:rho=0.1"``.
        against: the reference; None for the one that the technique's card names.
        baseline: ``"bert"``, ``"gpt"``, ``"vit"`` or ``"mae"``.
        size: ``"nano"``, ``"micro"``, ``"base"`` or ``"large"``.
        recipe: ``"classic"``, ``"modern"`` or ``"compiled"``.
        task: ``"pretrain"`` or ``"adapt"``; None for what the card says.
        steps: training steps of the reference; None for the baseline's.
        data: a Hugging Face data set id, or a local file or folder; None for the embedded data.
        model: a Hugging Face configuration folder or a timm model name; None for the baseline's.
        device: ``"cpu"`` or ``"cuda"``.
        threads: CPU threads of a contender.
        seeds: replicates, each with a seed of its own; the interval is over them.
        minutes: stop in time for this budget; the same call continues.
        rounds: paired rounds of a replicate.
        time_limit_s, hang_limit_s: seconds that a contender may train in all, and may be silent.
        sequential: hold one contender in memory at a time: fits more, pairs less.
        results: the folder of the records.
        progress: called with the finished share in [0, 1] and what is being done.

    Raises:
        LookupError: for a name that does not exist, with the nearest ones; or no record came about.
        ValueError: for a stack that cannot be built, or data or a model that do not fit.
        OSError: for data or a model that is not there.
        suite.contract.technique.Unavailable: for a device that this machine does not have.
        suite.record.store.StoreError: if the folder cannot be written, or another run writes to it.

    A contender that fails is no exception: the result says how it ended.
    """
    setting = setting_of(
        baseline=baseline, size=size, recipe=recipe, task=task, steps=steps, data=data, model=model, device=device,
        threads=threads,
    )  # fmt: skip
    build(stack), build(against or BASELINE)
    if seeds < 1 or minutes <= 0 or (rounds is not None and rounds < 2):
        raise ValueError(f"seeds >= 1, minutes > 0 and rounds >= 2, not {seeds}, {minutes} and {rounds}")
    pair = pair_of(setting, stack, against, chosen("task", task, TASKS) if task else None)
    check_model(pair.setting)
    folder = Path(results)
    measure(
        [pair], folder, seeds=seeds, minutes=minutes, rounds=rounds, progress=progress,
        procedure=Procedure(Limits(time_limit_s, hang_limit_s), sequential=sequential),
        warn=lambda sentence: warnings.warn(sentence, stacklevel=3),
    )  # fmt: skip
    return Compared(result_of(pair, Store(folder).read()[0]))
