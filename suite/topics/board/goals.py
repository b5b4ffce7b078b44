"""Makes the board's tables: one for each goal, a line a technique that sells it, seven cells a line.

A cell holds one value and at most one interval. Its form says where the value comes from: ``exact`` is counted,
``measured`` has an interval in brackets, ``modelled`` is slanted with the band that it is believed in, ``others`` is
published, with the size of the model. What is not known is empty, and the verdict says why.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import Literal

from suite.entries.card import Card, Good
from suite.judge.helps import WORDS, Gain, Helps, gain_of, helps, mean_gain, withheld
from suite.judge.rows import Row
from suite.judge.trend import in_words as trend_in_words
from suite.judge.trend import trend
from suite.record.job import BASELINE, RecipeName, Size, Spelling
from suite.record.paper_scale import Beside
from suite.show.amounts_in_words import amount
from suite.show.pages.board import number
from suite.topics.at_scale.paper_scale_on_page import with_band
from suite.topics.board.standing import Standing
from suite.topics.modelled_time.gpu_times import ModelledTime
from suite.topics.models.models_on_board import ended, line_of
from suite.topics.published_quality.judged_quality import quality_by_others
from suite.topics.published_quality.quality_on_page import in_millions
from suite.topics.published_quality.quality_on_page import sentence as by_others_in_words

MOST_SHOWN = 10
ROUNDING = 1e-3
"""An equivalent budget, as a logarithm, that is no nearer to the reference's by anything but rounding."""
GPU = "A100-80"
STATE = "state_bytes"
ORDER = ("gpt", "bert", "vit", "mae")
"""Of several baselines, the one whose count at a paper's size is shown."""
PREFERRED: tuple[tuple[Size, RecipeName], ...] = (
    ("large", "modern"),
    ("base", "modern"),
    ("large", "classic"),
    ("base", "classic"),
)
Form = Literal["exact", "measured", "modelled", "others", ""]


@dataclass(frozen=True)
class Goal:
    """A goal of a reader's: ``good`` is what its techniques sell, ``counted`` what is shown of a step at a paper's
    size, ``here`` the metric that it is in the records."""

    id: str
    title: str
    good: Good
    counted: str
    here: str
    saves: str
    quality: str = "quality here"


GOALS = (
    Goal("memory", "Less memory", "memory", "peak_tensor_bytes", "peak_tensor_bytes", "peak memory"),
    Goal("time", "Less time", "time", "flops", "time_to_quality", "FLOPs of a step", "speedup at equal quality"),
    Goal("flops", "Fewer FLOPs", "FLOPs", "flops", "training_flops", "FLOPs of a step"),
    Goal(
        "trained",
        "Cheap fine-tuning",
        "trainable parameters",
        "trainable_parameter_count",
        "trainable_parameter_count",
        "trained parameters",
    ),
    Goal("traffic", "Less traffic", "communication", "communication_bytes", "communication_bytes", "bytes sent"),
    Goal("robustness", "Robustness", "robustness", "flops", "equivalent_budget", "FLOPs of a step"),
)


@dataclass(frozen=True)
class GoalCell:
    """A cell: its words, the ends of its one interval, its form, whether it is surely good or bad, what it is sorted
    by, what a pointer is told, and a word or two below."""

    words: str = ""
    ends: str = ""
    form: Form = ""
    lean: int = 0
    sort: float | None = None
    title: str = ""
    note: str = ""


NOTHING = GoalCell()


@dataclass(frozen=True)
class GoalLine:
    """A technique's line: ``does`` says what it does; ``saved`` and ``quality_gain`` are what the verdict is of;
    ``has_more_hardware``: than its reference, so that its step's time says nothing beside that one's."""

    stack: str
    does: str
    saves: GoalCell
    step: GoalCell
    quality: GoalCell
    others: GoalCell
    works: GoalCell
    verdict: Helps
    saved: Gain
    quality_gain: Gain
    time_gain: Gain
    at: Beside | None = None
    time: ModelledTime | None = None
    has_more_hardware: bool = False

    @property
    def place(self) -> tuple[int, float, str]:
        """Returns its place in the table: what helps first, then what saves most."""
        order = ("helps", "not known", "no difference", "costs")
        gain = self.saved.number if self.saved.known and not math.isnan(self.saved.number) else 0.0
        known = sum(bool(cell.words) for cell in (self.saves, self.step, self.quality, self.others, self.works))
        return order.index(self.verdict.word), -gain or -0.001 * known, self.stack


@dataclass(frozen=True)
class GoalTable:
    """A goal's lines in order; the first MOST_SHOWN are shown."""

    goal: Goal
    lines: Sequence[GoalLine]

    @property
    def heads(self) -> tuple[str, ...]:
        return (
            "technique",
            f"{self.goal.saves}, paper's size",
            "step on an A100",
            self.goal.quality,
            "quality by others",
            "works on",
            "verdict",
        )

    def tally(self) -> str:
        """Counts the verdicts, as in ``9 help, 3 cost, 4 no difference, 2 not known``."""
        return tally(line.verdict for line in self.lines)


def tally(verdicts: Iterable[Helps]) -> str:
    """Counts verdicts in the order of the words, as in ``9 help, 3 cost``; those that there are."""
    words = [verdict.word for verdict in verdicts]
    plural = {"helps": "help", "costs": "cost"}
    return ", ".join(f"{words.count(word)} {plural.get(word, word)}" for word in WORDS if word in words)


def tables(standing: Standing) -> list[GoalTable]:
    """Makes the tables that have a line."""
    known = _Known(standing)
    made = []
    for goal in GOALS:
        stacks = [stack for stack in known.stacks if known.good(stack) == goal.good]
        lines = sorted((known.line(stack, goal) for stack in stacks), key=lambda line: line.place)
        made += [GoalTable(goal, lines)] if lines else []
    return made


class _Known:
    """What is known of each stack of one technique: rows, counts and times at the papers' sizes, trials on models."""

    def __init__(self, standing: Standing) -> None:
        self.standing = standing
        self.report = standing.report

    @cached_property
    def rows(self) -> Mapping[str, Mapping[str, Row]]:
        """The rows by stack and baseline; of several references the card's."""
        found: dict[str, dict[str, Row]] = {}
        for row in self.standing.rows:
            if len(Spelling(row.stack).names) == 1 and row.stack != row.reference:
                card = self.card(row.stack)
                own = found.setdefault(row.stack, {})
                if row.conditions.baseline not in own or row.reference == (card.reference if card else BASELINE):
                    own[row.conditions.baseline] = row
        return found

    @cached_property
    def stacks(self) -> list[str]:
        """The techniques as their cards give them; another setting where that alone was measured."""
        plain = {*self.standing.cards, *(stack for stack in self.rows if stack in Spelling(stack).names)}
        measured = {*self.rows}
        settings = {stack for stack in measured - plain if Spelling(stack).names[0] not in measured}
        return sorted((plain - {Spelling(stack).names[0] for stack in settings}) | settings)

    @cached_property
    def counts(self) -> Mapping[str, Sequence[Beside]]:
        """The counts at the papers' sizes that stand, by stack, the one that is shown first."""
        found: dict[str, list[Beside]] = {}
        for pairs in self.report.paper_scale.counts.beside().values():
            for pair in pairs:
                if pair.ratio("peak_tensor_bytes") is not None and self.standing.has(pair):
                    found.setdefault(pair.stack.stack, []).append(pair)
        return {stack: sorted(of, key=_preference) for stack, of in found.items()}

    @cached_property
    def over_ranks(self) -> Mapping[str, Beside]:
        """The count of the most ranks of each technique that was counted at several numbers of them."""
        found: dict[str, dict[int, Beside]] = {}
        for stack, pairs in self.counts.items():
            if len(Spelling(stack).names) == 1 and (ranks := _over_ranks(pairs[0])).isdigit():
                found.setdefault(Spelling(stack).names[0], {})[int(ranks)] = pairs[0]
        return {name: of[max(of)] for name, of in found.items() if max(of) > 2}

    @cached_property
    def times(self) -> Mapping[str, Sequence[ModelledTime]]:
        found: dict[str, list[ModelledTime]] = {}
        for time in self.report.gpu_times.times:
            found.setdefault(time.stack, []).append(time)
        return found

    def card(self, stack: str) -> Card | None:
        return self.standing.cards.get(Spelling(stack).names[0])

    def good(self, stack: str) -> Good:
        card = self.card(stack)
        return card.good if card else "time"

    def line(self, stack: str, goal: Goal) -> GoalLine:
        """Makes the line of one technique."""
        rows, card = self.rows.get(stack, {}), self.card(stack)
        pair = self._at_scale(stack, goal)
        time = self._time(stack, pair)
        quality = self._gains(rows, "equivalent_budget")
        shown_gain = self._gains(rows, "time_to_quality") if goal.id == "time" else quality
        sold = self._sold(stack, goal, rows, pair)
        price = shown_gain if goal.id == "time" and not self._on_gpu(stack, rows) else quality
        verdict = self._verdict(goal, rows, sold, price)
        return GoalLine(
            stack,
            card.does if card else "",
            _saves(goal, pair),
            _step(time, [other for other in self.times.get(stack, ()) if other is not time]),
            _quality(shown_gain, rows, self.standing, "time_to_quality" if goal.id == "time" else "equivalent_budget"),
            _others(stack),
            self._works(stack),
            verdict,
            sold,
            quality,
            self._gains(rows, "time_to_quality"),
            pair,
            time,
            any(row.split_over > 1 for row in rows.values()),
        )

    def _at_scale(self, stack: str, goal: Goal) -> Beside | None:
        """Returns the count that is shown: where memory is saved by many ranks, that of the most; else the first."""
        if goal.id == "memory" and stack in self.over_ranks:
            return self.over_ranks[stack]
        return next((pair for pair in self.counts.get(stack, ()) if pair.ratio(goal.counted) is not None), None)

    def _time(self, stack: str, pair: Beside | None) -> ModelledTime | None:
        known = [time for time in self.times.get(stack, ()) if time.gpu == GPU]
        own = [time for time in known if pair is None or time.place.baseline == pair.stack.place.baseline]
        return next(iter(own or known), None)

    def _gains(self, rows: Mapping[str, Row], metric: str) -> Gain:
        """Returns the mean gain over the baselines that know it; of what was withheld, why."""
        why = next(filter(None, map(withheld, rows.values())), "")
        gains = [self._gain(row, metric) for row in rows.values() if not withheld(row)]
        return mean_gain(gains) if gains else Gain(why=why or "not measured yet")

    def _gain(self, row: Row, metric: str) -> Gain:
        if row.failed:
            return Gain(why="; ".join(dict.fromkeys(failure.status.replace("_", " ") for failure in row.failures)))
        if metric == "time_to_quality" and row.split_over > 1:
            return Gain(why="it has more hardware than its reference")
        if metric == "equivalent_budget" and self._learned_the_same(row):
            return Gain(1.0, 1.0, 1.0, exact=True)
        return gain_of(self.standing.value(row, metric))

    def _learned_the_same(self, row: Row) -> bool:
        """Tells whether it learned what its reference did, to the bit or up to rounding."""
        value = self.standing.value(row, "equivalent_budget")
        near = value.kind == "measured" and abs(math.log(value.number)) < ROUNDING
        stands = "learned" not in row.unverified or "learned" in self.standing.lenient
        return near or (stands and row.known.learns_the_same)

    def _sold(self, stack: str, goal: Goal, rows: Mapping[str, Row], pair: Beside | None) -> Gain:
        """Returns the gain in what is sold: counted at a paper's size where it can be, else here."""
        if goal.id == "time" and (gain := self._on_gpu(stack, rows)):
            return gain
        if goal.id in ("time", "robustness"):
            return self._gains(rows, goal.here)
        if pair is not None and (ratio := _ratio(goal, pair)):
            return Gain(1 / ratio, 1 / ratio, 1 / ratio, exact=True)
        if any(row.split_over > 1 for row in rows.values()):
            return Gain(why="it has more hardware than its reference")
        gains = [self._gain(row, goal.here) for row in rows.values()]
        return mean_gain(gains) if gains else Gain(why="not measured yet")

    def _on_gpu(self, stack: str, rows: Mapping[str, Row]) -> Gain | None:
        """Returns the modelled gain in a step's time of a technique that learns what its reference does: how long its
        step takes is the machine's, and this CPU's says nothing of a GPU."""
        time = self._time(stack, None)
        learned = [row for row in rows.values() if row.known.learned]
        if time is None or time.ratio is None or not learned or not all(map(self._learned_the_same, learned)):
            return None
        low, high = time.band
        return Gain(1 / high, 1 / low, 1 / time.ratio, control=time.half_width is None)

    def _verdict(self, goal: Goal, rows: Mapping[str, Row], sold: Gain, quality: Gain) -> Helps:
        split = next((row for row in rows.values() if row.split_over > 1), None)
        if split is not None and goal.id != "traffic":
            return Helps("not known", f"it has {split.split_over} ranks against one")
        return helps(sold, quality)

    def _works(self, stack: str) -> GoalCell:
        """Returns on how many of the models it was tried on it works."""
        models = self.report.models
        if models is None or stack not in models.matrix.cells:
            return NOTHING
        if stack in models.changed and "models" not in self.standing.lenient:
            return GoalCell(title="of older code: leantrain models")
        of = ended(stack, models)
        title = line_of(stack, models)
        return GoalCell(f"{of.works} of {of.asked}", form="exact", sort=of.works / max(1, of.asked), title=title)


def _preference(pair: Beside) -> tuple[int, int]:
    at = pair.stack.place
    order = ORDER.index(at.baseline) if at.baseline in ORDER else len(ORDER)
    size = PREFERRED.index((at.size, at.recipe)) if (at.size, at.recipe) in PREFERRED else len(PREFERRED)
    return size, order


def _over_ranks(pair: Beside) -> str:
    """Returns the number of ranks that the stack names; empty where it names none."""
    return next((settings["ranks"] for _, settings in Spelling(pair.stack.stack).parts if "ranks" in settings), "")


def _ratio(goal: Goal, pair: Beside) -> float | None:
    return pair.ratio(STATE if goal.id == "memory" and _over_ranks(pair) else goal.counted)


def _saves(goal: Goal, pair: Beside | None) -> GoalCell:
    """Shows what is saved of a step at a paper's size, exact."""
    ratio = _ratio(goal, pair) if pair else None
    if pair is None or not ratio:
        return NOTHING
    ranks, at = _over_ranks(pair), pair.stack.place
    quantity = STATE if ranks and goal.id == "memory" else goal.counted
    theirs, ours = (amount(quantity, side.quantities[quantity]) for side in (pair.reference, pair.stack))
    where = f"{at.baseline} {at.size}, {at.recipe}, against {pair.reference.stack}"
    note = f"state, {ranks} ranks" if ranks and goal.id == "memory" else ""
    sure = (ratio < 1 / 1.05) - (ratio > 1.05)
    return GoalCell(change(ratio), form="exact", lean=sure, sort=ratio, title=f"{theirs} → {ours}: {where}", note=note)


def change(ratio: float) -> str:
    """Writes a ratio as a change: ``−54 %``, ``+8 %``, ``÷427`` of what hardly any is left of, ``0 %``."""
    if ratio < 0.02:
        return f"÷{1 / ratio:.0f}"
    if ratio >= 2:
        return f"×{ratio:.1f}"
    percent = round(100 * (ratio - 1))
    return f"{'−' if percent < 0 else '+' if percent > 0 else ''}{abs(percent)} %"


def _step(time: ModelledTime | None, others: Sequence[ModelledTime]) -> GoalCell:
    """Shows a step's modelled time with the band that it is believed in; other GPUs are told to a pointer."""
    if time is None:
        return NOTHING
    if time.ratio is None:
        return GoalCell(title=time.unavailable)
    told = [f"{with_band(other)} on {other.gpu}" for other in others if other.ratio is not None]
    place = f"{time.place.baseline} {time.place.size}, modelled, never measured"
    if time.half_width is None:
        words, title = "the same", f"both run equal operators: {place}"
        return GoalCell(words, form="modelled", sort=time.ratio, title=title)
    words, _, band = with_band(time).partition(" ")
    return GoalCell(words, band, "modelled", sort=time.ratio, title="; ".join([place, *told]))


def _quality(gain: Gain, rows: Mapping[str, Row], standing: Standing, metric: str) -> GoalCell:
    """Shows the mean gain over baselines with its interval; each baseline's is told to a pointer."""
    if not gain.known:
        return GoalCell(title=gain.why)
    told = [f"{name} {words}" for name, row in rows.items() if (words := in_words(_told(row, standing, metric)))]
    title = "; ".join([*told, *_trends(rows, standing)])
    if gain.exact:
        return GoalCell("the same", form="exact", sort=1.0, title="every run is the reference's to the bit")
    if gain.control:
        return GoalCell("the same", form="exact", sort=1.0, title="it is its reference to the bit, by another name")
    words, _, ends = in_words(gain).partition(" [")
    sort = gain.number if not math.isnan(gain.number) else gain.high if gain.low == 0 else gain.low
    return GoalCell(words, f"[{ends}" if ends else "", "measured", gain.sure, sort, title)


def _trends(rows: Mapping[str, Row], standing: Standing) -> Iterator[str]:
    """Says how the quality changes along the sizes of a baseline, where several were trained."""
    for name, row in rows.items():
        alike = [other for other in standing.report.rows if other.stack == row.stack and not other.newer_version]
        slope = trend(other for other in alike if other.conditions.baseline == name)
        if slope is not None:
            yield f"on {name} along its sizes: {trend_in_words(slope)}"


def _told(row: Row, standing: Standing, metric: str) -> Gain:
    return Gain(why=withheld(row)) if withheld(row) else gain_of(standing.value(row, metric))


def in_words(gain: Gain) -> str:
    """Writes a gain: ``×1.05 [1.01, 1.09]``, ``below ×0.31``; empty where it is not known."""
    if not gain.known:
        return ""
    if gain.high == 0:
        return "diverged"
    if math.isnan(gain.number):
        return f"below ×{number(gain.high)}" if gain.low == 0 else f"above ×{number(gain.low)}"
    ends = "" if gain.exact else f" [{number(gain.low)}, {number(gain.high)}]"
    return f"×{number(gain.number)}{ends}"


def _others(stack: str) -> GoalCell:
    """Shows the median of what others published at scale, with the size of the largest model behind it."""
    known = quality_by_others(stack)
    if known is None or not known.at_scale:
        return NOTHING
    size = f"at {in_millions(known.parameters)}" if known.parameters else ""
    title = by_others_in_words(known)
    if known.main_unit:
        middle = median(value for value, _ in known.budgets[known.main_unit])
        return GoalCell(f"×{middle:.2f} {size}".strip(), form="others", sort=middle, title=title, note=known.main_unit)
    return GoalCell(f"{known.words} {size}".strip(), form="others", sort=float(known.direction), title=title)
