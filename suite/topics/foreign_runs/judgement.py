"""Judges logs: reads two sides, decides which columns are what, compares, and keeps all of that together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from suite.judge.ruler import BUDGETS
from suite.judge.statistics import Interval
from suite.topics.foreign_runs import cautions as warnings
from suite.topics.foreign_runs.guessed_columns import UNITS, Better, ColumnNames, Roles, decided, direction
from suite.topics.foreign_runs.log_table import LogTable
from suite.topics.foreign_runs.run_comparison import BudgetReading, Curve, by_length, compared
from suite.topics.foreign_runs.run_of_log import ForeignRun, ceiling, runs_of

PERCENT_TO_BUDGET = 5.0  # a per cent of loss is worth about so many per cent of budget
SIDES = ("reference", "contender")


@dataclass(frozen=True)
class JudgedRuns:
    """Says what a contender's runs are worth by its reference's.

    Attributes:
        metric: what was compared, as the logs call it; ``unit``: what budgets are counted in.
        said: how columns were guessed, and what was taken for granted.
        cautions: what makes such a comparison wrong, and may hold here.
        readings: one for each length of the contender's runs, ascending.
        curve: the reference's scaling curve; None where its runs have fewer than three lengths.
        further: the lengths at which the reference would have to be trained for a curve.
    """

    metric: str
    unit: str
    better: Better
    reference: Sequence[ForeignRun]
    contender: Sequence[ForeignRun]
    curve: Curve | None
    readings: Sequence[BudgetReading]
    said: Sequence[str] = ()
    cautions: Sequence[str] = ()
    further: Sequence[float] = field(default=())

    @property
    def decided(self) -> bool:
        """Tells whether the longest runs' interval excludes "no difference"."""
        return self.readings[-1].decided

    def __str__(self) -> str:
        from suite.topics.foreign_runs.judgement_in_words import sentence

        return sentence(self)

    def as_dict(self) -> dict[str, object]:
        """Returns what was found as JSON has it; infinite ends are None."""
        return {
            "sentence": str(self),
            "metric": self.metric,
            "better": self.better,
            "unit": self.unit,
            "runs": {side: [run.source for run in runs] for side, runs in zip(SIDES, (self.reference, self.contender))},
            "curve": [
                {"budget": length.budget, "loss": math.exp(length.mean), "runs": len(length.runs)}
                for length in (self.curve.lengths if self.curve else ())
            ],
            "mid_schedule": bool(self.curve and self.curve.within),
            "readings": [_of_reading(reading) for reading in self.readings],
            "further_budgets": list(self.further),
            "columns": list(self.said),
            "cautions": list(self.cautions),
        }


def _of_reading(reading: BudgetReading) -> dict[str, object]:
    return {
        "kind": reading.kind,
        "budget": reading.contender.budget,
        "runs": len(reading.contender.runs),
        "loss": math.exp(reading.contender.mean),
        "reference_loss": math.exp(reading.reference.mean) if reading.reference else None,
        "reference_runs": len(reading.reference.runs) if reading.reference else None,
        "loss_ratio" if reading.kind == "loss ratio" else "equivalent_budget": _of_interval(reading.worth),
        "time_to_same_loss": _of_interval(reading.speedup) if reading.speedup else None,
        "time_of_a_unit": _of_interval(reading.pace) if reading.pace else None,
        "smallest_detectable": _finite(reading.detectable),
        "more_runs_to_decide": reading.seeds_more,
        "noise_from": reading.scatter,
    }


def _of_interval(interval: Interval) -> dict[str, float | None]:
    return {
        "estimate": interval.estimate,
        "low": interval.low or None,
        "high": _finite(interval.high),
        "level": interval.level,
    }


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


@dataclass(frozen=True)
class JudgeOptions:
    """Says how logs are to be judged: what a user may name. Raises UnknownId for a word that means nothing."""

    columns: ColumnNames = field(default_factory=ColumnNames)
    unit: str = ""
    better: str = ""
    tuned: str = ""
    mid_schedule: bool = False

    def __post_init__(self) -> None:
        from suite.entries.setting import chosen  # cards and their checks: only where a word is to be looked up

        for kind, value, known in (
            ("unit", self.unit, UNITS),
            ("direction", self.better, ("lower", "higher")),
            ("tuning", self.tuned, warnings.TUNED),
        ):
            if value:
                chosen(kind, value, known)


def judged(reference: Sequence[LogTable], contender: Sequence[LogTable], wanted: JudgeOptions) -> JudgedRuns:
    """Judges the runs in two sides' logs. Raises ValueError, in one sentence that names file and line, for what cannot
    be judged."""
    tables = [*reference, *contender]
    roles = decided(tables, wanted.columns, wanted.unit)
    better, unclear = _direction(roles, tables, wanted.better)
    most = ceiling(tables, roles) if better == "higher" else None
    theirs, ours = ([run for table in side for run in runs_of(table, roles, most)] for side in (reference, contender))
    warnings.refuse(theirs, ours)
    curve, readings = compared(theirs, ours, wanted.mid_schedule)
    said = [*roles.said, *(["higher is better: what is judged is what it lacks to the most"] * (better == "higher"))]
    return JudgedRuns(
        roles.metric,
        roles.unit,
        better,
        theirs,
        ours,
        curve,
        readings,
        said,
        [*unclear, *warnings.cautions(theirs, ours, curve, readings, roles, wanted.tuned)],
        [] if curve else _further(theirs, readings),
    )


def _direction(roles: Roles, tables: Sequence[LogTable], named: str) -> tuple[Better, list[str]]:
    """Returns which direction is better, and a caution where neither the user nor the name says it."""
    if named:
        return ("higher" if named == "higher" else "lower"), []
    if known := direction(roles.metric):
        return known, []
    values = [table.numbers(name) for table in tables if (name := roles.column("loss", table))]
    moved = sum(float(own[~(own != own)][-1] - own[~(own != own)][0]) for own in values)
    better: Better = "higher" if moved > 0 else "lower"
    return better, [
        f"whether {roles.metric} is better higher or lower its name does not say: {better} is taken, as the runs go "
        "there; say it with --better"
    ]


def _further(theirs: Sequence[ForeignRun], readings: Sequence[BudgetReading]) -> list[float]:
    """Returns the lengths beside the reference's own at which it would have to be trained for a curve that holds these
    losses: the least of the ruler's budgets that reach as far, with half as much again."""
    length = by_length(theirs)[-1].budget
    known = [own.budget for own in by_length(theirs)]
    reach = max(abs(math.log(reading.worth.estimate)) for reading in readings) * PERCENT_TO_BUDGET * 1.5
    above = [share for share in BUDGETS if share > 1]
    factor = next((share for share in above if math.log(share) >= reach), above[-1])
    wanted = [length / factor, length * factor]
    return [budget for budget in wanted if all(abs(budget / own - 1) > 0.1 for own in known)]
