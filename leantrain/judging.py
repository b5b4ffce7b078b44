"""Judges runs that leantrain never saw, from DataFrames or log files: what a contender's losses are worth."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from suite.topics.foreign_runs.guessed_columns import ColumnNames
from suite.topics.foreign_runs.judgement import JudgedRuns, JudgeOptions, judged
from suite.topics.foreign_runs.log_formats import files_of, read
from suite.topics.foreign_runs.log_table import LogTable
from suite.topics.foreign_runs.tabular_logs import of_columns

if TYPE_CHECKING:
    import pandas as pd

    Side: TypeAlias = pd.DataFrame | str | Path | Iterable[pd.DataFrame | str | Path] | Mapping[str, pd.DataFrame]

__all__ = ["JudgedRuns", "judge"]


def judge(
    reference: Side,
    contender: Side,
    *,
    unit: str = "",
    better: str = "",
    tuned: str = "",
    mid_schedule: bool = False,
    **columns: str,
) -> JudgedRuns:
    """Judges the contender's runs by the reference's.

    A side is a DataFrame or several (a list, or a mapping from a run's name), or log files, by their names or patterns.
    A frame holds one run, a row for each line of its log, or several that a column ``run`` or ``seed`` tells apart.
    ``columns``: what a column is called, where its name is not guessed: ``step``, ``loss``, ``tokens``, ``flops``,
    ``seconds``, ``seed``, ``run``. The others are the options of ``leantrain judge``.

    The result's ``str`` is the answer in a sentence; ``readings``, ``cautions`` and ``as_dict()`` have the numbers.
    Raises ValueError, in one sentence, for runs that cannot be judged, LookupError for a word that is no option's, and
    TypeError for another keyword.

        >>> import pandas as pd
        >>> def run(steps, seed, gain=0.0):  # of one's own: columns step and val_loss
        ...     return pd.DataFrame({"step": [steps], "val_loss": [2 + 30 / steps**0.5 + seed / 500 - gain]})
        >>> reference = [run(steps, seed) for steps in (500, 1000, 2000) for seed in range(3)]
        >>> print(leantrain.judge(reference, [run(1000, seed, gain=0.1) for seed in range(3)]))
    """
    named = ColumnNames(**{role: (name,) for role, name in columns.items()})
    options = JudgeOptions(named, unit, better, tuned, mid_schedule)
    return judged(_tables(reference, "reference"), _tables(contender, "contender"), options)


def _tables(side: Side, name: str) -> list[LogTable]:
    """Returns the logs of a side."""
    if isinstance(side, str | Path):
        return [table for path in files_of([str(side)], name) for table in read(path)]
    if isinstance(side, Mapping):
        return [_of_frame(frame, run) for run, frame in side.items()]
    if hasattr(side, "columns"):
        return [_of_frame(side, name)]
    several = list(side)
    if not several:
        raise ValueError(f"{name} is empty; give a DataFrame, or the names of log files")
    tables: list[LogTable] = []
    for number, each in enumerate(several):
        tables += _tables(each, name) if isinstance(each, str | Path) else [_of_frame(each, f"{name} {number}")]
    return tables


def _of_frame(frame: pd.DataFrame, source: str) -> LogTable:
    plain = frame.reset_index() if frame.index.name else frame
    return of_columns(source, plain.to_dict(orient="list"))
