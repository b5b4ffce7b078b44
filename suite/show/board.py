"""Put rows on boards: which belong together, in which order, and how their numbers read, in Markdown and HTML.

A board is what may be ranked: one baseline, recipe, size, task, data and machine, one reference. Within it techniques
stand in tiers of time to quality, which differ beyond what chance explains (`suite.judge.statistics.tiers`). Below them
stand those of one seed, which no test can place, those that did not reach the quality, and last those that failed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from suite.judge.metrics import COLUMNS, Direction, Metric, Value
from suite.judge.rows import Row
from suite.judge.statistics import WITHIN_ONE_SEED, Interval, tiers


@dataclass(frozen=True)
class Board:
    """``tiers`` best first; ``single`` have one seed, so no tier; ``missed`` did not reach the reference's quality;
    ``failed`` have no number."""

    tiers: tuple[tuple[Row, ...], ...]
    single: tuple[Row, ...]
    missed: tuple[Row, ...]
    failed: tuple[Row, ...]

    @property
    def ranked(self) -> list[tuple[str, Row]]:
        """(tier as shown, row) of all rows that have numbers."""
        first = [(str(number), row) for number, tier in enumerate(self.tiers, 1) for row in tier]
        return first + [("?", row) for row in self.single] + [("–", row) for row in self.missed]

    @property
    def rows(self) -> list[Row]:
        return [row for _, row in self.ranked] + list(self.failed)

    @property
    def title(self) -> str:
        row, conditions = self.rows[0], self.rows[0].conditions
        parts = [conditions.baseline, conditions.recipe, conditions.size, conditions.task, f"{conditions.steps} steps"]
        parts += [conditions.model] if conditions.model else []
        parts += [f"against {row.reference}"] if row.reference != "baseline" else []
        return " · ".join(parts)

    @property
    def subtitle(self) -> str:
        """The conditions in a sentence."""
        row, conditions = self.rows[0], self.rows[0].conditions
        threads = f"{conditions.threads} thread{'s' if conditions.threads != 1 else ''}"
        where = threads if conditions.device == "cpu" else conditions.device
        return (
            f"Machine {row.machine.name} ({where}); {conditions.steps} steps of the reference; "
            f"data {conditions.data or 'unknown'}; {conditions.baseline} version {conditions.baseline_version}."
        )

    @property
    def detectable(self) -> str:
        """A sentence on the smallest change that this board could have seen."""
        effects = sorted(row.detectable_effect for _, row in self.ranked if len(row.seeds) > 1)
        if not effects:
            return "No row has two seeds, so nothing says how small a change would have been seen."
        middle, worst = math.expm1(effects[len(effects) // 2]), math.expm1(effects[-1])
        return (
            f"Smallest change of the step time that a row had 80 % power to see: {middle:.1%} for the median row, "
            f"{worst:.1%} for the least certain one."
        )

    def columns(self) -> list[Metric]:
        """The columns in which some row has a number."""
        return [
            column for column in COLUMNS if any(row.value(column.name).kind != "unavailable" for _, row in self.ranked)
        ]

    def empty_columns(self) -> list[tuple[str, str]]:
        """The (heading, reason) of each column in which no row has a number."""
        filled = self.columns()
        return [
            (column.heading, "; ".join(sorted({row.value(column.name).reason for _, row in self.ranked})))
            for column in COLUMNS
            if column not in filled and self.ranked
        ]


def boards(rows: Iterable[Row]) -> list[Board]:
    """Sort rows into boards; those of one baseline stand together."""

    def place(row: Row) -> tuple[str, ...]:
        c = row.conditions
        return c.baseline, c.recipe, c.size, c.task, row.machine.name, row.reference, row.board[0], row.board[1]

    return [_board(list(group)) for _, group in groupby(sorted(rows, key=place), key=place)]


def _board(rows: Sequence[Row]) -> Board:
    places: dict[str, list[Row]] = {"tier": [], "single": [], "missed": [], "failed": []}
    for row in rows:
        log = row.metrics["time_to_quality"].log
        place = "failed" if row.failed else "missed" if log is None else "tier" if bounded(log) else "single"
        places[place].append(row)
    named = {f"{row.stack}\0{position}": row for position, row in enumerate(places["tier"])}
    intervals = {name: log for name, row in named.items() if (log := row.metrics["time_to_quality"].log)}
    return Board(
        tuple(tuple(named[name] for name in tier) for tier in tiers(intervals)),
        tuple(sorted(places["single"], key=lambda row: (row.metrics["time_to_quality"].number, row.stack))),
        tuple(sorted(places["missed"], key=lambda row: row.stack)),
        tuple(sorted(places["failed"], key=lambda row: row.stack)),
    )


# how numbers read ---------------------------------------------------------------------------------------------------


def number(x: float, decimals: int = 2) -> str:
    """Format a number with ``decimals`` near 1, with three significant digits elsewhere: 1.34, 0.052, 12.3, 450."""
    if not math.isfinite(x):
        return "∞" if x > 0 else "−∞" if x < 0 else "?"
    if x == 0 or abs(x) >= 100:
        return f"{x:.0f}"
    if 0.1 <= abs(x) < 10:
        return f"{x:.{decimals}f}"
    return f"{x:.{2 - math.floor(math.log10(abs(x)))}f}"


def bounded(interval: Interval | None) -> bool:
    return interval is not None and math.isfinite(interval.half_width)


def decimals(interval: Interval | None) -> int:
    """The decimals, 2 or 3, that show the interval's half-width."""
    if interval is None or not bounded(interval) or interval.half_width <= 0:
        return 2
    return min(3, max(2, math.ceil(-math.log10(interval.half_width))))


def ends(interval: Interval | None) -> str:
    """``[0.91, 0.96]``, with a degree sign within one seed; empty where the ends are not known."""
    if interval is None or not bounded(interval):
        return ""
    digits = decimals(interval)
    within = "°" if interval.method == WITHIN_ONE_SEED else ""
    return f"[{number(interval.low, digits)}, {number(interval.high, digits)}]{within}"


def shown_interval(value: Value, direction: Direction) -> Interval | None:
    """The interval of the number that is shown: the speedup where higher is better, else the cost ratio."""
    return value.speedup if direction == "higher" else value.interval


def shown_number(value: Value, direction: Direction) -> float:
    return 1 / value.number if direction == "higher" and value.number else value.number


def mark(value: Value, direction: Direction) -> str:
    """What stands before the number: = an exact count, × a speedup."""
    return "=" if value.kind == "exact" else "×" if direction == "higher" else ""


def text(value: Value, direction: Direction) -> str:
    """The number with its interval; an exact one after ``=``; a word where there is none."""
    if value.kind == "missed":
        return "missed"
    if value.kind == "unavailable":
        return "n/a"
    interval = shown_interval(value, direction)
    shown = number(shown_number(value, direction), decimals(interval))
    return f"{mark(value, direction)}{shown} {ends(interval)}".strip()


def quantity(x: float, unit: str) -> str:
    """``21.2 ms``, ``4.19 MB``, ``200 GFLOP``: three digits and an SI prefix."""
    if len(unit) > 4 or not unit or not math.isfinite(x) or x == 0:
        return f"{x:.4g} {unit}".strip()
    step = max(-3, min(5, math.floor(math.log10(abs(x)) / 3)))
    return f"{x / 1000**step:.3g} {('nµm kMGTP'[step + 3]).strip()}{unit}"


def change(value: Value, unit: str) -> str:
    """``21.2 ms → 31.8 ms``: the quantities behind the ratio; empty where they are not known."""
    if value.reference is None or value.contender is None:
        return ""
    return f"{quantity(value.reference, unit)} → {quantity(value.contender, unit)}"


def setup_text(row: Row) -> str:
    """Set-up beyond the reference's, in reference steps."""
    steps = round(row.setup.estimate) if row.setup else 0
    return f"{steps:+d}" if steps else "0"


def failure_lines(row: Row, longest: int = 160) -> list[str]:
    """One line for each way in which seeds failed: ``out of memory (seeds 0, 1): reason``."""
    ways: dict[tuple[str, str, str], list[str]] = {}
    for each in row.failures:
        ways.setdefault((each.stack, each.status, each.reason), []).append(str(each.seed))
    lines = []
    for (stack, status, reason), seeds in ways.items():
        who = f"the reference {stack}: " if stack != row.stack else ""
        short = reason if len(reason) <= longest else reason[: longest - 1] + "…"
        where = f"seed{'s' if len(seeds) > 1 else ''} {', '.join(seeds)}"
        lines.append(f"{who}{status.replace('_', ' ')} ({where}){': ' if short else ''}{short}")
    return lines


def remarks(row: Row, columns: Sequence[Metric]) -> list[str]:
    """List what a row's numbers do not say, worst first."""
    sentences = [f"stale: {', '.join(row.stale)}"] if row.stale else []
    sentences += failure_lines(row)
    if row.failed:
        return sentences
    sentences += [note for note in row.notes if not note.startswith("one seed")]  # the seeds column says that
    for column in columns:
        value = row.value(column.name)
        if value.kind in ("missed", "unavailable"):
            sentences.append(f"{column.heading}: {value.reason}")
        elif value.note and value.note not in NEUTRAL_NOTES:
            sentences.append(f"{column.heading}: {value.note}")
    return sentences


def seeds_text(row: Row) -> str:
    """``3``, or ``2 of 3`` where a seed failed."""
    tried = len(row.seeds) + len({each.seed for each in row.failures})
    return str(tried) if tried == len(row.seeds) else f"{len(row.seeds)} of {tried}"


def against_text(row: Row) -> str:
    """``against baseline on gpt nano (modern, pretrain)``."""
    at = row.conditions
    return f"against {row.reference} on {at.baseline} {at.size} ({at.recipe}, {at.task})"


NEUTRAL_NOTES = ("equal steps are equal time here", "schedule fitted to the budget")


@dataclass(frozen=True)
class Summary:
    """What the head of a leaderboard says of all rows."""

    rows: int
    records: int
    machines: tuple[tuple[str, str], ...]  # (name, facts)
    newest: str
    seeds: str
    stale: int
    failed: int


def summarised(rows: Sequence[Row]) -> Summary:
    seeds = sorted({len(row.seeds) for row in rows if not row.failed})
    return Summary(
        rows=len(rows),
        records=len({each for row in rows for each in row.records}),
        machines=tuple(sorted({(row.machine.name, machine_line(row.machine.facts)) for row in rows})),
        newest=max((row.newest for row in rows), default="")[:10],
        seeds=count_text(*seeds),
        stale=sum(bool(row.stale) for row in rows),
        failed=sum(row.failed for row in rows),
    )


def count_text(*seeds: int) -> str:
    """``1 seed``, ``3 seeds``, ``1 to 5 seeds``."""
    if not seeds:
        return "no seeds"
    span = f"{seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else str(seeds[0])
    return f"{span} seed{'' if seeds[-1] == 1 else 's'}"


HOW_TO_READ = (
    "Every number is a ratio to the reference, paired in time and seed: 1 is no change.",
    "↑ higher is better (a speedup), ↓ lower is better (a cost). Brackets hold 95 % intervals over seeds; "
    "° an interval within one seed, which cannot see how processes differ; no brackets: one seed, no interval.",
    "= an exact count, the same in every run. n/a unavailable, never 0; missed: did not reach the reference's final "
    "loss within 1 %. The reasons stand below each table.",
    "Time to quality is the headline: time until the reference's final test loss, set-up included, evaluation "
    "excluded. Techniques of one tier cannot be told apart by it; ? one seed, which no test can place.",
    "Step time is of one own step, training time of the whole schedule, FLOPs of the whole training, set-up in steps "
    "of the reference beyond the reference's own.",
)


def machine_line(facts: Mapping[str, Any]) -> str:
    """The known facts of a machine in one line."""
    gpu = facts.get("gpu") or {}
    parts = [
        f"{gpu.get('count')} × {' and '.join(map(str, gpu.get('names', ())))}" if gpu else "",
        f"driver {gpu.get('driver')}" if gpu else "",
        f"{facts.get('cpu') or 'unknown CPU'}, {facts.get('cores')} cores",
        f"{facts['memory_gib']} GiB" if facts.get("memory_gib") else "",
        str(facts.get("system") or ""),
        f"torch {facts['torch']}" if facts.get("torch") else "",
    ]
    return ", ".join(filter(None, parts))
