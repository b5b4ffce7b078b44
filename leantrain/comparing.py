"""Compares two stacks head to head, from Python."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from suite.entries.setting import chosen, setting_of
from suite.judge.rows import Row
from suite.measure.campaign import Effort, measure
from suite.measure.contenders.contender import Limits, check_buildable, check_model_apart, check_ranks
from suite.measure.contenders.result import result_of
from suite.measure.missing import Wanted, pair_of
from suite.measure.provenance import Progress, silent
from suite.measure.timing import ROUNDS
from suite.record.job import TASKS
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
    timings: int = 3,
    ruler: int = 0,
    learn: bool = False,
    tune: bool = True,
    time: bool = True,
    minutes: float = 10.0,
    rounds: int | None = None,
    time_limit_s: float = 3600.0,
    hang_limit_s: float = 600.0,
    sequential: bool = False,
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
        recipe: ``"classic"``, ``"modern"`` or ``"compiled"``.
        task: ``"pretrain"`` or ``"adapt"``; None for what the card says.
        steps: training steps of the reference; None for the baseline's.
        data: a Hugging Face data set id, or a local file or folder; None for the embedded data.
        model: a Hugging Face configuration folder or a timm model name; None for the baseline's.
        device: ``"cpu"`` or ``"cuda"``.
        threads: CPU threads of a run.
        seeds: runs that each side learns, each with its own seed.
        timings: sets of fresh processes that are timed.
        ruler: seeds of the reference's scaling curve, which gives the time to the same quality; 0 for the curve that
            the results have.
        learn: whether to learn curves here even where another machine's are known.
        tune: whether learning rates are chosen on validation data where a card asks for that, for both sides alike.
        time: whether to time at all. A machine that others keep too busy is not timed either, with a warning.
        minutes: begin nothing new after this time; the same call continues.
        rounds: paired rounds of a timing; 12 where None.
        time_limit_s: seconds that a run may take in all.
        hang_limit_s: seconds that it may be silent.
        sequential: time one side at a time: fits more in memory, pairs less.
        results: the folder of the records.
        progress: called with the finished share in [0, 1] and what is being done.

    Raises:
        LookupError: for a name that does not exist, with the nearest ones; or no record came about.
        ValueError: for a stack that cannot be built, or whose cards do not name the baseline (with ``model``, anything
            may be tried); or data or a model that do not fit.
        OSError: for data or a model that is not there.
        suite.loop.technique.Unavailable: for a device that this machine does not have.
        suite.measure.contenders.child.ContenderFailed: where a technique's module fails as it is loaded, or data does
        not arrive. suite.record.store.StoreError: if the folder cannot be written, or another run writes to it.

    A contender that fails is no exception: the result says how it ended.
    """
    setting = setting_of(
        baseline=baseline,
        size=size,
        recipe=recipe,
        task=task,
        steps=steps,
        data=data,
        model=model,
        device=device,
        threads=threads,
    )
    if seeds < 1 or timings < 1 or ruler < 0 or minutes <= 0 or (rounds is not None and rounds < 2):
        raise ValueError("seeds and timings are 1 or more, ruler 0 or more, minutes more than 0, rounds 2 or more")
    pair = pair_of(setting, stack, against, chosen("task", task, TASKS) if task else None)
    check_buildable(*pair.sides)
    check_model_apart(pair.setting)
    check_ranks(pair.jobs)
    folder = Path(results)
    wanted, limits = Wanted(seeds, timings if time else 0, ruler, learn, tune), Limits(time_limit_s, hang_limit_s)
    measure(
        [pair],
        folder,
        Effort(wanted, minutes, limits, rounds or ROUNDS, sequential),
        progress=progress,
        warn=lambda sentence: warnings.warn(sentence, stacklevel=3),
    )
    return Compared(result_of(pair, Store(folder).read()[0]))
