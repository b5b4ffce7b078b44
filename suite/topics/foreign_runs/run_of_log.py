"""Makes runs of logs: a run's evaluations, in order, and what they cost; what cannot be right is refused with its line.

A run is judged by its last evaluation. Where only the training loss is logged, which is one batch's, the mean over the
last twentieth of the run stands for it. Where higher is better, what is judged is what is missing to the most there can
be, 1 or 100.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from suite.judge.statistics import Floats
from suite.topics.foreign_runs.guessed_columns import SECONDS_IN, Roles, column_of, role_of
from suite.topics.foreign_runs.log_table import LogTable

LAST_SHARE = 0.05
FACTS: dict[str, tuple[str, ...]] = {
    "batch": ("global_batch_size", "total_batch_size", "train_batch_size", "batch_size", "tokens_a_step"),
    "data": ("dataset", "dataset_name", "data", "data_path", "train_data", "train_files"),
    "hardware": ("gpu", "gpu_name", "gpu_type", "hardware", "accelerator", "device_name", "device"),
}
RATES = ("lr", "learning_rate", "train/learning_rate", "train/lr", "lr-adamw/group0")
PLANNED = ("planned_steps", "max_steps", "total_steps", "num_iterations")
SEED_IN_NAME = re.compile(r"seed[-_=]?(\d+)", re.IGNORECASE)


@dataclass(frozen=True)
class ForeignRun:
    """Holds the evaluations [evaluations] of one run.

    Attributes:
        seed: as logged, or as the file's name has it; empty where neither says.
        budgets: what had been spent at each evaluation, in the comparison's unit, ascending.
        losses: lower is better, positive.
        seconds: NaN where no time is logged.
        facts: batch, data, hardware, where the log says.
        rate_left: the last learning rate over the largest; NaN where none is logged.
        planned: the steps that the run was to have, over those that it has; NaN where the log does not say.
        logged: the budget of the last line, over that of the last evaluation.
    """

    source: str
    seed: str
    budgets: Floats
    losses: Floats
    seconds: Floats
    facts: Mapping[str, str] = field(default_factory=dict)
    rate_left: float = math.nan
    planned: float = math.nan
    logged: float = 1.0
    averaged: bool = False

    @property
    def length(self) -> float:
        return float(self.budgets[-1])

    @cached_property
    def log_loss(self) -> float:
        """Returns ln of the final loss."""
        if self.averaged:
            return math.log(float(self.losses[self.budgets > (1 - LAST_SHARE) * self.length].mean()))
        return math.log(float(self.losses[-1]))

    @property
    def log_pace(self) -> float:
        """Returns ln of the seconds that a unit of budget took, over the whole run; NaN where no time is logged."""
        took = float(self.seconds[-1])
        return math.log(took / self.length) if took > 0 else math.nan


def ceiling(tables: Sequence[LogTable], roles: Roles) -> float:
    """Returns the most that a metric can be of which more is better: 1, or 100 of per cent. Raises ValueError where
    that is not so, and where one log has shares and another per cent."""
    most = 0.0
    for table in tables:
        if name := roles.column("loss", table):
            own = float(np.nanmax(table.numbers(name)))
            if own > 100:
                raise ValueError(
                    f"{table.source}: {name} is {own:g}, and of what is better higher up the most that there can be "
                    "must be 1 or 100; name a loss with --loss"
                )
            if most and (own > 1) != (most > 1):
                raise ValueError(
                    f"{table.source} has {name} up to {own:g}, and {tables[0].source} up to {most:g}: one of them "
                    "is in per cent; write both alike"
                )
            most = max(most, own)
    return 100.0 if most > 1 else 1.0


def runs_of(table: LogTable, roles: Roles, most: float | None = None) -> list[ForeignRun]:
    """Returns the runs of a log: one, or one for each value of its columns of runs and seeds. ``most``: the metric's
    :func:`ceiling`, where more of it is better."""
    parts = [table]
    for role in ("run", "seed"):
        if name := roles.column(role, table):
            parts = [own for part in parts for own in _by_value(part, name)]
    return [_run(part, roles, most) for part in parts]


def _by_value(table: LogTable, name: str) -> list[LogTable]:
    rows: dict[str, list[int]] = {}
    for row, value in enumerate(table.columns[name]):
        if value is not None and value != "":
            rows.setdefault(str(value), []).append(row)
    if len(rows) < 2:
        return [table]
    return [table.rows(own, f"{name} {value}") for value, own in rows.items()]


def _run(table: LogTable, roles: Roles, most: float | None) -> ForeignRun:
    loss, spent = roles.column("loss", table), roles.column(role_of(roles.unit), table)
    if loss is None or spent is None:
        missing = roles.metric if loss is None else roles.unit
        raise ValueError(f"{table.source}: it has no {missing}; leave it out, or name the column")
    values, budgets = table.numbers(loss), _filled(table.numbers(spent))
    rows = np.flatnonzero(~np.isnan(values))
    rows = _checked(table, rows, budgets, values, roles)
    rows = rows[budgets[rows] > 0] if (budgets[rows] > 0).any() else rows
    last = int(rows[-1])
    if not budgets[last] > 0:
        raise ValueError(f"{table.place(last)}: its only evaluation is after 0 {roles.unit}; it has not begun")
    logged = float(np.nanmax(budgets))
    return ForeignRun(
        table.source,
        _seed(table, roles),
        budgets[rows],
        _losses(table, rows, values, roles.metric, most),
        _seconds(table, roles)[rows],
        _facts(table, roles),
        _rate_left(table),
        _planned(table, roles),
        logged / float(budgets[last]),
        not roles.held_out,
    )


def _filled(values: Floats) -> Floats:
    """Returns values with what is missing taken from the row before: lines of an evaluation often name no tokens."""
    known = np.where(np.isnan(values), -1, np.arange(len(values)))
    before = np.maximum.accumulate(known)
    filled: Floats = np.where(before >= 0, values[before], math.nan)
    return filled


def _checked(table: LogTable, rows: np.ndarray, budgets: Floats, values: Floats, roles: Roles) -> np.ndarray:
    """Returns the rows of evaluations, the same one once. Raises ValueError, with the line, where budgets are missing
    or fall, and where one has two losses."""
    if unknown := [int(row) for row in rows if math.isnan(budgets[row])]:
        raise ValueError(f"{table.place(unknown[0])}: a loss without {roles.unit}; name their column, or drop the line")
    if (negative := rows[budgets[rows] < 0]).size:
        raise ValueError(f"{table.place(int(negative[0]))}: {roles.unit} below 0; mend the log")
    steps = np.diff(budgets[rows])
    if (falls := np.flatnonzero(steps < 0)).size:
        before, row = int(rows[falls[0]]), int(rows[falls[0] + 1])
        raise ValueError(
            f"{table.place(row)}: {roles.unit} fall from {budgets[before]:g} to {budgets[row]:g}: a run that was "
            "resumed, or several in one file; drop what was repeated, or name the column that tells them apart: "
            "--run"
        )
    same = np.flatnonzero(steps == 0)
    if (differ := same[values[rows[same]] != values[rows[same + 1]]]).size:
        before, row = int(rows[differ[0]]), int(rows[differ[0] + 1])
        raise ValueError(
            f"{table.place(row)}: {budgets[row]:g} {roles.unit} have two losses, {values[before]:g} and "
            f"{values[row]:g}: keep one, or name the column that tells the runs apart with --run"
        )
    return np.delete(rows, same)


def _losses(table: LogTable, rows: np.ndarray, values: Floats, metric: str, most: float | None) -> Floats:
    """Returns what is judged, of which less is better. Raises ValueError where it is not positive."""
    own: Floats = values[rows]
    if most is not None:
        own = most - own
    if (wrong := np.flatnonzero(own <= 0)).size:
        row = int(rows[int(wrong[0])])
        raise ValueError(
            f"{table.place(row)}: {metric} is {values[row]:g}: ratios need losses above 0; name another with --loss"
        )
    return own


def _seconds(table: LogTable, roles: Roles) -> Floats:
    """Returns the seconds at each row. Raises ValueError where the clock goes backwards."""
    name = roles.column("seconds", table)
    if name is None:
        return np.full(len(table.lines), math.nan)
    unit = next((size for end, size in SECONDS_IN.items() if name.lower().endswith(end)), 1.0)
    seconds = _filled(table.numbers(name)) * unit
    if (falls := np.flatnonzero(np.diff(seconds) < 0)).size:
        row = int(falls[0]) + 1
        raise ValueError(
            f"{table.place(row)}: {name} falls from {seconds[row - 1]:g} to {seconds[row]:g} s: two units, or a clock "
            "that began anew; write seconds since the run began, or name another column with --seconds"
        )
    return seconds


def _facts(table: LogTable, roles: Roles) -> dict[str, str]:
    """Returns what the log says of batch, data and hardware; tokens over steps tell the batch, too."""
    facts = {name: fact for name, names in FACTS.items() if (fact := _fact(table, names))}
    step, tokens = roles.column("step", table), roles.column("tokens", table)
    if step and tokens:
        last = [float(np.nanmax(table.numbers(name))) for name in (tokens, step)]
        if last[1] > 0:
            facts["batch"] = f"{last[0] / last[1]:,.0f} tokens a step"
    return facts


def _fact(table: LogTable, names: Sequence[str]) -> str:
    """Returns what the log says of the whole run under the first of these names."""
    facts = {name.lower().rpartition("/")[2]: fact for name, fact in table.facts.items()}
    for name in names:
        if name in facts:
            return str(facts[name])
        if column := column_of(table, [name]):
            values = {str(table.columns[column][row]) for row in table.present(column)}
            return next(iter(values)) if len(values) == 1 else ""
    return ""


def _seed(table: LogTable, roles: Roles) -> str:
    if own := _fact(table, roles.of["seed"]):
        return own
    return match[1] if (match := SEED_IN_NAME.search(table.source)) else ""


def _rate_left(table: LogTable) -> float:
    name = column_of(table, RATES)
    if name is None:
        return math.nan
    rates = table.numbers(name)
    rates = rates[~np.isnan(rates)]
    return float(rates[-1] / rates.max()) if len(rates) > 1 and rates.max() > 0 else math.nan


def _planned(table: LogTable, roles: Roles) -> float:
    """Returns the steps that were planned over the last that was logged."""
    planned, steps = _fact(table, PLANNED), column_of(table, roles.of["step"])
    try:
        last = float(np.nanmax(table.numbers(steps))) if steps else math.nan
        return float(planned) / last if planned and last > 0 else math.nan
    except ValueError:
        return math.nan
