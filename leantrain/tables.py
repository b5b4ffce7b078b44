"""Records as pandas DataFrames."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from suite.judge.rows import Row, rows
from suite.record.store import Store
from suite.topics.publish.export import row_values

DTYPES = {"text": "string", "integer": "Int64", "real": "float64", "boolean": "boolean"}


def records(folder: str | Path = "results") -> pd.DataFrame:
    """Reads what the records of a results folder say, tidy: a line for each metric of each pair.

    Columns: the conditions (``stack``, ``reference``, ``baseline``, ``size``, ``recipe``, ``task``, ``steps``,
    ``machine``, ...), ``learned_on`` (the machine of the curves) and ``unverified`` (the kinds of evidence whose code
    changed since) and ``newer_version`` (of the baseline, where the line is of an older one), then ``metric``,
    ``evidence`` (what it is read from: counted, learned, timed, measured or composed),
    ``scale`` (a ratio of costs, contender over reference, or the value itself), ``kind`` (measured, modelled, exact,
    bound, missed or unavailable), ``value``, of a bound the least possible or with ``at_most`` the largest, ``low`` and
    ``high`` (the ends of the interval), ``level``, ``n`` (replicates), ``reference_value`` and ``contender_value`` in
    the unit of the metric's name, ``reason`` where there is no number, ``seeds`` and ``timings``, and ``records``, the
    ids. What is unknown is missing, never 0.

    A line of the folder that cannot be read is a warning. Raises FileNotFoundError where there is no such folder.

        >>> frame = leantrain.records("results")
        >>> frame.query("metric == 'step_time' and kind == 'measured'")[["stack", "baseline", "value", "low", "high"]]
    """
    if not Path(folder).is_dir():
        raise FileNotFoundError(
            f"there is no folder {folder}; measure something with: leantrain run --results {folder}"
        )
    stored, problems = Store(Path(folder)).read()
    for problem in problems:
        warnings.warn(problem, stacklevel=2)
    return frame_of(rows(stored))


def frame_of(rows: Iterable[Row]) -> pd.DataFrame:
    """Returns the rows' metrics, a line each."""
    table = row_values(rows)
    columns = {
        name: pd.Series([line.get(name) for line in table.lines], dtype=DTYPES[type])
        for name, type in table.columns.items()
    }
    return pd.DataFrame(columns)
