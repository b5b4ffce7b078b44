"""Verdicts: the order of the words over a grid of claims and intervals, and what evidence makes of them."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from suite.cli import Exit, app
from suite.entries.card import Card, Claim
from suite.judge.at_scale import CountsAtScale
from suite.judge.claims import (
    BEYOND,
    Judgement,
    Observation,
    VerdictBasis,
    band,
    decide,
    is_exact,
    judge,
    shown,
    verdicts,
)
from suite.judge.statistics import OVER_REPLICATES, Interval
from suite.record.paper_scale import PaperScale, SizeCount
from suite.record.placed import CountPlace
from suite.record.schema import Code, Counted, Learned, Line, Side, Status, Timed
from suite.record.store import Store
from tests.factories import (
    CODE,
    MACHINE,
    between,
    claim,
    conditions,
    counted,
    counters,
    evidence,
    learned,
    rows,
    side,
    timed,
)


def card(*claims: Claim, **changes: Any) -> Card:
    paper = {"title": "T", "authors": "A", "venue": "V"}
    values: dict[str, Any] = {
        "id": "fast",
        "name": "Fast",
        "category": "ideas",
        "summary": "S",
        "paper": paper,
        "baselines": ["gpt"],
        "claim": claims,
    }
    return Card(**values | changes)


def word(of: Claim, seen: Observation) -> str:
    return decide(of, seen)[0]


# the decision, case by case: the claim's conservative end counts, not the estimate


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.70, 0.79, "holds"),
        (0.70, 0.80, "holds"),
        (0.70, 0.85, "undecided"),  # the estimate reaches the claim, the conservative end does not
        (0.85, 0.95, "does not hold"),
        (0.85, 1.05, "does not hold"),
        (0.75, 1.05, "undecided"),
        (1.01, 1.10, "does not hold"),
        (0.85, 1.00, "does not hold"),
    ],
)
def test_a_claimed_gain(low: float, high: float, expected: str) -> None:
    assert word(claim(), between(low, high)) == expected
    mirrored = claim(expected=1 / 0.8, relation=">=")
    assert word(mirrored, between(1 / high, 1 / low)) == expected


@pytest.mark.parametrize(
    ("changes", "low", "high", "expected"),
    [
        ({"tolerance": 0.1}, 0.80, 0.87, "holds"),
        ({"expected": 0.95, "tolerance": 0.1}, 0.96, 0.99, "holds"),
        ({"expected": 0.95, "tolerance": 0.1}, 1.01, 1.02, "does not hold"),  # a tolerance makes no gain of a loss
        ({"expected": 0.95, "tolerance": 0.1}, 0.96, 1.02, "undecided"),
        ({"expected": 1.3}, 1.1, 1.25, "holds"),  # a bound on the price
        ({"expected": 1.3}, 1.31, 1.4, "does not hold"),
        ({"expected": 1.3}, 1.2, 1.4, "undecided"),
        ({"expected": 1.0, "relation": "<"}, 0.9, 0.99, "holds"),
        ({"expected": 1.0, "relation": "<"}, 0.9, 1.0, "undecided"),
        ({"expected": 1.0, "relation": "<"}, 1.0, 1.1, "does not hold"),
        ({"expected": 1.0, "relation": "==", "tolerance": 0.01}, 0.995, 1.005, "holds"),
        ({"expected": 1.0, "relation": "==", "tolerance": 0.01}, 0.98, 1.005, "undecided"),
        ({"expected": 1.0, "relation": "==", "tolerance": 0.01}, 1.02, 1.03, "does not hold"),
        ({"expected": 2.0, "relation": "==", "tolerance": 0.1}, 1.9, 2.1, "holds"),
        ({"expected": 2.0, "relation": "==", "tolerance": 0.1}, 1.4, 1.6, "does not hold"),
        ({"expected": 2.0, "relation": "==", "tolerance": 0.1}, 0.9, 1.6, "does not hold"),
        ({"expected": 2.0, "relation": "==", "tolerance": 0.1}, 0.7, 0.9, "does not hold"),
        ({"expected": 3.0, "absolute": True}, 1.5, 2.9, "holds"),
        ({"expected": 3.0, "absolute": True}, 3.5, 3.9, "does not hold"),
    ],
)
def test_other_claims(changes: dict[str, Any], low: float, high: float, expected: str) -> None:
    assert word(claim(**changes), between(low, high)) == expected


def test_quality_comes_before_the_number() -> None:
    fast = between(0.5, 0.6)
    limited = claim(quality_within=0.01)
    assert word(limited, fast) == "holds"
    for low, high, expected in ((1.02, 1.05, "does not hold"), (0.99, 1.05, "undecided")):
        quality = Interval(1.03, low, high, 0.95, OVER_REPLICATES, 3)
        assert word(limited, Observation(fast.interval, fast.spread, quality=quality)) == expected
    slow = Observation(*[getattr(between(1.2, 1.3), name) for name in ("interval", "spread")], quality=quality)
    assert word(limited, slow) == "does not hold"  # whatever the quality is
    assert word(limited, Observation(missed="ended 5 % worse", certain=True)) == "does not hold"
    assert word(limited, Observation(missed="ended 5 % worse")) == "undecided"


def test_one_replicate_is_never_a_verdict() -> None:
    assert word(claim(), Observation(Interval(0.5, 0, math.inf, 0.95, OVER_REPLICATES, 1, 0))) == "undecided"
    assert word(claim(), between(0.70, 0.71, n=1)) == "undecided"
    assert word(claim(), beyond(0.0, 0.4, seeds=1)) == "undecided"


def beyond(low: float, high: float, seeds: int = 3) -> Observation:
    """A bound: one end is 0 or infinite."""
    end = low if math.isinf(high) else high
    return Observation(Interval(end, low, high, 1.0 if seeds > 1 else 0.0, BEYOND, seeds))


@pytest.mark.parametrize(
    ("changes", "low", "high", "expected"),
    [
        ({}, 0.0, 0.79, "holds"),
        ({}, 0.0, 0.9, "undecided"),  # it may be 0.9 as well as 0.1
        ({}, 0.0, 1.1, "undecided"),
        ({}, 1.1, math.inf, "does not hold"),
        ({}, 0.9, math.inf, "does not hold"),
        ({}, 0.7, math.inf, "undecided"),
        ({"expected": 0.5, "relation": "==", "tolerance": 0.1}, 0.0, 0.4, "does not hold"),  # more than was claimed
        ({"expected": 2.0, "relation": ">="}, 2.5, math.inf, "holds"),
        ({"expected": 1.3, "relation": "<="}, 1.4, math.inf, "does not hold"),
        ({"quality_within": 0.01}, 0.0, 0.5, "undecided"),  # the quality is not known
    ],
)
def test_a_bound_is_judged_by_its_one_end(changes: dict[str, Any], low: float, high: float, expected: str) -> None:
    assert word(claim(**changes), beyond(low, high)) == expected


def test_an_inconclusive_verdict_says_what_would_decide() -> None:
    # half-width 0.1 in log units of 3 seeds, 0.08 from the claim: sigma 0.04, so a handful of seeds
    reason = decide(claim(), between(0.8 * math.exp(-0.18), 0.8 * math.exp(0.02)))[1]
    assert reason == "about 5 replicates would decide"
    assert "hardly decide" in decide(claim(), between(0.8 * math.exp(-0.1), 0.8 * math.exp(0.1)))[1]


@pytest.mark.parametrize("kind", ["identity", "counted"])
def test_exact_claims_have_no_shades(kind: str) -> None:
    half = claim(kind=kind, metric="flops", expected=0.5, relation="==", tolerance=0.01)

    def seeds(low: float, high: float) -> Observation:
        return Observation(Interval(low, low, high, 1.0, "every seed", 2), exact=True)

    assert word(half, seeds(0.5, 0.504)) == "holds"
    assert word(half, seeds(0.5, 0.506)) == "does not hold"  # one seed is enough
    assert word(half, seeds(0.7, 0.7)) == "does not hold"
    assert judge(half, "fast", seeds(0.5, 0.5), VerdictBasis()).detectable is None


def test_literature_is_quoted_and_models_are_not_judged() -> None:
    assert word(claim(kind="literature"), between(0.7, 0.71)) == "quoted"
    assert word(claim(kind="literature", expected=None), Observation()) == "quoted"
    assert word(claim(kind="modelled"), between(0.7, 0.71)) == "modelled"
    assert word(claim(kind="modelled"), between(1.7, 1.71)) == "modelled"
    assert decide(claim(), Observation(reason="no GPU")) == ("not measured", "no GPU")


# properties

relations = st.sampled_from(["==", "<=", ">=", "<", ">"])
numbers = st.floats(0.1, 10)
claims = st.builds(
    lambda expected, relation, tolerance, absolute, limit: claim(
        expected=expected, relation=relation, tolerance=tolerance, absolute=absolute, quality_within=limit
    ),
    st.one_of(numbers, st.just(1.0)),
    relations,
    st.floats(0, 0.5),
    st.booleans(),
    st.none() | st.floats(0, 0.1),
)
spans = st.tuples(numbers, numbers).map(lambda ends: (min(ends), max(ends)))
DEFINITE = {"does not hold", "holds"}


@settings(deadline=None)
@given(claims, spans, st.floats(0.5, 1), st.floats(1, 2))
def test_less_knowledge_never_gives_a_stronger_or_opposite_verdict(
    of: Claim, span: tuple[float, float], down: float, up: float
) -> None:
    narrow, wide = word(of, between(*span)), word(of, between(span[0] * down, span[1] * up))
    assert wide in {narrow, "undecided"}


@settings(deadline=None)
@given(claims, spans)
def test_reproduced_means_that_every_value_of_the_interval_satisfies_the_claim(
    of: Claim, span: tuple[float, float]
) -> None:
    low, high = band(of)
    seen = between(*span)
    assert seen.interval is not None
    found = word(of, seen)
    if found == "holds":
        assert low <= seen.interval.low <= seen.interval.high <= high
    if found == "does not hold":
        assert word(of, between(seen.interval.low, seen.interval.low)) != "holds"
        assert word(of, between(seen.interval.high, seen.interval.high)) != "holds"


@settings(deadline=None)
@given(claims, spans, st.floats(0, 0.5))
def test_a_stricter_claim_is_not_easier(of: Claim, span: tuple[float, float], tolerance: float) -> None:
    looser = of.model_copy(update={"tolerance": of.tolerance + tolerance})
    if word(of, between(*span)) == "holds":
        assert word(looser, between(*span)) == "holds"


@settings(deadline=None)
@given(claims, numbers)
def test_a_point_is_never_inconclusive(of: Claim, point: float) -> None:
    unlimited = of.model_copy(update={"quality_within": None})
    assert word(unlimited, between(point, point)) in DEFINITE


# over evidence


def judged(lines: list[Line], *claims: Claim, **changes: Any) -> list[Judgement]:
    return verdicts(rows(lines), [card(*claims, **changes)])


def only_runs(stack: str, status: Status, seeds: int, reason: str = "") -> list[Line]:
    """Runs of which the contender's ended otherwise; nothing was timed."""
    bad = [learned(stack, seed, status=status, reason=reason, final=2.0) for seed in range(seeds)]
    return [*(learned(seed=seed) for seed in range(seeds)), *bad]


def with_run(lines: list[Line], stack: str, seed: int, **changes: Any) -> list[Line]:
    """The lines with one run changed."""
    return [
        each.model_copy(update=changes)
        if isinstance(each, Learned) and (each.stack, each.seed) == (stack, seed)
        else each
        for each in lines
    ]


def test_verdicts_come_with_evidence_interval_and_command() -> None:
    lines = evidence("fast", pace_s=0.014, ruler=False)
    (verdict,) = judged(lines, claim())
    assert (verdict.outcome, verdict.baseline, verdict.technique) == ("holds", "gpt", "fast")
    assert sorted(verdict.evidence) == sorted(each.id for each in lines)
    assert verdict.interval is not None and verdict.interval.contains(0.7)
    assert verdict.detectable is not None and 0 < verdict.detectable < 0.1
    assert verdict.command == "leantrain compare fast -b gpt --recipe modern --size nano --steps 200 --seeds 3"
    assert verdict.as_dict()["unverified"] == []
    assert judged(evidence("fast", pace_s=0.03), claim())[0].outcome == "does not hold"


def test_no_evidence_other_conditions_and_other_hardware_are_not_testable() -> None:
    (verdict,) = judged([], claim(sizes=["base"]))
    assert (verdict.outcome, verdict.reason) == ("not measured", "no evidence")
    assert verdict.command == "leantrain compare fast -b gpt --size base"
    lines = evidence("fast", pace_s=0.014)
    for limit, reason in (
        ({"recipes": ["classic"]}, "only of the modern recipe (claimed for classic)"),
        ({"sizes": ["base"]}, "only of size nano (claimed for base)"),
        ({"devices": ["cuda"]}, "only of cpu (claimed for cuda)"),
    ):
        (verdict,) = judged(lines, claim(**limit))
        assert verdict.outcome == "not measured"
        assert reason in verdict.reason
    assert judged(lines, claim(metric="optimizer_time"))[0].reason == "optimizer_time is not measured"
    assert judged(lines, claim(metric="energy"))[0].outcome == "not measured"
    assert judged(lines, claim(), reference="dp_ddp")[0].outcome == "not measured"


def test_counts_at_the_papers_size_judge_exact_claims_about_them() -> None:
    place = CountPlace("gpt", "large", "classic", "cuda", "pretrain")

    def of_size(stack: str, size: int) -> SizeCount:
        numbers = {"saved_activation_bytes": size}
        return SizeCount(place=place, stack=stack, reference="baseline", code="", quantities=numbers)

    def at(size: int, of: Claim, changed: bool = False) -> list[Judgement]:
        kept = PaperScale(counts=[of_size("baseline", 100), of_size("fast", size)])
        old = frozenset({(place, "baseline")}) if changed else frozenset()
        return verdicts(rows(evidence("fast")), [card(of)], CountsAtScale(kept, old))

    half = claim(metric="saved_activation_bytes", kind="counted", expected=0.5, sizes=["large"])
    (verdict,) = at(50, half)
    assert (verdict.outcome, verdict.reason) == ("holds", "exactly; counted at paper scale")
    assert verdict.basis.title == "gpt · classic · large"
    assert verdict.command == "leantrain count --keep -t fast -b gpt --size large --recipe classic"
    assert at(60, half)[0].outcome == "does not hold"
    assert at(50, half, changed=True)[0].basis.unverified == ("counted",)
    assert at(50, half.model_copy(update={"expected": 50.0, "absolute": True}))[0].outcome == "holds"
    (elsewhere,) = at(50, half.model_copy(update={"recipes": ("modern",)}))
    assert elsewhere.outcome == "not measured"
    assert {each.basis.size for each in at(50, half.model_copy(update={"sizes": ()}))} == {"nano", "large"}
    assert not [each for each in at(50, claim()) if each.basis.size == "large"]  # of a time, which no count tells


def test_bytes_of_a_rank_of_many_are_judged_by_counts_alone() -> None:
    """Over the parameters of its model, of as many ranks as the claim's settings name; no row of two ranks counts."""
    place = CountPlace("gpt", "base", "classic", "cuda", "pretrain")

    def of(stack: str, held: int) -> SizeCount:
        numbers = {"state_bytes": held, "parameter_count": 100, "communication_bytes": 790}
        return SizeCount(place=place, stack=stack, reference="baseline", code="", quantities=numbers)

    def at(held: int, of_the_states: Claim) -> Judgement:
        kept = PaperScale(counts=[of("baseline", 1600), of("fast:ranks=64", held)])
        (judgement,) = verdicts(rows(evidence("fast")), [card(of_the_states)], CountsAtScale(kept))
        return judgement

    wanted = {"absolute": True, "kind": "counted", "sizes": ["base"], "settings": "ranks=64", "tolerance": 0.02}
    held = claim(metric="state_bytes_per_parameter", expected=4.1875, **wanted)
    sent = claim(metric="communication_bytes_per_parameter", expected=7.875, **wanted)
    assert is_exact(held) and is_exact(sent)
    assert (at(419, held).outcome, at(500, held).outcome, at(0, sent).outcome) == ("holds", "does not hold", "holds")
    (unknown,) = verdicts(rows(evidence("fast")), [card(held)])
    assert unknown.outcome == "not measured" and "--exact -b gpt --size base" in unknown.basis.command


def test_what_was_not_measured_yet_is_not_testable_and_says_how_to_measure_it() -> None:
    untimed = judged(evidence("fast", replicates=0), claim())[0]
    assert (untimed.outcome, untimed.reason) == ("not measured", "not timed yet: measure it with leantrain run")
    unlearned = judged(evidence("fast", seeds=0), claim(metric="loss"))[0]
    assert (unlearned.outcome, unlearned.reason.split(":")[0]) == ("not measured", "nothing was learned yet")
    bare = judged(evidence("fast", ruler=False), claim(metric="time_to_quality"))[0]
    assert bare.outcome == "not measured" and "scaling curve" in bare.reason


def test_a_ratio_to_a_reference_that_was_not_counted_is_no_number() -> None:
    """The contender's own 2**20 bytes are no ratio of 2**20."""
    lines = [counted(status="failed", reason="it fell over", points=[]), counted("fast")]
    lines[0] = lines[0].model_copy(update={"points": []})
    half = claim(kind="counted", metric="optimizer_state_bytes", expected=0.5)
    (verdict,) = judged(lines, half)
    assert (verdict.outcome, verdict.reason) == ("not measured", "baseline: failed: it fell over")
    (verdict,) = judged(lines, half.model_copy(update={"expected": 2.0**20, "absolute": True}))
    assert verdict.outcome == "holds"


def test_failures_are_not_held_against_a_claim_unless_it_is_about_quality() -> None:
    needs = [timed([side(), Side(stack="fast", code=CODE, status="unavailable", reason="needs CUDA")])]
    (verdict,) = judged(needs, claim())
    assert (verdict.outcome, verdict.reason) == ("not measured", "fast: unavailable: needs CUDA")
    crashed = only_runs("fast", "crashed", 3, "exit code 7")
    for metric in ("loss", "time_to_quality", "final.accuracy"):
        (verdict,) = judged(crashed, claim(metric=metric))
        assert verdict.outcome == "not measured"
    diverged = only_runs("fast", "diverged", 2, "nan")
    assert judged(diverged, claim())[0].outcome == "not measured"
    assert judged(diverged, claim(metric="loss"))[0].outcome == "does not hold"
    assert judged(diverged, claim(quality_within=0.01))[0].outcome == "does not hold"
    assert judged(only_runs("fast", "diverged", 1, "nan"), claim(metric="loss"))[0].outcome == "undecided"


def test_a_seed_that_diverged_is_not_left_out_of_a_verdict_on_quality() -> None:
    lines = evidence("fast", pace_s=0.014)
    for seed, verdict in ((0, "undecided"), (1, "does not hold")):
        lines = with_run(lines, "fast", seed, status="diverged", reason="nan", final=None)
        (found,) = judged(lines, claim(metric="time_to_quality"))
        assert (found.outcome, found.reason.split(" of 3")[0]) == (verdict, f"diverged in {seed + 1}")
    assert judged(lines, claim())[0].outcome == "holds"  # of the step's time alone
    assert "2 of 3 seeds failed" in judged(lines, claim())[0].reason
    blameless = with_run(evidence("fast", pace_s=0.008), "baseline", 0, status="diverged", final=None)
    assert judged(blameless, claim(metric="time_to_quality"))[0].outcome == "holds"


def test_a_quality_that_is_not_reached_violates_the_constraint() -> None:
    worse = evidence("fast", pace_s=0.014, final=2.4)
    assert judged(worse, claim(metric="first_crossing"))[0].outcome == "does not hold"
    assert judged(worse, claim(quality_within=0.05))[0].outcome == "does not hold"
    assert judged(worse, claim())[0].outcome == "holds"
    one = evidence("fast", pace_s=0.014, final=2.4, seeds=1)
    assert judged(one, claim(metric="first_crossing"))[0].outcome == "undecided"
    barely = evidence("fast", pace_s=0.014, final=2.03, seed_noise=0.02)
    assert judged(barely, claim(metric="first_crossing"))[0].outcome != "does not hold"


def test_a_loss_beyond_the_scaling_curve_gives_a_verdict_by_its_bound() -> None:
    better, worse = evidence("fast", final=1.5), evidence("fast", final=2.8)
    (verdict,) = judged(better, claim(metric="time_to_quality", expected=0.5))
    assert (verdict.outcome, verdict.detectable) == ("holds", None)
    assert shown(verdict).startswith("at most 0.36") and "more than 2.8" in verdict.reason
    (verdict,) = judged(worse, claim(metric="time_to_quality", expected=0.5))
    assert verdict.outcome == "does not hold" and shown(verdict).startswith("at least 2.8")
    (verdict,) = judged(better, claim(metric="equivalent_budget", expected=0.2))
    assert verdict.outcome == "undecided"
    single = evidence("fast", final=1.5, seeds=1)
    assert judged(single, claim(metric="equivalent_budget", expected=0.5))[0].outcome == "undecided"


def moved(lines: list[Line], prefix: str, **changes: Any) -> list[Line]:
    """The lines with other ids and all else that is given."""
    return [each.model_copy(update={"id": f"{prefix}{each.id}", **changes}) for each in lines]


def test_recipes_and_machines_are_judged_apart() -> None:
    classic = moved(evidence("fast", pace_s=0.03), "c", conditions=conditions(recipe="classic"))
    both = judged([*evidence("fast", pace_s=0.014), *classic], claim())
    assert [(each.basis.recipe, each.outcome) for each in both] == [
        ("classic", "does not hold"),
        ("modern", "holds"),
    ]
    other = MACHINE.model_copy(update={"name": "other", "key": "other"})
    there = [each for each in moved(evidence("fast", pace_s=0.03), "m", machine=other) if isinstance(each, Timed)]
    both = judged([*evidence("fast", pace_s=0.014), *there], claim())
    assert {each.basis.machine: each.outcome for each in both} == {
        MACHINE.name: "holds",
        "other": "does not hold",
    }


def test_verified_rows_come_first_and_a_verdict_on_unverified_ones_says_so() -> None:
    unlike = Code(trajectory="old", counts="old")
    old = moved(evidence("fast", pace_s=0.03, ruler=False), "o", conditions=conditions(data="the same by another name"))
    old = [each.model_copy(update={"code": unlike}) if isinstance(each, Learned) else each for each in old]
    (verdict,) = judged([*old, *evidence("fast", pace_s=0.014)], claim())
    assert verdict.outcome == "holds" and verdict.basis.unverified == ()
    (verdict,) = judged(old, claim())
    assert "unverified" not in verdict.reason, "the step time was not learned"
    (of_loss,) = judged(old, claim(metric="loss", kind="quality"))
    assert "unverified: the code changed since it was learned" in of_loss.reason
    assert verdict.as_dict()["unverified"] == ["learned"]


def test_an_older_version_counts_for_what_the_newer_one_does_not_tell() -> None:
    """Counts of a new version say nothing of steps or losses: what the older one measured stands until then."""
    older = moved(evidence("fast", pace_s=0.014), "o", conditions=conditions(baseline_version=98))
    new_counts = [counted(), counted("fast", points=[counters(optimizer_state_bytes=2**19)])]
    (of_time,) = judged([*older, *new_counts], claim())
    assert of_time.outcome == "holds" and "version 98" in of_time.reason
    half = claim(kind="counted", metric="optimizer_state_bytes", expected=0.5, relation="==")
    (of_bytes,) = judged([*older, *new_counts], half)
    assert of_bytes.outcome == "holds" and "version" not in of_bytes.reason
    (of_time,) = judged([*older, *evidence("fast", pace_s=0.03)], claim())
    assert of_time.outcome == "does not hold"


def test_counters_and_probes_are_judged_by_every_seed() -> None:
    half = claim(kind="counted", metric="optimizer_state_bytes", expected=0.5, relation="==")
    fewer = [counters(optimizer_state_bytes=2**19)]
    lines = evidence("fast", points=fewer, probes={"fast.kept": 0.25})
    assert judged(lines, half)[0].outcome == "holds"
    assert judged(lines, half.model_copy(update={"expected": 0.51}))[0].outcome == "does not hold"
    bytes_ = half.model_copy(update={"expected": float(2**19), "absolute": True})
    assert judged(lines, bytes_)[0].outcome == "holds"
    for name in ("probe.kept", "probe.fast.kept"):
        kept = half.model_copy(update={"metric": name, "expected": 0.25, "absolute": True})
        assert judged(lines, kept)[0].outcome == "holds"
    assert judged(with_run(lines, "fast", 2, probes={"fast.kept": 0.3}), kept)[0].outcome == "does not hold"
    assert judged(with_run(lines, "fast", 2, probes={}), kept)[0].outcome == "not measured"
    for beyond in (math.nan, math.inf):
        assert judged(with_run(lines, "fast", 2, probes={"fast.kept": beyond}), kept)[0].outcome == "does not hold"
    with_probe = [
        each.model_copy(update={"probes": {"fast.kept": 0.25}}) if isinstance(each, Counted) else each
        for each in evidence("fast")
    ]
    assert judged(with_probe, kept)[0].outcome == "holds"
    assert judged(with_probe[:2], kept)[0].outcome == "holds", "counts alone suffice"
    compiled = evidence("fast", points=[counters(optimizer_state_bytes=2**19, compiled=True)])
    assert judged(compiled, half)[0].outcome == "not measured"
    assert is_exact(half) and not is_exact(claim()) and not is_exact(claim(kind="counted"))


def test_a_probe_over_the_reference_s_is_measured_by_a_run_of_its_trajectory() -> None:
    """Of another stack: the technique at zero strength. It is no row of its own."""
    flatter = claim(kind="quality", metric="probe_ratio.fast.sharpness", expected=1.0, relation="<")
    lines = evidence("fast", probes={"fast.sharpness": 2.0}, ruler=False)
    assert judged(lines, flatter)[0].outcome == "not measured"
    references = [each for each in lines if isinstance(each, Learned) and each.stack == "baseline"]
    for sharpness, word in ((4.0, "holds"), (1.0, "does not hold"), (2.0, "undecided")):
        twins = [
            learned(
                "fast:strength=0",
                each.seed,
                trajectory_sha256=each.trajectory_sha256,
                probes={"fast.sharpness": sharpness * (1 + (each.seed - 1) / 10)},
            )
            for each in references
        ]
        (verdict,) = judged([*lines, *twins], flatter)
        assert verdict.outcome == word
        assert {each.id for each in twins} <= set(verdict.evidence)
        assert [row.stack for row in rows(lines, twins)] == ["fast"]
    others = [each.model_copy(update={"trajectory_sha256": f"other {each.seed}"}) for each in twins]
    assert judged([*lines, *others], flatter)[0].outcome == "not measured"
    old = [each.model_copy(update={"code": Code(trajectory="o" * 32, counts="o" * 32)}) for each in twins]
    assert "unverified" in judged([*lines, *old], flatter)[0].reason


def test_a_count_is_judged_before_anything_was_learned_or_timed() -> None:
    lines: list[Line] = [counted(), counted("fast", points=[counters(optimizer_state_bytes=2**19)])]
    half = claim(kind="counted", metric="optimizer_state_bytes", expected=0.5, relation="==")
    assert judged(lines, half)[0].outcome == "holds"
    assert judged(lines, half.model_copy(update={"kind": "measured", "relation": "<="}))[0].outcome == "holds"
    broken = [counted(), counted("fast", status="crashed", reason="exit code 7", points=[])]
    assert judged(broken, half)[0].outcome == "not measured"


# the command


def test_the_command_prints_verdicts_and_its_exit_code_says_the_worst(tmp_path: Any) -> None:
    store = Store(tmp_path)
    for each in evidence("lion", pace_s=0.014):
        store.append(each, MACHINE.name)
    runner = CliRunner()
    result = runner.invoke(app, ["claims", "lion", "--results", str(tmp_path)])
    assert result.exit_code == Exit.REGRESSED, result.output  # as much state as the reference: it is made up
    assert "contradicted" in result.output
    result = runner.invoke(app, ["claims", "lion.steps_per_second", "--results", str(tmp_path), "--json"])
    assert result.exit_code == Exit.FINE
    assert '"outcome": "not measured"' in result.output
    result = runner.invoke(app, ["claims", "lino"])
    assert result.exit_code == Exit.USAGE
    assert "did you mean lion" in result.output
    assert runner.invoke(app, ["claims", "lion.cifar"]).exit_code == Exit.USAGE
    assert runner.invoke(app, ["claims", "lion.quality", "--exact"]).exit_code == Exit.NOTHING
