"""Judge each claim of a technique's card by the evidence.

A verdict is a pure function of the claim, of an *observation* (the interval of the claim's metric under one set of
conditions), and of how far the evidence is from the paper's setting. The outcome, in this order:

1. quoted           a literature number: repeated with its source, never judged;
2. not measured     no evidence, other hardware or scale, a missing dependency: never counted as a failure;
3. modelled         a model's number: compared with the claim, never judged as a measurement;
4. not exercised    the runs are the reference's to the bit, or a probe shows that the mechanism did nothing;
5. tuning open      a quality, and a rate that was to be tuned is not bracketed yet;
6. does not hold    no value of the interval satisfies the claim; or the loss is worse than the claim allows, a seed
                    diverged, the quality was missed;
7. holds            every value of the interval does, so the claimed number is compared with the interval's
                    conservative end and never with the point estimate;
8. undecided        the interval contains both; the reason says how many replicates would tell.

A claim that names a control compares two stacks that have one reference: what both learned and had counted, seed by
seed, or what was timed together. One that names a cell of a study is about a share of the study's seeds, or what the
study's model says.

Whether it is *reproduced* or *contradicted* is for :mod:`suite.judge.verdicts` to say, from the outcome, the distance
(:mod:`suite.judge.distance`), and whether somebody read the statement in the paper.

All ratios are costs, contender over reference: a claimed speedup of 1.25 is a cost ratio ``<= 0.8``. A claim is
*directional* if it claims a gain or a price (``<= 0.8``, ``== 2``); a bound that "no change" satisfies (``<= 1.33``)
and equality (``== 1``) have no direction. The claim's tolerance widens what satisfies it, but never across "no change".
Containing a 95 % interval in the band of an ``== 1`` claim is the two one-sided tests of equivalence at level 2.5 %.

Claims of kind ``identity`` and ``counted`` are exact: every seed must satisfy them, and with one that does not they do
not hold. Beyond the ends of the reference's scaling curve a number is a bound: the interval has one end, and the same
rules hold.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from suite.entries.card import Card, Claim, Property, of_study
from suite.entries.cards import with_cards
from suite.entries.catalogue import catalogue, lookup
from suite.judge.at_scale import CountsAtScale
from suite.judge.distance import EvidenceSetting, differences, out_of_reach
from suite.judge.helps import untuned
from suite.judge.known import Facts, Known, LearnedPair, counters_of
from suite.judge.metrics import MetricKind, metric_of, values
from suite.judge.rows import Row, finite, interval_as_dict, of_version, probes_of
from suite.judge.statistics import (
    QUALITY_TOLERANCE,
    Interval,
    detectable_effect,
    required_replicates,
)
from suite.judge.study_tables import Study
from suite.judge.verdicts import CONTRADICTED, FAILS, HOLDS, NOT_EXERCISED, Outcome, Unjudged, word
from suite.record.job import Setting, Size, Spelling, canonical
from suite.record.paper_scale import PER_PARAMETER, PROVENANCE, Beside
from suite.record.placed import CountPlace

EXACT_KINDS = ("identity", "counted")  # a modelled number too is what it is in each seed
BEYOND = "beyond the scaling curve"
NONE_AT_SCALE = CountsAtScale()
MOST_REPLICATES = 1000  # beyond this, more of them are no advice


@dataclass(frozen=True)
class Observation:
    """Holds what is known of a claim's metric under one set of conditions.

    ``interval``: on the claim's scale, a cost ratio or the metric's own unit; None with the ``reason`` when there is
    none. ``spread``: the same where its standard error means something, the logarithm of a ratio. ``exact``: the ends
    are the least and the largest seed's, each known exactly. ``quality``: of the loss ratio. ``missed``: how the
    quality was not reached, with ``certain`` when that is no accident of the seeds. ``inactive``: why the mechanism was
    not exercised; ``open``: why a choice of rates is not settled.
    """

    interval: Interval | None = None
    spread: Interval | None = None
    exact: bool = False
    quality: Interval | None = None
    missed: str = ""
    certain: bool = False
    inactive: str = ""
    open: str = ""
    reason: str = ""
    note: str = ""


@dataclass(frozen=True)
class VerdictBasis:
    """Says where a claim was judged, and the command that measures the evidence again. ``size`` may be a model's name.

    ``unverified``: kinds of evidence whose code has changed since. ``differs``: what sets it apart from the paper's
    setting; empty where it is near. ``cpu_s``: processor seconds of the evidence, None where they were not recorded;
    ``newest``: the date of its newest part, ISO 8601. ``version``: of the baseline, None where no row is behind it.
    """

    baseline: str = ""
    recipe: str = ""
    size: str = ""
    machine: str = ""
    records: tuple[str, ...] = ()
    unverified: tuple[str, ...] = ()
    command: str = ""
    differs: tuple[str, ...] = ()
    cpu_s: float | None = None
    newest: str = ""
    version: int | None = None

    @property
    def title(self) -> str:
        return " · ".join(filter(None, (self.baseline, self.recipe, self.size, self.machine)))


@dataclass(frozen=True)
class Judgement:
    """Holds one verdict on one claim, in two fields: ``outcome`` and ``basis.differs``.

    ``evidence``: its ids. ``detectable``: the smallest effect that the test had 80 % power to see, in log units of a
    ratio or in the metric's own unit; None for exact verdicts and where nothing was tested.
    """

    claim: Claim
    technique: str
    outcome: Outcome | Unjudged
    reason: str
    basis: VerdictBasis
    interval: Interval | None = None
    detectable: float | None = None

    @property
    def near(self) -> bool:
        """Tells whether the evidence is from a setting like the paper's."""
        return not self.basis.differs

    @property
    def word(self) -> str:
        """Returns what is said: ``reproduced``, ``holds at nano``; of a property its outcome."""
        if isinstance(self.claim, Property):
            return self.outcome
        return word(self.outcome, self.near, bool(self.claim.read), self.basis.size)

    @property
    def contradicted(self) -> bool:
        """Tells whether the paper's statement, or what the implementation must satisfy, was found false."""
        return self.word == CONTRADICTED or (isinstance(self.claim, Property) and self.outcome == FAILS)

    @property
    def baseline(self) -> str:
        return self.basis.baseline

    @property
    def evidence(self) -> tuple[str, ...]:
        return self.basis.records

    @property
    def command(self) -> str:
        return self.basis.command

    def as_dict(self) -> dict[str, Any]:
        """Returns the judgement as JSON values; None stands for what is not finite."""
        interval = interval_as_dict(self.interval)
        return {
            "technique": self.technique,
            "claim": self.claim.id,
            "statement": self.claim.statement,
            "source": self.claim.source,
            "read": self.claim.read,
            "kind": self.claim.kind,
            "property": isinstance(self.claim, Property),
            "scope": self.claim.scope,
            "metric": self.claim.metric,
            "expected": expectation(self.claim),
            "note": self.claim.note,
            "setting": self.claim.setting and self.claim.setting.model_dump(exclude_defaults=True),
            "outcome": self.outcome,
            "near": self.near,
            "differs": list(self.basis.differs),
            "word": self.word,
            "reason": self.reason,
            "baseline": self.basis.baseline,
            "recipe": self.basis.recipe,
            "size": self.basis.size,
            "machine": self.basis.machine,
            "interval": interval and {name: interval[name] for name in ("estimate", "low", "high", "level")},
            "smallest_detectable_effect": None if self.detectable is None else finite(self.detectable),
            "records": list(self.evidence),
            "unverified": list(self.basis.unverified),
            "cpu_s": self.basis.cpu_s,
            "newest": self.basis.newest,
            "command": self.command,
        }


# the decision -------------------------------------------------------------------------------------------------------


def judge(claim: Claim, technique: str, seen: Observation, basis: VerdictBasis) -> Judgement:
    """Judge one claim by what was observed on one basis."""
    outcome, reason = decide(claim, seen)
    tested = seen.spread if outcome not in ("quoted", "not measured") and not seen.exact else None
    return Judgement(
        claim,
        technique,
        outcome,
        "; ".join(filter(None, (reason, seen.note))),
        basis,
        interval=None if outcome == "quoted" else seen.interval,
        detectable=detectable_effect(tested) if tested else None,
    )


def decide(claim: Claim, seen: Observation) -> tuple[Outcome | Unjudged, str]:
    """Decide the outcome and its reason by the rules at the head of this module."""
    if claim.kind == "literature":
        return "quoted", ": ".join(filter(None, (claim.source, claim.conditions)))
    interval = seen.interval
    if interval is None and not seen.missed and not seen.inactive:
        return "not measured", seen.reason
    if interval is not None and claim.kind == "modelled":
        return "modelled", _by_model(claim, interval)
    if seen.inactive:
        return NOT_EXERCISED, seen.inactive
    if seen.open:
        return "tuning open", seen.open
    if seen.missed:
        if seen.certain:
            return FAILS, seen.missed
        return "undecided", f"{seen.missed}, in too few seeds to be sure: measure 3 or more"
    assert interval is not None
    if seen.exact:
        differs = f"not so in {interval.n} seeds" if of_study(claim) else "an exact count differs"
        return (HOLDS, "exactly") if _inside(claim, interval) else (FAILS, differs)
    return _compared(claim, seen, interval)


def _by_model(claim: Claim, interval: Interval) -> str:
    if _inside(claim, interval):
        return "the model agrees with the claim"
    if _outside(claim, interval):
        return "the model does not agree with the claim"
    return "the model's range has values that agree with the claim, and others that do not"


def _compared(claim: Claim, seen: Observation, interval: Interval) -> tuple[Outcome, str]:
    if not _bounded(interval):
        return "undecided", "one replicate cannot tell how far others are: measure 3 or more"
    limit = None if claim.quality_within is None else 1 + claim.quality_within
    if limit is not None and seen.quality is not None and seen.quality.low > limit:
        return FAILS, f"the loss is {seen.quality.low - 1:.1%} or more above the reference's"
    if _inside(claim, interval):
        if limit is not None and (seen.quality is None or not seen.quality.high <= limit):
            return "undecided", "the number holds, but whether the quality does is not known: learn from more seeds"
        return HOLDS, "the interval's conservative end reaches the claim"
    if _outside(claim, interval):
        return FAILS, _how_far(claim, interval)
    return "undecided", _needed(claim, seen)


def _how_far(claim: Claim, interval: Interval) -> str:
    """Tells which side of "no change" an interval lies on that excludes the claimed number."""
    direction = _direction(claim)
    if direction == 0:
        return "outside what the claim allows"
    if interval.low > 1 if direction < 0 else interval.high < 1:
        return "no gain but a loss"
    if interval.high < 1 if direction < 0 else interval.low > 1:
        return "a change in the claimed direction, not of the claimed size"
    return "the claimed size is excluded, no change at all is not"


def band(claim: Claim) -> tuple[float, float]:
    """Returns the range of values that satisfy the claim, tolerance included; a strict relation excludes its end."""
    assert claim.expected is not None
    slack = claim.tolerance * abs(claim.expected)
    low = claim.expected - slack if claim.relation in ("==", ">=", ">") else -math.inf
    high = claim.expected + slack if claim.relation in ("==", "<=", "<") else math.inf
    direction = _direction(claim)
    return (max(low, 1.0) if direction > 0 else low), (min(high, 1.0) if direction < 0 else high)


def _direction(claim: Claim) -> int:
    """Returns -1 where the claim says that a ratio is below 1, 1 where it says above 1, else 0."""
    assert claim.expected is not None
    if claim.absolute or claim.expected == 1:
        return 0
    if claim.expected < 1:
        return -1 if claim.relation in ("==", "<=", "<") else 0
    return 1 if claim.relation in ("==", ">=", ">") else 0


def _satisfies(claim: Claim, value: float) -> bool:
    low, high = band(claim)
    strictly = {"<": value < high, ">": value > low}
    return strictly.get(claim.relation, True) and low <= value <= high


def _inside(claim: Claim, interval: Interval) -> bool:
    return _satisfies(claim, interval.low) and _satisfies(claim, interval.high)


def _outside(claim: Claim, interval: Interval) -> bool:
    low, high = band(claim)
    if claim.relation == "<":
        return interval.low >= high
    return interval.high <= low if claim.relation == ">" else interval.low > high or interval.high < low


def _bounded(interval: Interval) -> bool:
    """Tells whether the interval has two ends, or a bound its one end, that more than one replicate gave."""
    if interval.method == BEYOND:
        return interval.level == 1
    return all(map(math.isfinite, (interval.low, interval.high))) and interval.degrees_of_freedom > 0


def _needed(claim: Claim, seen: Observation) -> str:
    """Returns a sentence on how many replicates would decide if the estimate stays where it is."""
    spread = seen.spread
    if spread is None or not spread.standard_error > 0:
        return "the interval contains values that satisfy the claim and others that do not"
    ends = [*band(claim), *([1.0] if _direction(claim) else [])]
    scale: Callable[[float], float] = (lambda x: x) if spread is seen.interval else math.log
    bars = [scale(end) for end in ends if math.isfinite(end) and (spread is seen.interval or end > 0)]
    distance = min(abs(spread.estimate - bar) for bar in bars)
    sigma = spread.standard_error * math.sqrt(spread.n)
    if distance * math.sqrt(MOST_REPLICATES) < 3 * sigma:
        return "the estimate lies at the edge of the claim: more replicates would hardly decide"
    return f"about {max(required_replicates(sigma, distance), spread.n + 1)} replicates would decide"


# what is known ------------------------------------------------------------------------------------------------------


def exactly(claim: Claim, technique: str, seeds: Sequence[tuple[Facts, Facts]]) -> Observation:
    """Observe the claim's metric exactly in each seed's (reference, contender): counters, probes, final losses."""
    if any(side.counters is not None and side.counters.compiled for pair in seeds for side in pair):
        return Observation(reason="counts of a compiled step are what its eager operators do, no evidence")
    values = [_sample(claim, technique, *pair) for pair in seeds]
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return Observation(reason=f"{claim.metric} was not recorded")
    if beyond := [value for value in known if not math.isfinite(value)]:
        return Observation(Interval(beyond[0], -math.inf, math.inf, 1.0, "every seed", len(known)), exact=True)
    low, high = min(known), max(known)
    return Observation(Interval(sorted(known)[len(known) // 2], low, high, 1.0, "every seed", len(known)), exact=True)


def _sample(claim: Claim, technique: str, reference: Facts, contender: Facts) -> float | None:
    if claim.metric.startswith("probe."):
        return contender.probes.get(probe(claim, technique))
    theirs, ours = _quantity(claim.metric, reference), _quantity(claim.metric, contender)
    if claim.absolute or ours is None:
        return ours
    return ours / theirs if theirs else None


def probe(claim: Claim, technique: str) -> str:
    """Returns the name under which runs report a claim's probe; a card may leave its own technique's name out."""
    name = claim.metric.removeprefix("probe.")
    return name if name.startswith(f"{technique}.") else f"{technique}.{name}"


def _quantity(name: str, side: Facts) -> float | None:
    """Returns a repeatable quantity of one run; None where the run does not have it or no run repeats it."""
    metric = metric_of(name)
    return metric.quantity(side) if metric and metric.repeatable and metric.quantity else None


def is_exact(claim: Claim) -> bool:
    """Tells whether the claim's verdict follows from one run of each side, with no statistics."""
    metric = metric_of(claim.metric)
    repeatable = claim.metric.startswith("probe.") or (metric is not None and metric.repeatable)
    repeatable |= claim.metric in PER_PARAMETER
    return claim.kind in EXACT_KINDS and repeatable


def observed(claim: Claim, row: Row) -> Observation:
    """Observe the claim's metric in a row."""
    seeds = len(row.seeds) + len([failure for failure in row.failures if failure.kind == "learned"])
    failed = f"{seeds - len(row.seeds)} of {seeds} seeds failed" if row.seeds and seeds > len(row.seeds) else ""
    needed = _kinds_behind(claim, row)
    changed = [kind for kind in row.unverified if kind in needed]
    old = f"unverified: the code changed since it was {' and '.join(changed)}" if changed else of_version(row)
    ended = [(failure.kind, failure.status, failure.stack) for failure in row.failures]
    diverged = ended.count(("learned", "diverged", row.stack))
    if diverged and _about_quality(claim):
        seen = Observation(missed=f"diverged in {diverged} of {seeds} seeds", certain=diverged > 1)
    else:
        seen = _seen(claim, row)
    note = "; ".join(filter(None, (seen.note, failed, old)))
    return replace(seen, note=note, inactive=_inactive(claim, row), open=_untuned(claim, row))


def _inactive(claim: Claim, row: Row) -> str:
    """Tells why nothing of the technique took part in what was observed; "" where something did, or nobody knows."""
    if is_exact(claim):
        return ""
    if row.known.does_the_same:
        return "its runs and counts are the reference's to the bit"
    needed = claim.needs.active
    own = probe(claim.model_copy(update={"metric": needed}), _technique(row)) if needed else ""
    if needed and (why := row.known.never_acted([own])):
        return why
    return row.inactive if _about_quality(claim) else ""


def _technique(row: Row) -> str:
    """Returns the id of a row's technique, without its settings and what both sides have besides."""
    return (Spelling(row.stack).names or [row.stack])[-1]


def _about_quality(claim: Claim) -> bool:
    metric = metric_of(claim.metric)
    return (metric is not None and metric.quality) or claim.quality_within is not None


def _seen(claim: Claim, row: Row) -> Observation:
    if is_exact(claim) or (claim.kind == "modelled" and claim.metric.startswith("probe.")):
        seen = exactly(claim, _technique(row), row.known.facts())
        return seen if seen.interval else Observation(reason=_failure(claim, row) or seen.reason)
    loss = row.value("loss")
    if claim.metric.startswith("probe."):
        spread = row.probes.get(probe(claim, _technique(row)))
        if spread is None:
            return Observation(reason=_failure(claim, row) or f"no run reported {claim.metric}")
        return Observation(spread, spread, quality=loss.interval)
    value = row.metrics.get(claim.metric)
    if value is None:
        return Observation(reason=f"{claim.metric} is not measured")
    if value.kind == "unavailable":
        return Observation(reason=_failure(claim, row) or value.reason)
    if value.kind == "missed":
        return Observation(missed=value.reason, certain=loss.log is not None and loss.log.low > QUALITY_TOLERANCE)
    if claim.absolute:
        return Observation(reason=f"{claim.metric} is measured as a ratio to the reference only")
    if value.kind == "bound":  # beyond the reference's scaling curve: one end is known, by one seed it is no verdict
        ends = (0.0, value.number) if value.at_most else (value.number, math.inf)
        level = 1.0 if len(row.seeds) > 1 else 0.0
        bound = Interval(value.number, *ends, level, BEYOND, len(row.seeds))
        return Observation(bound, quality=loss.interval, note=value.note)
    if value.log is None:  # an exact count behind a claim of another kind
        count = Interval(value.number, value.number, value.number, 1.0, "every seed", max(1, len(row.seeds)))
        return Observation(count, quality=loss.interval, note=value.note)
    return Observation(value.interval, value.log, quality=loss.interval, note=value.note)


NEEDED: Mapping[MetricKind, tuple[str, ...]] = {
    "counted": ("counted",),
    "learned": ("learned",),
    "timed": ("timed",),
    "measured": ("timed",),
    "composed": ("learned", "timed"),
}
"""The kinds of evidence that a kind of metric is read from."""


def _kinds_behind(claim: Claim, row: Row) -> tuple[str, ...]:
    """Returns the kinds of evidence that the claim's metric is read from in this row."""
    metric = metric_of(claim.metric)
    if metric:
        return NEEDED[metric.kind]
    counted = row.known.counted[1]
    return ("counted",) if counted and probe(claim, _technique(row)) in counted.probes else ("learned",)


def _failure(claim: Claim, row: Row) -> str:
    """Tells how what the claim's metric is read from failed; "" where it did not."""
    needed = _kinds_behind(claim, row)
    return next(
        (f"{failure.stack}: {failure.status}: {failure.reason}" for failure in row.failures if failure.kind in needed),
        "",
    )


# over the catalogue -------------------------------------------------------------------------------------------------


def chosen(id: str | None) -> list[Card]:
    """Return the cards of all techniques, of one, or of one with the single claim or property ``technique.claim``.

    Raises UnknownId with the nearest names.
    """
    entries = catalogue()
    if id is None:
        return [entry.card for entry in with_cards(entries)[0].values()]
    name, dot, claim = id.partition(".")
    card = lookup("technique", name, entries).card
    if not dot:
        return [card]
    one = lookup(f"claim of {name}", claim, {predicate.id: predicate for predicate in card.judged})
    return [card.model_copy(update={"claim": (one,), "properties": ()})]


def verdicts(
    rows: Iterable[Row],
    cards: Iterable[Card] | None = None,
    at_scale: CountsAtScale = NONE_AT_SCALE,
    studies: Iterable[Study] = (),
) -> list[Judgement]:
    """Judge every claim of the cards (all installed ones) by all evidence that it applies to: rows, for
    exact claims about bytes, FLOPs and parameters the counts at the papers' own sizes, and studies.

    Recipes, sizes and machines are judged apart, since a gain over the classic recipe may be none over the modern one.
    In one setting a row of the installed code is preferred to an unverified one, then the one of more replicates.
    """
    known: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        known.setdefault((row.stack, row.reference), []).append(row)
    chosen = [entry.card for entry in with_cards(catalogue())[0].values()] if cards is None else list(cards)
    besides, known_studies = at_scale.counts.beside(), list(studies)
    return [
        judgement
        for card in chosen
        for claim in card.judged
        for judgement in (
            _by_studies(card, claim, known_studies)
            if of_study(claim)
            else _of_claim(
                card, claim, rows_about(card, claim, known), _counted_at_scale(card, claim, at_scale, besides)
            )
        )
    ]


def stack_of(card: Card, claim: Claim) -> str:
    """Returns the stack that a claim is about: the card's technique, with the claim's settings and what both sides
    have."""
    own = f"{card.id}:{claim.settings}" if claim.settings else card.id
    return canonical(f"{claim.within}+{own}" if claim.within else own)


def control_of(claim: Claim) -> str:
    """Returns the stack that a claim compares with; empty where that is the card's reference."""
    control = "+".join(filter(None, (claim.within, claim.against)))
    return canonical(control) if control else ""


def stacks_of(cards: Iterable[Card]) -> set[str]:
    """Returns the stacks by whose rows claims of the cards are judged."""
    stacks = {
        stack
        for card in cards
        for claim in card.judged
        for stack in (card.id, stack_of(card, claim), control_of(claim))
    }
    return stacks - {""}


def only_controls(cards: Iterable[Card]) -> set[str]:
    """Returns the stacks that claims compare with and that no card is about: what is known of them is part of those
    claims."""
    every = list(cards)
    about = {stack for card in every for claim in card.judged for stack in (card.id, stack_of(card, claim))}
    return {control_of(claim) for card in every for claim in card.judged} - about - {""}


def rows_about(card: Card, claim: Claim, known: Mapping[tuple[str, str], Sequence[Row]]) -> Sequence[Row]:
    """Returns the rows that a claim is judged by. Against a control: where both were timed together, and of what both
    learned, and had counted, under equal conditions."""
    control = control_of(claim)
    own = known.get((stack_of(card, claim), card.reference), ())
    if claim.metric in PER_PARAMETER:  # of more ranks than a machine has
        return ()
    if not control:
        return own
    others: dict[str, list[Row]] = {}
    for row in known.get((control, card.reference), ()):
        others.setdefault(row.conditions.key, []).append(row)
    return [
        *known.get((stack_of(card, claim), control), ()),
        *(_beside(row, _nearest(row, others[row.conditions.key])) for row in own if row.conditions.key in others),
    ]


def _nearest(row: Row, others: Sequence[Row]) -> Row:
    """Returns the row of the same machine, where there is one, of some under equal conditions: curves and counts
    travel."""
    return next((other for other in others if other.machine.key == row.machine.key), others[0])


def _beside(row: Row, other: Row) -> Row:
    """Compares a row with another of the same reference: the contenders, seed by seed where both ended with equal
    bits."""
    theirs = {pair.seed: pair.contender for pair in other.known.learned}
    learned = [
        LearnedPair(theirs[pair.seed], pair.contender)
        for pair in row.known.learned
        if pair.seed in theirs and theirs[pair.seed].bits == pair.contender.bits
    ]
    known = Known((other.known.counted[1], row.known.counted[1]), tuple(learned))
    return replace(
        row,
        reference=other.stack,
        known=known,
        metrics=values(known, {}),
        probes=probes_of(known),
        records=tuple(dict.fromkeys((*row.records, *other.records))),
        unverified=tuple(dict.fromkeys((*row.unverified, *other.unverified))),
        tuned=(other.tuned[1], row.tuned[1]) if other.tuned and row.tuned else None,
        to_tune=row.to_tune or other.to_tune,
    )


def _counted_at_scale(
    card: Card, claim: Claim, at_scale: CountsAtScale, besides: Mapping[CountPlace, Sequence[Beside]]
) -> list[Judgement]:
    """Returns the verdicts by counts at the papers' own sizes, of those that have the claim's metric."""
    if not is_exact(claim) or control_of(claim):
        return []
    stack = stack_of(card, claim)
    return [
        _by_count(card, claim, beside, value, at_scale.has_changed(beside))
        for place, every in besides.items()
        if (place.task, unfit(claim, place.recipe, place.size, place.device)) == (card.task, "")
        and place.baseline in (claim.baselines or card.baselines)
        for beside in every
        if beside.stack.stack == stack
        and (beside.stack.reference == card.reference or claim.metric in PER_PARAMETER)  # no ratio to it
        and (value := beside.of(claim.metric, claim.absolute)) is not None
    ]


def _by_count(card: Card, claim: Claim, counted: Beside, value: float, changed: bool) -> Judgement:
    place = counted.stack.place
    old = "unverified: the code changed since it was counted" if changed else ""
    seen = Observation(
        Interval(value, value, value, 1.0, "every seed", 1), exact=True, note="; ".join(filter(None, (PROVENANCE, old)))
    )
    stack = stack_of(card, claim)
    command = f"leantrain count --keep -t {stack} -b {place.baseline} --size {place.size} --recipe {place.recipe}"
    unverified = ("counted",) if changed else ()
    here = EvidenceSetting(
        place.baseline, place.size, parameters=counted.reference.quantities.get("parameter_count"), device=place.device
    )
    basis = VerdictBasis(
        place.baseline,
        place.recipe,
        place.size,
        unverified=unverified,
        command=command,
        differs=differences(claim, is_exact(claim), here),
    )
    return judge(claim, card.id, seen, basis)


def _of_claim(card: Card, claim: Claim, rows: Sequence[Row], at_scale: Sequence[Judgement]) -> list[Judgement]:
    """Judges a claim by ``rows``: those of the technique against its reference."""
    if claim.kind == "literature":
        return [judge(claim, card.id, Observation(), VerdictBasis())]
    judgements: list[Judgement] = []
    for baseline in claim.baselines or card.baselines:
        near = [row for row in rows if (row.conditions.baseline, row.conditions.task) == (baseline, card.task)]
        fitting = best(claim, (row for row in near if not unfit_row(claim, row)))
        judgements += [judge_row(card, claim, row) for row in fitting]
        counted = [judgement for judgement in at_scale if judgement.baseline == baseline]
        judgements += counted
        if not fitting and not counted:
            others = sorted({unfit_row(claim, row) for row in near})
            reason = "no evidence" + (f", only of {' and of '.join(others)}" if others else "")
            basis = VerdictBasis(baseline, command=_command(card, claim, baseline))
            judgements.append(judge(claim, card.id, Observation(reason=reason), basis))
    return judgements


def _by_studies(card: Card, claim: Claim, studies: Sequence[Study]) -> list[Judgement]:
    """Returns the verdicts by the technique's studies on each baseline that the claim is about."""
    judgements: list[Judgement] = []
    for baseline in claim.baselines or card.baselines:
        own_studies = [
            study
            for study in studies
            if (study.technique, study.baseline) == (card.id, baseline)
            and not unfit(claim, study.recipe, study.size, study.device)
        ]
        judgements += [_by_study(card, claim, study) for study in own_studies]
        if not own_studies:
            basis = VerdictBasis(baseline, command=f"leantrain study {card.id} -b {baseline}")
            judgements.append(judge(claim, card.id, Observation(reason="the study was not made"), basis))
    return judgements


def _by_study(card: Card, claim: Claim, study: Study) -> Judgement:
    changed = study.unverified()
    seen = replace(_in_study(claim, study), note="unverified: the code changed since the study" if changed else "")
    here = EvidenceSetting(study.baseline, study.size, device=study.device)
    options = f"-b {study.baseline} --size {study.size} --seeds {max(3, study.seeds)}"
    basis = VerdictBasis(
        study.baseline,
        study.recipe,
        study.size,
        study.machine.name,
        unverified=("learned",) if changed else (),
        command=f"leantrain study {card.id} {options}",
        differs=differences(claim, False, here),
        newest=study.made.isoformat(),
    )
    return judge(claim, card.id, seen, basis)


def _in_study(claim: Claim, study: Study) -> Observation:
    """Observes what the claim's cell holds: a share of as many seeds as its row says, or a modelled number."""
    _, name, column = claim.metric.split(".")
    by_model = claim.kind == "modelled"
    table = next((candidate for candidate in study.tables if candidate.name == name), None)
    if table is None or not {column, *claim.cell, *(() if by_model else ("seeds",))} <= {*table.columns}:
        return Observation(reason=f"the study has no {column} in a table {name}")
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    fitting = [row for row in rows if all(row[key] == value for key, value in claim.cell.items())]
    if len(fitting) != 1:
        wanted = ", ".join(f"{key} {value}" for key, value in claim.cell.items())
        return Observation(reason=f"{len(fitting)} rows of the table {name} have {wanted}")
    return _as_modelled(fitting[0], column) if by_model else _share(fitting[0], column)


def _as_modelled(row: Mapping[str, Any], column: str) -> Observation:
    """Observes a model's number, from the row's ``least`` to its ``most`` where it has them."""
    value = row[column]
    if not isinstance(value, int | float) or not math.isfinite(value):
        return Observation(reason=f"unavailable: {row.get('unavailable') or f'the study has no number in {column}'}")
    return Observation(Interval(value, row.get("least", value), row.get("most", value), 1.0, "the model's inputs", 1))


def _share(row: Mapping[str, Any], column: str) -> Observation:
    """Observes a share, of all of the seeds, or one tells nothing."""
    share, seeds = row[column], row["seeds"]
    if not isinstance(share, int | float) or not 0 <= share <= 1:
        return Observation(reason=f"{column} is no share of the seeds")
    several = seeds > 1
    low, high = (share, share) if several else (-math.inf, math.inf)
    return Observation(Interval(share, low, high, 1.0, "every seed", seeds), exact=several)


def judge_row(card: Card, claim: Claim, row: Row) -> Judgement:
    """Judge a claim by one row."""
    return judge(claim, card.id, observed(claim, row), _basis(card, claim, row))


def best(claim: Claim, rows: Iterable[Row]) -> list[Row]:
    """Choose one row for each baseline, recipe, size, model, device and machine; of an older version of the baseline
    only where no machine has one of a newer version that tells anything of the claim."""
    by_setting: dict[tuple[Any, ...], dict[tuple[int, str], Row]] = {}
    for row in sorted(rows, key=lambda row: (not row.unverified, len(row.seeds), len(row.known.timed), row.newest)):
        c = row.conditions
        setting = c.baseline, c.recipe, c.size, c.model or "", c.device
        by_setting.setdefault(setting, {})[c.baseline_version, row.machine.key] = row
    return [row for _, of_setting in sorted(by_setting.items()) for row in _of_newest(claim, of_setting)]


def _of_newest(claim: Claim, of_place: Mapping[tuple[int, str], Row]) -> list[Row]:
    """Keep the rows, by version and machine, of the newest version that tells something; of the newest where none
    does."""
    versions = {version for version, _ in of_place}
    if len(versions) > 1:
        versions = {version for (version, _), row in of_place.items() if _tells(claim, row)} or versions
    return [row for (version, _), row in sorted(of_place.items()) if version == max(versions)]


def _tells(claim: Claim, row: Row) -> bool:
    """Tells whether the claim's metric was measured in the row, or its run failed."""
    seen = observed(claim, row)
    return bool(seen.interval or seen.missed or _failure(claim, row))


def unfit_row(claim: Claim, row: Row) -> str:
    """Name what a row is of or lacks that the claim is not about; "" where the claim can be judged by it."""
    why = unfit(claim, row.conditions.recipe, row.conditions.size, row.conditions.device)
    return why or ("" if is_exact(claim) else _lacks(claim, row))


def _lacks(claim: Claim, row: Row) -> str:
    """Name what the row's runs do not have and the claim needs; "" where they have all."""
    needs, (reference, _) = claim.needs, row.known.counted
    recipes = [run.reference.recipe for run in row.known.learned] or [
        timing.reference.recipe for timing in row.known.timed
    ]
    counters = counters_of(reference)
    has = {
        "steps": row.conditions.steps,
        "batch_size": recipes[0].get("batch_size") if recipes else None,
        "parameters": counters.parameter_count if counters else None,
    }
    for name, number in has.items():
        least = getattr(needs, name)
        if least is not None and (number is None or number < least):
            what = name.replace("_", " ")
            held = f"an unknown {what}" if number is None else f"{number} {what}"
            return f"{held} (claimed for {least} or more)"
    return ""


def _untuned(claim: Claim, row: Row) -> str:
    """Tells why a quality says as much of the learning rate as of the technique; "" where rates are settled, or not
    asked for."""
    metric = metric_of(claim.metric)
    of_quality = metric is not None and metric.quality and row.to_tune
    return untuned(row) if not is_exact(claim) and (claim.needs.tuned or of_quality) else ""


def unfit(claim: Claim, recipe: str, size: str, device: str) -> str:
    """Name the condition that the claim is not about; "" where the claim applies."""
    if claim.recipes and recipe not in claim.recipes:
        return f"the {recipe} recipe (claimed for {', '.join(claim.recipes)})"
    if claim.devices and device not in claim.devices:
        return f"{device} (claimed for {', '.join(claim.devices)})"
    if claim.sizes and size not in claim.sizes:
        return f"size {size} (claimed for {', '.join(claim.sizes)})"
    return ""


def _basis(card: Card, claim: Claim, row: Row) -> VerdictBasis:
    c = row.conditions
    setting = {
        "-b": c.baseline,
        "--recipe": c.recipe,
        "--size": c.size,
        "--task": c.task,
        "--steps": c.steps,
        "--seeds": max(3, len(row.seeds)),
        "--model": c.model,
        "--device": c.device,
        "--threads": c.threads,
    }
    return VerdictBasis(
        c.baseline,
        c.recipe,
        c.model or c.size,
        row.machine.name,
        row.records,
        row.unverified,
        _compare(stack_of(card, claim), control_of(claim), card.task, setting),
        _distance(claim, row),
        cpu_seconds(row),
        row.newest,
        c.baseline_version,
    )


def _distance(claim: Claim, row: Row) -> tuple[str, ...]:
    """Tells what sets a row apart from the paper's setting, and what arithmetic keeps it from."""
    exact = is_exact(claim)
    flops, budget = row.value("training_flops"), row.value("equivalent_budget")
    high = budget.speedup.high if budget.speedup else None
    reach = "" if exact else out_of_reach(claim, flops.number if flops.known else None, high)
    return (*differences(claim, exact, setting_of(row)), *([reach] if reach else []))


def setting_of(row: Row) -> EvidenceSetting:
    """Tells where a row's evidence comes from, as papers say it of theirs."""
    c, counters = row.conditions, row.known.counters[0]
    recipes = [run.reference.recipe for run in row.known.learned]
    recipes += [timing.reference.recipe for timing in row.known.timed]
    batch = recipes[0].get("batch_size") if recipes else None
    return EvidenceSetting(
        c.baseline,
        "" if c.model else c.size,
        c.model or "",
        parameters=counters.parameter_count if counters else None,
        examples=c.steps * batch if batch else None,
        data=c.data,
        device=str(row.machine.facts.get("gpu") or c.device) if c.device != "cpu" else "cpu",
        tuned=row.tuned is not None and not row.tuning_open,
    )


def cpu_seconds(row: Row) -> float | None:
    """Returns the processor seconds of both sides' learned and timed steps; None where any were not recorded."""
    learned = [side.cpu_s for run in row.known.learned for side in run.sides]
    every = [*learned, *(side.cpu_s for timing in row.known.timed for side in timing.sides)]
    known = [seconds for seconds in every if seconds is not None]
    return sum(known) if every and len(known) == len(every) else None


def _command(card: Card, claim: Claim, baseline: str) -> str:
    """Returns the command that would measure the missing evidence."""
    if is_exact(claim):
        return exact_command(card, claim, baseline, *claim.sizes[:1])
    options = {"--recipe": claim.recipes, "--size": claim.sizes, "--device": claim.devices}
    chosen = {"-b": baseline} | {name: values[0] for name, values in options.items() if values}
    return _compare(stack_of(card, claim), control_of(claim), card.task, chosen)


def exact_command(card: Card, claim: Claim, baseline: str, size: Size = "nano", settings: str = "") -> str:
    name = f"{card.id}.{claim.id}" + (f":{settings}" if settings else "")
    return f"leantrain claims {name} --exact -b {baseline}" + (f" --size {size}" if size != "nano" else "")


def _compare(stack: str, against: str, task: str, options: Mapping[str, Any]) -> str:
    plain = Setting(baseline="")
    usual = {"--device": plain.device, "--threads": plain.threads, "--model": None, "--task": task}
    written = [f"{name} {value}" for name, value in options.items() if name not in usual or value != usual[name]]
    return " ".join(["leantrain compare", stack, *([against] if against else []), *written])


# for people ---------------------------------------------------------------------------------------------------------


def expectation(claim: Claim) -> str:
    """Returns the claimed predicate, e.g. ``step_time <= 0.98``."""
    if claim.expected is None:
        return claim.metric
    near = f" (within {claim.tolerance:.3g} of it)" if claim.tolerance else ""
    return f"{claim.metric} {claim.relation} {claim.expected:.6g}{near}"


def shown(judgement: Judgement) -> str:
    """Returns the evidence as a number with its interval."""
    interval = judgement.interval
    if interval is None:
        return ""
    if interval.low == interval.high:
        return f"{interval.estimate:.6g}"
    if interval.method == BEYOND:
        return f"at {'least' if math.isinf(interval.high) else 'most'} {interval.estimate:.4g}"
    return f"{interval.estimate:.4g} [{interval.low:.4g}, {interval.high:.4g}]"
