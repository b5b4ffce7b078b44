"""Gives the answer first: every technique in one line, by baseline the time to the same quality, then what else it
costs.

Colour, bold type and words follow the intervals: what may be chance is called so. Techniques are grouped by what they
sell, and judged by that alone: what they take for it is their price. In a group one stands above another where it
surely helps on more of the columns, then where its mean speedup is larger: an order to read in, no ranking, which is
each board's.

A cell shows the newest version of its baseline that says something of the technique. Where only an older one does, that
stands there and is called by its version, and is compared with no newer row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, get_args

from suite.entries.card import Good
from suite.judge.metrics import METRICS, Metric, MetricValue
from suite.judge.rows import Row
from suite.judge.statistics import Interval, false_alarm_interval
from suite.judge.verdicts import NOT_EXERCISED
from suite.record.job import Spelling
from suite.show.pages.board import HEADLINE, THREEFOLD, bounded, leaning, number, version_text

COSTS = tuple(METRICS[name] for name in ("peak_tensor_bytes", "training_flops", "energy"))
"""The further columns: each the range over the technique's rows."""

SCOPE = (
    "Time to the same quality as a speedup over each technique's reference, with its 95 % interval; bold where that "
    "excludes 1. The other columns are costs, over all of a line's rows; below 1 is less."
)


def scope(rows: Iterable[Row]) -> str:
    """Says what all of it is of, in a sentence: models, steps, hardware, rates."""
    known = [row for row in rows if not row.failed]
    sizes = _listed(sorted({f"{row.conditions.model or row.conditions.size} models" for row in known}))
    steps = sorted({row.conditions.steps for row in known})
    spread = f"{steps[0]} to {steps[-1]} steps" if len(steps) > 1 else f"{steps[0]} steps" if steps else "no steps"
    where = _listed(
        sorted({"the CPU" if row.conditions.device == "cpu" else f"{row.conditions.device} GPU" for row in known})
    )
    tuned, asked = sum(row.to_tune and not row.tuning_open for row in known), sum(row.to_tune for row in known)
    rates = f"learning rates tuned in {tuned} of the {asked} rows whose card asks for it" if asked else "rates as given"
    return f"Scope: {sizes} trained for {spread} on {where}; {rates}."


def standing(rows: Iterable[Row]) -> str:
    """Says in two sentences of which models and hardware all of it is, and what of it carries over."""
    known = [row for row in rows if not row.failed]
    counted = [row.known.counted[0] for row in known]
    sizes = sorted(point.counters.parameter_count / 1e6 for side in counted if side for point in side.points)
    models = f"models of {sizes[0]:.1f} to {sizes[-1]:.1f} million parameters" if sizes else "small models"
    cores = sorted(
        {"a GPU" if row.conditions.device != "cpu" else _cores(row.machine.facts.get("threads", 1)) for row in known}
    )
    return (
        f"All rows are of {models}, with {' or '.join(cores)} for each process. Bytes and FLOPs are exact, and can be "
        "counted at any size; times and quality are of these models, and say little of larger ones."
    )


def _cores(threads: int) -> str:
    return "one CPU core" if threads == 1 else f"{threads} CPU cores"


BLIND = math.log(1.3)
"""Where so large a change, as a logarithm, would not have shown, that none was seen says nothing."""

WORTH_A_WORD = 0.05
"""A cost that changes by less in every row is not spoken of."""


@dataclass(frozen=True)
class MatrixEntry:
    """Holds one technique or stack. ``cells`` are its rows by column, the best known one first; ``versions`` by column
    say that a cell is of an older version than its column's title says."""

    stack: str
    cells: Mapping[str, Sequence[Row]]
    single_recipe: bool = field(repr=False)
    versions: Mapping[str, str] = field(default_factory=dict)
    good: Good | None = None

    @property
    def best(self) -> dict[str, Row]:
        """Returns the row that each column shows."""
        return {column: rows[0] for column, rows in self.cells.items()}

    def cost(self, metric: str) -> str:
        """Writes, as ``=0.64``, ``0.64–0.71``: the range of a cost over the rows that know it; ≈ where one is
        modelled."""
        values = [value for row in self.best.values() if (value := row.value(metric)).known]
        if not values:
            return ""
        kinds = {value.kind for value in values}
        sign = "≈" if "modelled" in kinds else "=" if kinds == {"exact"} else ""
        low, high = (number(of(value.number for value in values)) for of in (min, max))
        return f"{sign}{low}" if low == high else f"{sign}{low}–{high}"

    @property
    def balance(self) -> int:
        """Counts the columns in which it surely helps less those in which it surely harms."""
        return sum(map(surely, self.best.values()))

    @property
    def place(self) -> tuple[bool, int, float, str]:
        """Returns its place, where the least stands first: where something is known, by :attr:`balance`, then by the
        mean speedup."""
        values = [row.value(HEADLINE.name) for row in self.best.values()]
        costs = [math.log(value.number) for value in values if value.kind in ("measured", "bound") and value.number > 0]
        return not costs, -self.balance, sum(costs) / len(costs) if costs else 0.0, self.stack

    @property
    def saves(self) -> Saving:
        """Returns what it is grouped by: what it sells; of a stack, the first of these that it saves, memory and FLOPs
        in every row. A control sells nothing here, whatever it sells elsewhere."""
        if all(row.known.does_the_same for row in self.best.values()):
            return "control"
        if self.good is not None:
            return "split" if self.split_over > 1 else self.good
        if "better" in self.verdicts:
            return "time"
        costs: Mapping[str, Saving] = {"peak_tensor_bytes": "memory", "training_flops": "FLOPs"}
        if self.split_over > 1:  # each of several ranks has less, and all of them together do not
            return "split"
        return next((saving for metric, saving in costs.items() if self._changes(metric) < 0), "nothing")

    @property
    def split_over(self) -> int:
        """Returns the most ranks that share the work of one process of the reference."""
        return max(row.split_over for row in self.best.values())

    @property
    def hardware(self) -> str:
        """Returns, for example, ``on two cores``: of a technique that has more than its reference; else empty."""
        return max((hardware(row) for row in self.best.values()), key=len)

    @property
    def mean(self) -> MetricValue | None:
        """Computes the geometric mean of the headline over the columns; None where fewer than two, or not all, have
        intervals.

        The half-width is that of independent columns: the root of the sum of squares, over their number.
        """
        values = [row.value(HEADLINE.name) for row in self.best.values()]
        logs = [value.log for value in values if value.kind == "measured" and value.log and bounded(value.log)]
        alike = {(row.reference, row.machine.key, bool(row.newer_version)) for row in self.best.values()}
        if len(logs) < 2 or len(logs) < len(values) or len(alike) > 1:
            return None
        middle = sum(log.estimate for log in logs) / len(logs)
        half = math.hypot(*(log.half_width for log in logs)) / len(logs)
        interval = Interval(middle, middle - half, middle + half, logs[0].level, "over baselines", len(logs))
        return MetricValue("measured", math.exp(middle), interval)

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """Returns what its columns say of what it sells: better is better somewhere and worse nowhere, on equal
        hardware."""
        said = {verdict(row, self.good) for row in self.best.values()}
        if {"better", "worse"} <= said:
            return ("mixed",)
        for word in ("better", "worse", MORE):
            if word in said:
                return (word,)
        return (next(iter(said)),) if len(said) == 1 else ("undecided",)

    def _changes(self, metric: str) -> int:
        """Returns -1 where every row has less of it, by more than is not worth a word, 1 where every row has more; else
        0."""
        numbers = [value.number for row in self.best.values() if (value := row.value(metric)).known]
        less, more = (
            bool(numbers) and all(sign * (number - 1) > WORTH_A_WORD for number in numbers) for sign in (-1, 1)
        )
        return more - less

    @property
    def answer(self) -> str:
        """Says what the headline says, in words, with what could have been seen where nothing was."""
        return self._said(self._seen)

    def _said(self, seen: Callable[[str], str]) -> str:
        said: dict[str, list[str]] = {}
        shared = self._shared_version
        single_size = len({row.conditions.size for row in self.best.values()}) == 1
        for column, row in self.best.items():
            at = row.conditions
            where = at.baseline if self.single_recipe else f"{at.baseline} {at.recipe}"
            where += "" if single_size else f" {at.size}"
            where += f" ({self.versions[column]})" if column in self.versions and not shared else ""
            said.setdefault(headline_in_words(row).replace(MORE, FASTER), []).append(where)
        parts = [f"{words} on {_listed(said[words])}{seen(words)}" for words in WORDS if words in said]
        text = "; ".join(parts or [UNKNOWN])
        text = f"{self.hardware}: {text}" if self.hardware else text
        text += f" (all {shared})" if shared else ""
        return f"{text[:1].upper()}{text[1:]}"

    @property
    def sentence(self) -> str:
        """Writes the answer, and what costs change by in every row."""
        return self._with_costs(self.answer)

    @property
    def brief(self) -> str:
        """Returns the sentence without what could have been seen."""
        return self._with_costs(self._said(lambda words: ""))

    def _with_costs(self, answer: str) -> str:
        costs = list(filter(None, (self._cost_in_words(metric) for metric in COSTS)))
        where = " on each rank" if self.split_over > 1 else ""
        return f"{answer}; {' and '.join(costs)}{where}." if costs else f"{answer}."

    @property
    def _shared_version(self) -> str:
        """Returns the older version that several columns all show; else empty."""
        said = {self.versions.get(column, "") for column in self.best}
        return said.pop() if len(said) == 1 and len(self.best) > 1 else ""

    def _seen(self, words: str) -> str:
        """Says the smallest change that all of the rows without a difference would have shown."""
        of_these = self.best.values() if words in (ALIKE, UNSURE) else ()
        rows = [row for row in of_these if headline_in_words(row) == words]
        seen = [row.detectable_effect for row in rows if math.isfinite(row.detectable_effect)]
        if not seen:
            return ""
        least = max(seen)
        if words == ALIKE:
            return f", where one of {math.expm1(least):.0%} or more would have shown"
        return f", where only a change of {number(math.exp(least), 1)} times or more would have shown"

    def _cost_in_words(self, metric: Metric) -> str:
        """Writes, for example, ``0.54–0.62 of the memory``; empty where some row hardly changes it, or one more and
        another less."""
        changes = self._changes(metric.name)
        words = f"{self.cost(metric.name).lstrip('=')} {'of' if changes < 0 else 'times'} the {SPOKEN[metric.name]}"
        return words if changes else ""


Saving = Good | Literal["split", "control", "nothing"]
GROUPS: Mapping[Saving, str] = {
    "time": "Time: sooner at the same quality",
    "memory": "Memory",
    "FLOPs": "FLOPs",
    "trainable parameters": "Cheap fine-tuning: fewer trained parameters",
    "communication": "Traffic: less communication",
    "robustness": "Robustness or quality",
    "split": "On more hardware than the reference",
    "control": "Controls: the reference to the bit, by another name",
    "nothing": "Saves none of these, as far as is known",
}
"""What techniques sell, in the order in which they stand."""

SOLD_AS: Mapping[Good, str] = {
    "memory": "peak_tensor_bytes",
    "FLOPs": "training_flops",
    "trainable parameters": "trainable_parameter_count",
    "communication": "communication_bytes",
    "robustness": "equivalent_budget",
}
"""The metric by which what is sold is judged; time by the headline."""

Verdict = Literal[
    "better", "worse", "undecided", "failed", "mixed", "control", "not exercised", "sooner on more hardware"
]
MORE: Verdict = "sooner on more hardware"
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
RARE: tuple[Verdict, ...] = ("mixed", "control", NOT_EXERCISED, MORE)
"""Spoken of where there is one. ``mixed``: better somewhere and worse elsewhere."""

OLDER = "‡"
"""Behind a number of an older version of its baseline."""

SPOKEN = {"peak_tensor_bytes": "memory", "training_flops": "FLOPs", "energy": "energy"}
FASTER, SLOWER, ALIKE, UNSURE = "sooner", "later", "no difference seen", "too uncertain to tell"
NOISY = "too noisy to see even a threefold change"
CONTROL = "a control, which does what its reference does,"
MISSED, FAILED, UNKNOWN = "diverged", "failed", "not known yet"
WORDS = (FASTER, SLOWER, ALIKE, CONTROL, NOT_EXERCISED, UNSURE, NOISY, MISSED, FAILED)


def verdict(row: Row, good: Good | None = None) -> Verdict:
    """Returns what one row says of what is sold, of a stack of the headline."""
    words: Mapping[str, Verdict] = {
        FAILED: "failed",
        MISSED: "failed",
        CONTROL: "control",
        NOT_EXERCISED: "not exercised",
    }
    said = headline_in_words(row)
    if said in words:
        return words[said]
    if good is None or good == "time":
        by_time: Mapping[str, Verdict] = {FASTER: "better", SLOWER: "worse", MORE: MORE}
        return by_time.get(said, "undecided")
    value = row.value(SOLD_AS[good])
    noticed = value.kind != "exact" or abs(value.number - 1) > WORTH_A_WORD
    lean = leaning(value) if noticed else 0
    if lean > 0 and row.split_over > 1:
        return "undecided"  # each of several ranks has less, and all of them together do not
    return "better" if lean > 0 else "worse" if lean < 0 else "undecided"


def false_alarms(rows: Iterable[Row]) -> tuple[int, int]:
    """Counts how many of the headlines of controls exclude 1, which is chance, and of how many: each is of its own
    timings, as a row's other times are not."""
    values = [row.value(HEADLINE.name) for row in rows]
    logs = [value.log for value in values if value.control and value.log and bounded(value.log)]
    return sum(not log.contains(0.0) for log in logs), len(logs)


def alarms_in_words(rows: Sequence[Row]) -> str:
    """Writes sentences on the controls, those of the baselines' current versions first; empty where there is none."""
    controls = [row for row in rows if row.known.does_the_same]
    current = [row for row in controls if not row.newer_version]
    if not controls:
        return ""
    alarms, of = false_alarms(current)
    former_alarms, former = false_alarms(row for row in controls if row.newer_version)
    words = f"Controls, rows that are their reference to the bit: {len(current)} of the baselines' current versions. "
    if of:
        words += f"{alarms} of their {of} headlines exclude 1, {_rate(alarms, of)}."
    else:
        stacks = " ".join(f"-t {stack}" for stack in sorted({row.stack for row in current}))
        measure = f"; leantrain run {stacks} --timings 3 measures it" if stacks else ""
        words += f"None has an interval, so this board's own rate of false alarms is not known{measure}."
    if former:
        words += f" Of older versions, {former_alarms} of {former} headlines do, {_rate(former_alarms, former)}."
    return words


def _rate(alarms: int, of: int) -> str:
    share = false_alarm_interval(alarms, of)
    return f"a false-alarm rate of {alarms / of:.0%} [{share.low:.0%}, {share.high:.0%}], where 5 % is meant"


def headline_in_words(row: Row) -> str:
    """Returns one of :data:`WORDS`, :data:`MORE`, or that it is not known yet."""
    value: MetricValue = row.value(HEADLINE.name)
    if row.failed:
        return MISSED if value.kind == "missed" else FAILED
    if value.kind == "missed":
        return MISSED
    if row.inactive:
        return NOT_EXERCISED
    if value.control:
        return CONTROL
    unbounded = value.log is not None and not math.isfinite(value.log.half_width)
    if value.kind not in ("measured", "bound") or unbounded:
        return UNKNOWN
    effect = row.detectable_effect
    alike = ALIKE if effect <= BLIND else UNSURE if effect <= THREEFOLD else NOISY
    return {1: MORE if row.split_over > 1 else FASTER, -1: SLOWER, 0: alike}[leaning(value)]


def older_in_words(entries: Iterable[MatrixEntry]) -> str:
    """Writes what :data:`OLDER` says behind numbers of these; empty where it stands behind none."""
    older = sorted({version for entry in entries for version in entry.versions.values()})
    return f"{OLDER} {' or '.join(older)} of the baseline, not the newest" if older else ""


def word_without_number(row: Row) -> str:
    """Returns what stands in the place of a headline that there is none of."""
    if row.inactive:
        return NOT_EXERCISED
    value = row.value(HEADLINE.name)
    return "failed" if row.failed and value.kind == "unavailable" else "missed" if value.kind == "missed" else "n/a"


def surely(row: Row) -> int:
    """Returns 1 where the row is surely sooner than its reference on as much hardware, -1 where it is surely later,
    else 0: what several ranks do sooner than one process is no better for that."""
    lean = leaning(row.value(HEADLINE.name))
    return min(lean, 0) if row.split_over > 1 else lean


def hardware(row: Row) -> str:
    """Writes, for example, ``on two cores against one``; empty where the row has no more than its reference."""
    if row.split_over == 1:
        return ""
    per_rank = row.conditions.threads if row.conditions.device == "cpu" else 1
    fewer, more = (ranks * per_rank for ranks in row.ranks)
    what = "cores" if row.conditions.device == "cpu" else "GPUs"
    return f"on {NUMBERS.get(more, more)} {what} against {NUMBERS.get(fewer, fewer)}"


NUMBERS = {1: "one", 2: "two", 3: "three", 4: "four", 8: "eight"}


def _listed(places: Iterable[str]) -> str:
    *first, last = dict.fromkeys(places) or ("nothing",)
    return f"{', '.join(first)} and {last}" if first else last


Place = tuple[str, str, str, str]
"""Recipe, size, model and machine."""


@dataclass(frozen=True)
class Matrix:
    """Holds the matrix, whose ``columns`` are in order, ``shared`` is what they have in common. ``entries`` stand in
    groups, in each those that help most surely first. ``older``: by column the older version that all of it is of."""

    columns: tuple[str, ...]
    shared: str
    entries: tuple[MatrixEntry, ...]
    older: Mapping[str, str] = field(default_factory=dict)

    def title(self, column: str) -> str:
        """Returns the column's name, with the version that all of it is of where that is an older one."""
        return f"{column} {self.older[column]}" if column in self.older else column

    def count(self, wanted: Verdict) -> int:
        """Counts the techniques of which some column, or nothing better, says so."""
        return sum(wanted in entry.verdicts for entry in self.entries)

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """Returns the verdicts that a reader may choose among."""
        return tuple(verdict for verdict in VERDICTS if verdict not in RARE or self.count(verdict))

    @property
    def tally(self) -> str:
        """Writes, for example, ``2 better, 1 worse, 0 undecided, 0 failed``."""
        return ", ".join(f"{self.count(verdict)} {verdict}" for verdict in self.verdicts)

    @property
    def groups(self) -> list[tuple[str, list[MatrixEntry]]]:
        """Returns the (title, entries) of each group that has any."""
        by_saving = {saving: [entry for entry in self.entries if entry.saves == saving] for saving in GROUPS}
        return [(GROUPS[saving], entries) for saving, entries in by_saving.items() if entries]

    @property
    def answers(self) -> list[Answer]:
        """Finds for each column the best for time and for memory, and one that does not help."""
        return [
            _answer(column, [entry.best[column] for entry in self.entries if column in entry.best])
            for column in self.columns
        ]


@dataclass(frozen=True)
class Answer:
    """Holds what one column answers, and in it of the version and machine of the most headlines.

    ``time``: surely sooner, the largest speedup first. ``memory``: the smallest peak that saves some and learned.
    ``no_help``: surely later, and it saves neither memory nor FLOPs. ``decided``: whether any row has an interval.
    ``version``: which one it is, where it is an older one.
    """

    column: str
    time: Sequence[Row]
    memory: Row | None
    no_help: Row | None
    decided: bool
    version: str = ""


def _answer(column: str, shown: Sequence[Row]) -> Answer:
    groups: dict[tuple[int, str], list[Row]] = {}
    for row in shown:
        groups.setdefault((row.conditions.baseline_version, row.machine.key), []).append(row)
    rows = groups[max(groups, key=lambda group: (sum(map(_has_headline, groups[group])), group))]

    def headline(row: Row) -> MetricValue:
        return row.value(HEADLINE.name)

    def share(row: Row, metric: str) -> float:
        value = row.value(metric)
        return value.number if value.known else math.inf

    sooner = sorted((row for row in rows if surely(row) > 0), key=lambda row: headline(row).number)
    learned = [row for row in rows if not row.failed and headline(row).kind != "missed"]
    alone = [row for row in learned if row.split_over == 1]
    smaller = [row for row in alone if share(row, "peak_tensor_bytes") < 1 - WORTH_A_WORD]
    saves_none = [
        row
        for row in rows
        if leaning(headline(row)) < 0
        and min(share(row, metric) for metric in ("peak_tensor_bytes", "training_flops")) >= 1 - WORTH_A_WORD
    ]
    return Answer(
        column,
        sooner,
        min(smaller, key=lambda row: (share(row, "peak_tensor_bytes"), row.stack), default=None),
        max(saves_none, key=lambda row: (headline(row).number, row.stack), default=None),
        any(headline_in_words(row) in (FASTER, MORE, SLOWER, ALIKE) for row in rows),
        version_text(rows[0]),
    )


def place_of(row: Row) -> Place:
    """Returns what a reader chooses. Rows of one place have one matrix."""
    at = row.conditions
    return at.recipe, at.size, at.model or "", row.machine.key


def _has_headline(row: Row) -> bool:
    return row.value(HEADLINE.name).kind in ("measured", "bound")


def parts(rows: Iterable[Row]) -> dict[Place, list[Row]]:
    """Returns the rows of each matrix by its place; the one that is shown first stands first: that of the most rows
    with a headline, of equal ones the modern recipe's.

    Rows of an older version, whose machine may be another, stand in the matrix of their recipe, size and model that has
    the most headlines of the newest version, and fill its gaps; where there is none of that, in one by themselves.
    """
    by_place: dict[Place, list[Row]] = {}
    older: dict[Place, list[Row]] = {}
    for row in rows:
        (older if row.newer_version else by_place).setdefault(place_of(row), []).append(row)

    def worth(place: Place) -> tuple[int, bool, str]:
        return sum(map(_has_headline, by_place[place])), place[0] == "modern", place[3]

    homes: dict[Place, Place] = {}
    for place in older:
        alike = [candidate for candidate in by_place if candidate[:3] == place[:3]]
        homes[place] = max(alike, key=worth, default=place)
    for place, home in homes.items():
        by_place.setdefault(home, []).extend(older[place])
    chosen = max(by_place, key=worth, default=None)
    return {place: by_place[place] for place in sorted(by_place, key=lambda place: (place != chosen, place))}


def first(rows: Iterable[Row]) -> list[Row]:
    """Returns the rows of the matrix that is shown first; none where there are none."""
    return next(iter(parts(rows).values()), [])


def matrix(rows: Iterable[Row], goods: Mapping[str, Good] = MappingProxyType({})) -> Matrix:
    """Builds the matrix of all rows; ``goods``: what techniques sell, by their stack."""
    known = list(rows)
    title, shared = _titles(known)
    columns = sorted({title(row) for row in known})
    single = len({row.conditions.recipe for row in known}) < 2
    cells: dict[str, dict[str, list[Row]]] = {}
    for row in sorted(known, key=_preference):
        cells.setdefault(row.stack, {}).setdefault(title(row), []).append(row)
    for of_stack in cells.values():
        for rows_of_cell in of_stack.values():
            shown = max(
                rows_of_cell, key=lambda row: (headline_in_words(row) != UNKNOWN, row.conditions.baseline_version)
            ).conditions.baseline_version
            rows_of_cell.sort(
                key=lambda row: (row.conditions.baseline_version != shown, -row.conditions.baseline_version)
            )
    shown_versions: dict[str, set[str]] = {}
    for of_stack in cells.values():
        for column, rows_of_cell in of_stack.items():
            shown_versions.setdefault(column, set()).add(version_text(rows_of_cell[0]))
    older = {column: next(iter(said)) for column, said in shown_versions.items() if len(said) == 1 and "" not in said}
    entries = []
    for stack, of in cells.items():
        versions = {column: version_text(rows_of_cell[0]) for column, rows_of_cell in of.items() if column not in older}
        here = {column: of[column] for column in columns if column in of}
        of_cells = {column: version for column, version in versions.items() if version}
        entries.append(MatrixEntry(stack, here, single, of_cells, sold(stack, goods)))
    order = list(GROUPS)
    entries.sort(key=lambda entry: (order.index(entry.saves), entry.place))
    return Matrix(tuple(columns), shared, tuple(entries), older)


def sold(stack: str, goods: Mapping[str, Good]) -> Good | None:
    """Returns what a stack of one technique sells; None of several, which have no card."""
    names = Spelling(stack).names
    return goods.get(names[0]) if len(names) == 1 else None


def _preference(row: Row) -> tuple[bool, bool, bool, int, int, str]:
    """Returns a row's sort key, of which the least is shown first: what has numbers, of the installed code, with the
    most evidence."""
    return (
        row.failed,
        not _has_headline(row),
        bool(row.unverified),
        -len(row.known.timed),
        -len(row.seeds),
        row.reference,
    )


def _titles(rows: Sequence[Row]) -> tuple[Callable[[Row], str], str]:
    """Tells how a row's column is called: its baseline, and of recipe, size, model and machine those in which rows
    differ. And what all have in common. A row of an older version fills the gaps of the newer one's machine, where that
    is one.
    """
    machines = {row.machine.key: row.machine.name for row in rows}
    newest = {row.machine.key for row in rows if not row.newer_version}

    def parted(row: Row) -> tuple[str, ...]:
        at = row.conditions
        key = next(iter(newest)) if row.newer_version and len(newest) == 1 else row.machine.key
        return at.recipe, at.size, at.model or "", machines[key]

    values = [set(aspect) for aspect in zip(*map(parted, rows), strict=True)]

    def title(row: Row) -> str:
        differing = [part for part, value in zip(parted(row), values, strict=True) if len(value) > 1]
        return " ".join(filter(None, (row.conditions.baseline, *differing)))

    elsewhere = {
        f"{version_text(row)} on {row.machine.name}"
        for row in rows
        if row.newer_version and len(newest) == 1 and row.machine.key not in newest
    }
    shared = [next(iter(value)) for value in values if len(value) == 1]
    return title, " · ".join(filter(None, (*shared, *sorted(elsewhere))))
