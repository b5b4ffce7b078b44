"""Says what the records show in five to eight sentences that one can act on, each derived by a rule of its own.

A rule reads the tables of the goals (:mod:`suite.topics.board.goals`), the claims and the stacks, and gives one
sentence or none; its docstring is the rule. Nothing here is written by hand, so better records change the words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from suite.entries.card import Property
from suite.judge.claims import Judgement
from suite.judge.rows import Row
from suite.judge.statistics import false_alarm_interval
from suite.judge.verdicts import CONTRADICTED, REPRODUCED
from suite.show.pages.board import bounded, effect_text, how_many, leaning
from suite.topics.board.goals import ORDER, GoalLine, GoalTable, change, in_words, tally
from suite.topics.board.standing import Standing
from suite.topics.published_quality.judged_quality import quality_by_others
from suite.topics.published_quality.quality_on_page import in_millions, intervals_here
from suite.topics.stacks.stacks_on_board import stacks

MOST_NAMED = 4
HALF = 0.5


@dataclass(frozen=True)
class Name:
    """A technique or stack by its name, which a page links to its section."""

    stack: str


@dataclass(frozen=True)
class BoardFinding:
    """A sentence: a ``title`` of a word or two, and what it says; ``evidence`` is the section that has its numbers."""

    rule: str
    title: str
    parts: Sequence[str | Name]
    evidence: str

    @property
    def words(self) -> str:
        """Returns the sentence as text."""
        said = "".join(part.stack if isinstance(part, Name) else part for part in self.parts)
        return f"{self.title}: {said}"


Rule = Callable[[Sequence[GoalTable], Standing], "BoardFinding | None"]


def findings(tables: Sequence[GoalTable], standing: Standing) -> list[BoardFinding]:
    """Derives the sentences that the records have something for, in the order of RULES."""
    return [found for rule in RULES if (found := rule(tables, standing)) is not None]


def _lines(tables: Iterable[GoalTable], goal: str) -> list[GoalLine]:
    return [line for table in tables if table.goal.id == goal for line in table.lines]


def _helping(lines: Iterable[GoalLine]) -> list[GoalLine]:
    return [line for line in lines if line.verdict.word == "helps"]


def _where(line: GoalLine) -> str:
    """Names the model that was counted, as in ``gpt of 355M``."""
    assert line.at is not None
    name, parameters = line.at.stack.place.baseline, line.at.reference.quantities.get("parameter_count")
    return f"{name} of {in_millions(parameters)}" if parameters else name


def _listed(parts: Sequence[Sequence[str | Name]], more: int = 0) -> list[str | Name]:
    """Joins phrases by commas, and says how many more there are."""
    said: list[str | Name] = []
    for position, phrase in enumerate(parts):
        said += [", "] if position else []
        said += phrase
    return [*said, f" and {more} more"] if more else said


def _named(stacks: Iterable[str]) -> list[str | Name]:
    names = list(dict.fromkeys(stacks))
    return _listed([[Name(name)] for name in names[:MOST_NAMED]], max(0, len(names) - MOST_NAMED))


def halves_memory(tables: Sequence[GoalTable], standing: Standing) -> BoardFinding | None:
    """Takes the smallest modelled step of what helps and halves the peak of the paper's size; where nothing halves it,
    the largest saving."""
    known = [line for line in _helping(_lines(tables, "memory")) if line.at and line.time and line.time.ratio]
    peaks = [(line, line.at.ratio("peak_tensor_bytes") or 1.0) for line in known if line.at]
    halving = [pair for pair in peaks if pair[1] <= HALF]
    if not peaks:
        return None
    if halving:
        best, ratio = min(halving, key=lambda pair: (pair[0].time.ratio if pair[0].time else 0.0, pair[1]))
    else:
        best, ratio = min(peaks, key=lambda pair: pair[1])
    same = best.quality_gain.exact
    learned = "and learns what its reference does" if same else f"at a quality of {in_words(best.quality_gain)}"
    said = (
        f" takes {100 * (1 - ratio):.0f} % off the peak of {_where(best)} (exact), for a step of "
        f"{f'{best.step.words} {best.step.ends}'.strip()} on an A100 (modelled), {learned}."
    )
    return BoardFinding("halves_memory", "Half the memory", [Name(best.stack), said], "paper-scale")


def is_free(tables: Sequence[GoalTable], standing: Standing) -> BoardFinding | None:
    """Names all that help with memory at a modelled step that is no longer, the largest saving first."""
    known = [line for line in _helping(_lines(tables, "memory")) if line.at and line.time]
    free = [line for line in known if line.time and (line.time.ratio or 2.0) <= 1.0]
    if not free:
        return None
    shown: list[list[str | Name]] = [
        [Name(line.stack), f" ({line.saves.words}, step {line.step.words})"] for line in free[:MOST_NAMED]
    ]
    said = _listed(shown, max(0, len(free) - MOST_NAMED))
    end = " of the peak at the paper's size (exact, steps modelled on an A100), at no surely worse quality."
    return BoardFinding("is_free", "Free memory", [*said, end], "paper-scale")


def tunes_cheaply(tables: Sequence[GoalTable], standing: Standing) -> BoardFinding | None:
    """Takes the smallest peak, on the baseline that is shown first, of what trains fewer parameters and helps, else of
    all that trains fewer."""
    lines = _lines(tables, "trained")
    counted = [line for line in _helping(lines) or lines if line.at and line.at.ratio("peak_tensor_bytes")]
    baselines = [line.at.stack.place.baseline for line in counted if line.at]
    first = next((name for name in (*ORDER, *baselines) if name in baselines), "")
    alike = [line for line in counted if line.at and line.at.stack.place.baseline == first]
    if not alike:
        return None
    best = min(alike, key=lambda line: (line.at and line.at.ratio("peak_tensor_bytes")) or 1.0)
    assert best.at is not None
    peak = change(best.at.ratio("peak_tensor_bytes") or 1.0)
    trained = 1 / (best.at.ratio("trainable_parameter_count") or 1.0)
    quality = in_words(best.quality_gain) or best.verdict.brief
    said = (
        f" trains one in {trained:.0f} of the parameters of {_where(best)} and changes the peak by {peak} (exact); "
        f"quality here: {quality}."
    )
    return BoardFinding("tunes_cheaply", "Cheap fine-tuning", [Name(best.stack), said], "paper-scale")


def ends_sooner(tables: Sequence[GoalTable], standing: Standing) -> BoardFinding | None:
    """Names all whose speedup at equal quality surely exceeds 1 here, the largest first, and of how many."""
    known = [line for table in tables for line in table.lines if line.time_gain.known]
    sooner = [line for line in known if line.time_gain.sure > 0 and line.verdict.word == "helps"]
    sooner.sort(key=lambda line: -line.time_gain.number)
    settled = f"of {len(known)} techniques with a speedup at equal quality"
    if not known:
        return None
    if not sooner:
        return BoardFinding(
            "ends_sooner", "Sooner here", [f"none {settled}, {standing.models}, is surely above ×1."], "boards"
        )
    shown: list[list[str | Name]] = [[Name(line.stack), f" {in_words(line.time_gain)}"] for line in sooner[:MOST_NAMED]]
    said = _listed(shown, max(0, len(sooner) - MOST_NAMED))
    return BoardFinding("ends_sooner", "Sooner here", [*said, f", {settled}, {standing.models}."], "boards")


def agrees_at_scale(tables: Sequence[GoalTable], standing: Standing) -> BoardFinding | None:
    """Counts the techniques whose quality here and as published at scale point the same way, and those that do not."""
    same, other = [], []
    for line in (line for table in tables for line in table.lines):
        published = quality_by_others(line.stack)
        if published is None or not line.quality_gain.known:
            continue
        word = published.agrees(intervals_here(published, standing.rows))
        same += [line.stack] if word == "agrees in direction" else []
        other += [line.stack] if word == "opposite direction here" else []
    if not same and not other:
        return None
    said: list[str | Name] = [
        f"of {len(same) + len(other)} techniques whose quality is sure here and published at scale, "
    ]
    said += [f"{len(same)} point the same way", *([" (", *_named(same), ")"] if same else [])]
    said += [f" and {len(other)} the other", *([" (", *_named(other), ")"] if other else []), "."]
    return BoardFinding("agrees_at_scale", "At real scale", said, "techniques")


def did_not_hold(tables: Sequence[GoalTable], standing: Standing) -> BoardFinding | None:
    """Counts claims near their papers' settings, each once: how many hold everywhere, of these how many name a number,
    and which are contradicted somewhere."""
    by_claim: dict[str, list[Judgement]] = {}
    for judgement in standing.report.verdicts:
        if not isinstance(judgement.claim, Property):
            by_claim.setdefault(f"{judgement.technique}.{judgement.claim.id}", []).append(judgement)
    words = {name: {judgement.word for judgement in of} for name, of in by_claim.items()}
    failed = [name for name, said in words.items() if CONTRADICTED in said]
    held = [name for name, said in words.items() if REPRODUCED in said and CONTRADICTED not in said]
    if not held and not failed:
        return None
    strong = [name for name in held if _names_a_number(by_claim[name][0])]
    said = (
        f"{len(held)} claims hold near their paper's setting, {len(strong)} of which say by how much; "
        f"{len(failed)} do not"
    )
    ending: list[str | Name] = [" (", *_named(name for name in failed), ")."] if failed else ["."]
    return BoardFinding("did_not_hold", "Papers' claims", [said, *ending], "claims")


def _names_a_number(judgement: Judgement) -> bool:
    """Tells whether a claim says more than that something changes, or does not."""
    return judgement.claim.expected not in (None, 1.0, 0.0)


def helps_together(tables: Sequence[GoalTable], standing: Standing) -> BoardFinding | None:
    """Names the stacks measured beside their parts that are surely sooner than the reference, and those that surely
    gain more together than their parts' gains multiply to."""
    every = [
        one
        for of_board in stacks(standing.report.boards)
        for one in of_board.interactions
        if not any(row.newer_version for row in one.rows)
    ]
    if not every:
        return None
    sooner = [one.whole.stack for one in every if leaning(one.whole.value("time_to_quality")) > 0]
    more = [
        one.whole.stack
        for one in every
        if any(value.kind == "measured" and leaning(value) > 0 for value in one.values.values())
    ]
    count = len({one.whole.stack for one in every})
    said: list[str | Name] = [
        f"of {how_many(count, noun='stack')} measured beside {'its' if count == 1 else 'their'} parts, "
    ]
    said += [*(_named(sooner) or ["none"]), " ends surely sooner than the reference, and "]
    said += [*(_named(more) or ["none"]), " gains more than the gains of its parts make together"]
    return BoardFinding("helps_together", "Together", [*said, "."], "stacks")


def is_sure(tables: Sequence[GoalTable], standing: Standing) -> BoardFinding | None:
    """Counts the verdicts of each word and the controls that look different, and says the smallest change that the
    median row would have shown."""
    if not tables:
        return None
    verdicts = tally(line.verdict for table in tables for line in table.lines)
    effects = [row.detectable_effect for row in standing.rows if _sees(row)]
    sees = f"; half of the speedups would have shown a change of {effect_text(median(effects))}" if effects else ""
    alarms, of = false_alarms(standing.rows)
    share = false_alarm_interval(alarms, of) if of else None
    chance = (
        f"; of {of} controls, the reference by another name, {alarms} look different, {100 * alarms / of:.0f} % "
        f"[{100 * share.low:.0f}, {100 * share.high:.0f}] where 5 % is meant"
        if share
        else ""
    )
    return BoardFinding("is_sure", "How sure", [f"{verdicts}{sees}{chance}."], "methods")


def _sees(row: Row) -> bool:
    log = row.value("time_to_quality").log
    return bounded(log) and not row.value("time_to_quality").control


def false_alarms(rows: Iterable[Row]) -> tuple[int, int]:
    """Counts how many of the headlines of controls exclude 1, which is chance, and of how many: each is of its own
    timings, as a row's other times are not."""
    values = [row.value("time_to_quality") for row in rows]
    logs = [value.log for value in values if value.control and value.log and bounded(value.log)]
    return sum(not log.contains(0.0) for log in logs), len(logs)


RULES: tuple[Rule, ...] = (
    halves_memory,
    is_free,
    tunes_cheaply,
    ends_sooner,
    agrees_at_scale,
    did_not_hold,
    helps_together,
    is_sure,
)
