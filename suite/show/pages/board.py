"""Puts rows on boards: which belong together, in which order, and how their numbers read, in Markdown and HTML.

A board is what may be ranked: one baseline and version of it, recipe, size, task, data and machine, one reference.
Boards of an older version stand behind those of the newer, and say which they are of. Within it techniques
stand in order of the time to the same quality, in tiers which differ beyond what chance explains
(`suite.judge.statistics.tiers`). A bound stands where its end would. Below them stand those without an interval, those
that reached no quality or were not measured to the end, and last those that failed.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import Any

from suite.judge.metrics import COLUMNS, METRICS, NO_RULER, NOT_LEARNED, NOT_TIMED, Direction, Metric, MetricValue
from suite.judge.rows import Row, of_version
from suite.judge.statistics import Interval, tiers
from suite.record.job import Setting
from suite.record.machine import unrecorded

HEADLINE = METRICS["time_to_quality"]


@dataclass(frozen=True)
class Board:
    """Holds the rows of one board, with ``tiers`` best first; ``bounds`` lie beyond the ends of the reference's scaling
    curve; ``single`` have no interval, so no tier; ``partial`` have numbers, but none that is measured of the headline;
    ``failed`` have none. ``apart``: what tells it from others of its title. ``versioned``: whether its baseline has
    several versions."""

    tiers: tuple[tuple[Row, ...], ...]
    bounds: tuple[Row, ...]
    single: tuple[Row, ...]
    partial: tuple[Row, ...]
    failed: tuple[Row, ...]
    apart: tuple[str, ...] = ()
    versioned: bool = False

    @cached_property
    def ranked(self) -> list[tuple[str, Row]]:
        """Returns (tier as shown, row) of all rows that have numbers."""
        first = [(str(number), row) for number, tier in enumerate(self.tiers, 1) for row in tier]
        first += [(bound_sign(row.value(HEADLINE.name), HEADLINE.direction), row) for row in self.bounds]
        first.sort(key=lambda entry: entry[1].value(HEADLINE.name).number)
        return first + [("?", row) for row in self.single] + [("–", row) for row in self.partial]

    @property
    def rows(self) -> list[Row]:
        return [row for _, row in self.ranked] + list(self.failed)

    @property
    def title(self) -> str:
        row, conditions = self.rows[0], self.rows[0].conditions
        version = f"version {conditions.baseline_version}" if self.versioned else ""
        parts = [" ".join(filter(None, (conditions.baseline, version))), conditions.recipe, conditions.size]
        parts += [conditions.task, f"{conditions.steps} steps"]
        parts += [conditions.model] if conditions.model else []
        parts += [f"against {row.reference}"] if row.reference != "baseline" else []
        return " · ".join([*parts, *self.apart])

    @property
    def subtitle(self) -> str:
        """Says the conditions in a sentence."""
        row, conditions = self.rows[0], self.rows[0].conditions
        threads = f"{conditions.threads} thread{'s' if conditions.threads != 1 else ''}"
        where = threads if conditions.device == "cpu" else conditions.device
        older = f" All of it is {of_version(row)}: no newer row is ranked with it." if row.newer_version else ""
        return (
            f"Machine {row.machine.name} ({where}); {conditions.steps} steps of the reference; "
            f"data {conditions.data or 'unknown'}; {conditions.baseline} version {conditions.baseline_version}.{older}"
        )

    @property
    def detectable(self) -> str:
        """Writes a sentence on the smallest change that this board could have seen."""
        effects = sorted(row.detectable_effect for _, row in self.ranked if math.isfinite(row.detectable_effect))
        if not effects:
            return f"No row has an interval of the {HEADLINE.title}, so nothing says how small a change it would show."
        middle, worst = effect_text(effects[len(effects) // 2]), effect_text(effects[-1])
        return (
            f"Smallest change of the {HEADLINE.title} that a row had 80 % power to see: {middle} for the median row, "
            f"{worst} for the least certain one."
        )

    def columns(self) -> list[Metric]:
        """Returns the columns in which some row has a number."""
        return [
            column for column in COLUMNS if any(row.value(column.name).kind != "unavailable" for _, row in self.ranked)
        ]

    def empty_columns(self) -> list[tuple[str, str]]:
        """Returns the (heading, reason) of each column in which no row has a number."""
        filled = self.columns()
        reasons = {
            column.heading: {row.value(column.name).reason for _, row in self.ranked}
            for column in COLUMNS
            if column not in filled and self.ranked
        }
        return [(heading, "; ".join(sorted(of - {*SAID} or of))) for heading, of in reasons.items()]


def boards(rows: Iterable[Row]) -> list[Board]:
    """Sort rows into boards; those of one baseline stand together, of its newest version first."""

    def place(row: Row) -> tuple[Any, ...]:
        c = row.conditions
        newest_first = c.baseline, -c.baseline_version
        return *newest_first, c.recipe, c.size, c.task, row.machine.name, row.reference, row.board[0], row.board[1]

    every = [_board(list(group)) for _, group in groupby(sorted(rows, key=place), key=place)]
    versioned = {board.rows[0].conditions.baseline for board in every if board.rows[0].newer_version}
    every = [replace(board, versioned=board.rows[0].conditions.baseline in versioned) for board in every]
    titled = {board.title: [namesake for namesake in every if namesake.title == board.title] for board in every}
    return [replace(board, apart=_apart(board, titled[board.title])) for board in every]


def _apart(board: Board, alike: Sequence[Board]) -> tuple[str, ...]:
    """Says what differs between boards of one title: as much as it takes."""

    def kinds(one: Board) -> tuple[str, ...]:
        at, machine = one.rows[0].conditions, one.rows[0].machine
        threads = f"{at.threads} threads" if at.device == "cpu" else at.device
        return at.data, machine.name, threads, f"version {at.baseline_version}", at.key

    others = [kinds(namesake) for namesake in alike if namesake is not board]
    parts: list[str] = []
    for index, part in enumerate(kinds(board)):
        if any(other[index] != part for other in others):
            parts.append(part)
            others = [other for other in others if other[index] == part]
    return tuple(parts)


def _board(rows: Sequence[Row]) -> Board:
    places: dict[str, list[Row]] = {"tier": [], "bound": [], "single": [], "partial": [], "failed": []}
    for row in rows:
        places[_place(row)].append(row)
    named = {f"{row.stack}\0{position}": row for position, row in enumerate(places["tier"])}
    intervals = {name: log for name, row in named.items() if (log := row.value(HEADLINE.name).log)}
    return Board(
        tuple(tuple(named[name] for name in tier) for tier in tiers(intervals)),
        tuple(sorted(places["bound"], key=lambda row: row.stack)),
        tuple(sorted(places["single"], key=lambda row: (row.value(HEADLINE.name).number, row.stack))),
        tuple(sorted(places["partial"], key=lambda row: row.stack)),
        tuple(sorted(places["failed"], key=lambda row: row.stack)),
    )


def _place(row: Row) -> str:
    value = row.value(HEADLINE.name)
    if row.failed:
        return "failed"
    if value.kind == "bound":
        return "bound"
    if value.kind != "measured":  # what is modelled is never ranked with what is measured
        return "partial"
    return "tier" if bounded(value.log) else "single"


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
    """Returns the decimals, 2 or 3, that show the interval's half-width."""
    if interval is None or not bounded(interval) or interval.half_width <= 0:
        return 2
    return min(3, max(2, math.ceil(-math.log10(interval.half_width))))


def ends(interval: Interval | None) -> str:
    """Writes the ends, as in ``[0.91, 0.96]``; empty where the ends are not known."""
    if interval is None or not bounded(interval):
        return ""
    digits = decimals(interval)
    return f"[{number(interval.low, digits)}, {number(interval.high, digits)}]"


def shown_interval(value: MetricValue, direction: Direction) -> Interval | None:
    """Returns the interval of the number that is shown: the speedup where higher is better, else the cost ratio."""
    return value.speedup if direction == "higher" else value.interval


def shown_number(value: MetricValue, direction: Direction) -> float:
    return 1 / value.number if direction == "higher" and value.number else value.number


def bound_sign(value: MetricValue, direction: Direction) -> str:
    """Returns the sign of a bound on the number that is shown: the largest cost is the least speedup."""
    return "<" if value.at_most != (direction == "higher") else ">"


def mark(value: MetricValue, direction: Direction) -> str:
    """Returns what stands before the number: = an exact count, ≈ a model's, < or > a bound, × a speedup."""
    kinds = {"exact": "=", "modelled": "≈", "bound": f"{bound_sign(value, direction)} "}
    return kinds.get(value.kind, "") + ("×" if direction == "higher" and value.kind != "exact" else "")


def text(value: MetricValue, direction: Direction) -> str:
    """Writes the number with its interval; an exact one after ``=``; a word where there is none."""
    if value.kind == "missed":
        return "missed"
    if value.kind == "unavailable":
        return "n/a"
    interval = shown_interval(value, direction)
    shown = number(shown_number(value, direction), decimals(interval))
    return f"{mark(value, direction)}{shown} {ends(interval)}".strip()


def leaning(value: MetricValue) -> int:
    """Returns 1 where the value is surely better than the reference's, -1 where it is surely worse, else 0, as of a
    control."""
    if value.control:
        return 0
    if value.kind == "bound":
        log = math.log(value.number) if value.number > 0 else -math.inf
        return 1 if value.at_most and log < 0 else -1 if not value.at_most and log > 0 else 0
    if value.kind == "exact":
        return (value.number < 1) - (value.number > 1)
    if value.kind != "measured" or value.log is None:
        return 0
    return (value.log.high < 0) - (value.log.low > 0)


def reads_as_one(value: MetricValue) -> bool:
    """Tells whether a reader sees no change: what is sure to be less than a thousandth is no news."""
    if value.kind == "exact":
        return number(value.number) == "1.00"
    ends = (value.interval.low, value.interval.high) if value.interval else (math.inf,)
    return all(number(ratio, 3) == "1.000" for ratio in (value.number, *ends))


def quantity(x: float, unit: str) -> str:
    """Writes, as in ``21.2 ms``, ``4.19 MB``, ``200 GFLOP``: three digits and an SI prefix."""
    if len(unit) > 4 or not unit or not math.isfinite(x) or x == 0:
        return f"{x:.4g} {unit}".strip()
    step = max(-3, min(5, math.floor(math.log10(abs(x)) / 3)))
    return f"{x / 1000**step:.3g} {('nµm kMGTP'[step + 3]).strip()}{unit}"


def change(value: MetricValue, unit: str) -> str:
    """Writes, as in ``21.2 ms → 31.8 ms``: the quantities behind the ratio; empty where they are not known."""
    if value.reference is None or value.contender is None:
        return ""
    return f"{quantity(value.reference, unit)} → {quantity(value.contender, unit)}"


def setup_text(row: Row) -> str:
    """Writes the set-up beyond the reference's, in reference steps."""
    steps = round(row.setup.estimate) if row.setup else 0
    return f"{steps:+d}" if steps else "0"


DOING = {"counted": "counting", "learned": "learning", "timed": "timing"}
REPLICATE = {"learned": "seed", "timed": "timing"}


def failure_lines(row: Row, longest: int = 160) -> list[str]:
    """Writes a line for each way in which runs failed: ``out of memory while learning (seeds 0, 1): reason``."""
    ways: dict[tuple[str, str, str, str], list[str]] = {}
    for failure in row.failures:
        numbers = [] if failure.replicate is None else [str(failure.replicate)]
        ways.setdefault((failure.kind, failure.stack, failure.status, failure.reason), []).extend(numbers)
    lines = []
    for (kind, stack, status, reason), replicates in ways.items():
        who = f"the reference {stack}: " if stack != row.stack else ""
        short = reason if len(reason) <= longest else reason[: longest - 1] + "…"
        plural = "s" if len(replicates) > 1 else ""
        which = f" ({REPLICATE.get(kind, kind)}{plural} {', '.join(replicates)})" if replicates else ""
        doing = f" while {DOING.get(kind, kind)}{which}"
        lines.append(f"{who}{status.replace('_', ' ')}{doing}{': ' if short else ''}{short}")
    return lines


def unverified_text(row: Row) -> str:
    """Writes, as in ``unverified: learned, timed``: the kinds of evidence whose code changed since; empty where none
    did."""
    return f"unverified: {', '.join(row.unverified)}" if row.unverified else ""


def unverified_sentence(rows: int) -> str:
    """Says what the mark † says, and what to do about it."""
    return (
        f"† unverified, {rows} of the rows: evidence of code that changed since; each row says which. "
        "leantrain run verifies it: one short run that repeats to the bit renews all that was learned."
    )


def version_text(row: Row) -> str:
    """Returns ``version 2`` of a row of an older version of its baseline, by which it is told from others; else
    empty."""
    return f"version {row.conditions.baseline_version}" if row.newer_version else ""


def older_sentence(rows: Iterable[Row]) -> str:
    """Says how many rows are of which older versions, on which machines, and what about it; empty where none is."""
    older = [row for row in rows if row.newer_version]
    if not older:
        return ""
    versions = sorted({f"{row.conditions.baseline} {version_text(row)} (now {row.newer_version})" for row in older})
    where = sorted({row.machine.name for row in older})
    return (
        f"{how_many(len(older), noun='row')} of an older version of a baseline: {', '.join(versions)}, made on "
        f"{', '.join(where)}. They are ranked with no row of the newer version, and kept until there is one: "
        "leantrain run measures it."
    )


def missing(row: Row) -> str:
    """Writes a sentence on the evidence that the row lacks, with the command that measures it; empty where it has
    all."""
    failed = {failure.kind for failure in row.failures}
    known = row.known
    lacks = [
        what
        for what, lacking in (
            ("counts", not all(known.counted) and "counted" not in failed),
            ("learned runs", not known.learned and "learned" not in failed),
            ("timings", not known.timed and "timed" not in failed),
        )
        if lacking
    ]
    if lacks and row.newer_version:
        return f"missing: {', '.join(lacks)}; only version {row.newer_version} can be measured now"
    command = f"leantrain compare {shlex.join([row.stack, row.reference])} {_options(row)}"
    if known.ruler is None:
        lacks.append("the reference's scaling curve")
        command += " --ruler 3"
    return f"missing: {', '.join(lacks)}; measure with: {command}" if lacks else ""


def _options(row: Row) -> str:
    """Returns the options that name the row's setting; what is usual is left out, its baseline and steps never."""
    at, usual = row.conditions, Setting(baseline="")
    options = {
        "--recipe": "recipe",
        "--size": "size",
        "--task": "task",
        "--model": "model",
        "--device": "device",
        "--threads": "threads",
    }
    chosen = {
        option: getattr(at, name) for option, name in options.items() if getattr(at, name) != getattr(usual, name)
    }
    return shlex.join(
        ["-b", at.baseline, *(str(word) for pair in chosen.items() for word in pair), "--steps", str(at.steps)]
    )


NEUTRAL_NOTES = ("the reference read off its scaling curve",)
SAID = (NOT_TIMED, NOT_LEARNED, NO_RULER)  # once, by :func:`missing`


def remarks(row: Row, columns: Sequence[Metric]) -> list[str]:
    """List what a row's numbers do not say, worst first."""
    unverified = [f"{unverified_text(row)}, since the code changed"] if row.unverified else []
    sentences = [*unverified, *failure_lines(row)]
    if row.failed:
        return sentences
    sentences += [*row.notes, *filter(None, [missing(row)])]
    about: dict[str, list[str]] = {}
    for column in columns:
        value = row.value(column.name)
        words = value.reason if value.kind in ("missed", "unavailable") else value.note
        if words and words not in (*SAID, *NEUTRAL_NOTES, f"curve learned on {row.machine.name}"):
            about.setdefault(words, []).append(column.heading)
    return sentences + [f"{' and '.join(headings)}: {words}" for words, headings in about.items()]


def replicates_text(row: Row, kind: str, known: int) -> str:
    """Writes ``3``, or ``2 of 3`` where one failed."""
    tried = known + len({failure.replicate for failure in row.failures if failure.kind == kind})
    return str(tried) if tried == known else f"{known} of {tried}"


def seeds_text(row: Row) -> str:
    """Says how many seeds were learned from."""
    return replicates_text(row, "learned", len(row.seeds))


def timings_text(row: Row) -> str:
    """Sets of processes that were timed."""
    return replicates_text(row, "timed", len(row.known.timed))


THREEFOLD = math.log(3)
"""Where so large a change would not have shown, it does not matter which one would have."""


def effect_text(log_effect: float) -> str:
    """Writes, as in ``1.9%``, ``×2.4``, ``over ×3``: the smallest change that would have shown."""
    if log_effect > THREEFOLD:
        return "over ×3"
    return f"{math.expm1(log_effect):.1%}" if log_effect < math.log(2) else f"×{math.exp(log_effect):.1f}"


def detectable_text(row: Row) -> str:
    """Writes the smallest change of the headline that the row could have seen: ``1.9%``; empty where none says."""
    return effect_text(row.detectable_effect) if math.isfinite(row.detectable_effect) else ""


def against_text(row: Row) -> str:
    """Writes, for example, ``against baseline on gpt nano (modern, pretrain)``."""
    at = row.conditions
    return f"against {row.reference} on {at.baseline} {at.size} ({at.recipe}, {at.task})"


@dataclass(frozen=True)
class Summary:
    """Holds what the head of a leaderboard says of all rows."""

    rows: int
    records: int
    machines: tuple[tuple[str, str], ...]  # (name, facts)
    newest: str
    evidence: str
    unverified: int

    @property
    def sentence(self) -> str:
        return (
            f"{how_many(self.rows, noun='row')} from {how_many(self.records, noun='record')}, {self.evidence} a row, "
            f"newest {self.newest}."
        )


def summarised(rows: Sequence[Row]) -> Summary:
    alive = [row for row in rows if not row.failed]
    seeds, timings = {len(row.seeds) for row in alive}, {len(row.known.timed) for row in alive}
    return Summary(
        rows=len(rows),
        records=len({record for row in rows for record in row.records}),
        machines=tuple(sorted({(row.machine.name, machine_line(row.machine.facts)) for row in rows})),
        newest=max((row.newest for row in rows), default="")[:10],
        evidence=f"{how_many(*sorted(seeds))} and {how_many(*sorted(timings), noun='timing')}",
        unverified=sum(bool(row.unverified) for row in rows),
    )


def how_many(*counts: int, noun: str = "seed") -> str:
    """Writes ``1 seed``, ``3 seeds``, ``1 to 5 seeds``, ``no seeds``."""
    if not any(counts):
        return f"no {noun}s"
    span = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else str(counts[0])
    return f"{span} {noun}{'' if counts[-1] == 1 else 's'}"


def evidence_text(row: Row) -> str:
    """Writes, for example, ``3 seeds, 3 timings``."""
    return f"{how_many(len(row.seeds))}, {how_many(len(row.known.timed), noun='timing')}"


HOW_TO_READ = (
    "Every number is a ratio to the reference, paired in time or seed: 1 is no change. ↑ higher is better (a speedup), "
    "↓ lower is better (a cost). Brackets hold 95 % intervals over seeds or sets of processes, whose variance the rows "
    "of a board share.",
    "Time to the same quality is the headline: how long the reference would have to train to end at the technique's "
    "test loss, read off the reference's own scaling curve, over the technique's own time, set-up included. Techniques "
    "of one tier cannot be told apart by it; ? no interval, – not known. < and > are bounds: the loss lies beyond the "
    "ends of the curve.",
    "= an exact count, the same in every run; ≈ a model's number, never ranked with measured ones; n/a unavailable, "
    "never 0; missed: diverged. The reasons stand below each table.",
    "Step time is of one own step, training time of the whole schedule, equivalent budget in the reference's steps, "
    "loss at equal time against the reference's at that time on its curve, FLOPs of the whole training (without "
    "zeros: of the masked matrices alone, for a kernel that skips their zeros, beside the time that dense ones took),"
    " set-up in steps of the reference beyond the reference's own. Seeds are those that learned, timings the sets of "
    "processes that were timed; sees: the smallest change of the headline that the row had 80 % power to see.",
)


TELLING = ("cpu_family", "cpu_model", "cpu_stepping", "instruction_sets", "caches_kib", "nominal_mhz", "blas")
"""Facts that an older version did not record, so that its machines may be any of their name."""


def machine_line(facts: Mapping[str, Any]) -> str:
    """Writes the known facts of a machine in one line, and which of those that tell CPUs apart were not recorded."""
    gpu = facts.get("gpu") or {}
    which = " ".join(
        f"{name} {facts[f'cpu_{name}']}"
        for name in ("family", "model", "stepping")
        if facts.get(f"cpu_{name}") is not None
    )
    caches = facts.get("caches_kib") or {}
    parts = [
        f"{gpu.get('count')} × {' and '.join(map(str, gpu.get('names', ())))}" if gpu else "",
        f"driver {gpu.get('driver')}" if gpu else "",
        " ".join(filter(None, (str(facts.get("cpu") or "unknown CPU"), which))),
        f"{facts.get('cores')} cores",
        f"{facts['nominal_mhz']} MHz by {facts.get('nominal_mhz_from')}" if facts.get("nominal_mhz") else "",
        f"caches {', '.join(f'{name} {kib} KiB' for name, kib in caches.items())}" if caches else "",
        f"instructions {' '.join(facts['instruction_sets'])}" if facts.get("instruction_sets") else "",
        f"{facts['memory_gib']} GiB" if facts.get("memory_gib") else "",
        str(facts.get("system") or ""),
        f"torch {facts['torch']}" if facts.get("torch") else "",
        " and ".join(filter(None, (str(facts.get("blas") or ""), str(facts.get("code_path") or "")))),
    ]
    line = ", ".join(filter(None, parts))
    untold = unrecorded(facts, dict.fromkeys(TELLING))
    end = f"; not recorded: {', '.join(untold)}, so pooled with no machine of which that is known"
    return f"{line}{end if untold else ''}"
