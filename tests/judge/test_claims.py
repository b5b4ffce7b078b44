"""Verdicts: the order of the words over a grid of claims and intervals, and what records make of them."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from suite.cli import Exit, app
from suite.contract.card import Card, Claim
from suite.contract.sources import Sources
from suite.judge.claims import (
    ClaimPlace,
    Judgement,
    Observation,
    band,
    counts,
    decide,
    is_exact,
    judge,
    table,
    verdicts,
)
from suite.judge.rows import pairs
from suite.judge.statistics import OVER_SEEDS, WITHIN_ONE_SEED, Interval
from suite.record.store import Store
from tests.factories import between, changed, claim, comparison, conditions, contender, counters, failure, record


def card(*claims: Claim, **changes: Any) -> Card:
    paper = {"title": "T", "authors": "A", "venue": "V"}
    values: dict[str, Any] = {
        "id": "fast", "name": "Fast", "category": "ideas", "summary": "S", "paper": paper, "baselines": ["gpt"],
        "claim": claims,
    }  # fmt: skip
    return Card(**values | changes)


def word(of: Claim, seen: Observation) -> str:
    return decide(of, seen)[0]


# the decision, case by case: the claim's conservative end counts, not the estimate


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.70, 0.79, "reproduced"),
        (0.70, 0.80, "reproduced"),
        (0.70, 0.85, "inconclusive"),  # the estimate reaches the claim, the conservative end does not
        (0.85, 0.95, "direction only"),
        (0.85, 1.05, "not supported"),
        (0.75, 1.05, "inconclusive"),
        (1.01, 1.10, "contradicted"),
        (0.85, 1.00, "not supported"),
    ],
)
def test_a_claimed_gain(low: float, high: float, expected: str) -> None:
    assert word(claim(), between(low, high)) == expected
    mirrored = claim(expected=1 / 0.8, relation=">=")
    assert word(mirrored, between(1 / high, 1 / low)) == expected


@pytest.mark.parametrize(
    ("changes", "low", "high", "expected"),
    [
        ({"tolerance": 0.1}, 0.80, 0.87, "reproduced"),
        ({"expected": 0.95, "tolerance": 0.1}, 0.96, 0.99, "reproduced"),
        ({"expected": 0.95, "tolerance": 0.1}, 1.01, 1.02, "contradicted"),  # a tolerance makes no gain of a loss
        ({"expected": 0.95, "tolerance": 0.1}, 0.96, 1.02, "inconclusive"),
        ({"expected": 1.3}, 1.1, 1.25, "reproduced"),  # a bound on the price
        ({"expected": 1.3}, 1.31, 1.4, "contradicted"),
        ({"expected": 1.3}, 1.2, 1.4, "inconclusive"),
        ({"expected": 1.0, "relation": "<"}, 0.9, 0.99, "reproduced"),
        ({"expected": 1.0, "relation": "<"}, 0.9, 1.0, "inconclusive"),
        ({"expected": 1.0, "relation": "<"}, 1.0, 1.1, "contradicted"),
        ({"expected": 1.0, "relation": "==", "tolerance": 0.01}, 0.995, 1.005, "reproduced"),
        ({"expected": 1.0, "relation": "==", "tolerance": 0.01}, 0.98, 1.005, "inconclusive"),
        ({"expected": 1.0, "relation": "==", "tolerance": 0.01}, 1.02, 1.03, "contradicted"),
        ({"expected": 2.0, "relation": "==", "tolerance": 0.1}, 1.9, 2.1, "reproduced"),
        ({"expected": 2.0, "relation": "==", "tolerance": 0.1}, 1.4, 1.6, "direction only"),
        ({"expected": 2.0, "relation": "==", "tolerance": 0.1}, 0.9, 1.6, "not supported"),
        ({"expected": 2.0, "relation": "==", "tolerance": 0.1}, 0.7, 0.9, "contradicted"),
        ({"expected": 3.0, "absolute": True}, 1.5, 2.9, "reproduced"),
        ({"expected": 3.0, "absolute": True}, 3.5, 3.9, "contradicted"),
    ],
)
def test_other_claims(changes: dict[str, Any], low: float, high: float, expected: str) -> None:
    assert word(claim(**changes), between(low, high)) == expected


def test_quality_comes_before_the_number() -> None:
    fast = between(0.5, 0.6)
    limited = claim(quality_within=0.01)
    assert word(limited, fast) == "reproduced"
    for low, high, expected in ((1.02, 1.05, "quality constraint violated"), (0.99, 1.05, "inconclusive")):
        quality = Interval(1.03, low, high, 0.95, OVER_SEEDS, 3)
        assert word(limited, Observation(fast.interval, fast.spread, quality=quality)) == expected
    slow = Observation(*[getattr(between(1.2, 1.3), name) for name in ("interval", "spread")], quality=quality)
    assert word(limited, slow) == "contradicted"  # whatever the quality is
    assert word(limited, Observation(missed="ended 5 % worse", certain=True)) == "quality constraint violated"
    assert word(limited, Observation(missed="ended 5 % worse")) == "inconclusive"


def test_one_seed_is_never_a_verdict() -> None:
    assert word(claim(), between(0.70, 0.71, n=30, method=WITHIN_ONE_SEED)) == "inconclusive"
    assert word(claim(), Observation(Interval(0.5, 0, math.inf, 0.95, OVER_SEEDS, 1))) == "inconclusive"


def test_an_inconclusive_verdict_says_what_would_decide() -> None:
    # half-width 0.1 in log units of 3 seeds, 0.08 from the claim: sigma 0.04, so a handful of seeds
    reason = decide(claim(), between(0.8 * math.exp(-0.18), 0.8 * math.exp(0.02)))[1]
    assert reason == "about 5 seeds would decide"
    assert "hardly decide" in decide(claim(), between(0.8 * math.exp(-0.1), 0.8 * math.exp(0.1)))[1]


@pytest.mark.parametrize("kind", ["identity", "counted"])
def test_exact_claims_have_no_shades(kind: str) -> None:
    half = claim(kind=kind, metric="flops", expected=0.5, relation="==", tolerance=0.01)

    def seeds(low: float, high: float) -> Observation:
        return Observation(Interval(low, low, high, 1.0, "every seed", 2), exact=True)

    assert word(half, seeds(0.5, 0.504)) == "reproduced"
    assert word(half, seeds(0.5, 0.506)) == "contradicted"  # one seed is enough
    assert word(half, seeds(0.7, 0.7)) == "contradicted"
    assert judge(half, "fast", seeds(0.5, 0.5), ClaimPlace()).detectable is None


def test_literature_is_quoted_and_models_are_not_judged() -> None:
    assert word(claim(kind="literature"), between(0.7, 0.71)) == "quoted"
    assert word(claim(kind="literature", expected=None), Observation()) == "quoted"
    assert word(claim(kind="modelled"), between(0.7, 0.71)) == "modelled"
    assert word(claim(kind="modelled"), between(1.7, 1.71)) == "modelled"
    assert decide(claim(), Observation(reason="no GPU")) == ("not testable here", "no GPU")


# properties

relations = st.sampled_from(["==", "<=", ">=", "<", ">"])
numbers = st.floats(0.1, 10)
claims = st.builds(
    lambda expected, relation, tolerance, absolute, limit: claim(
        expected=expected, relation=relation, tolerance=tolerance, absolute=absolute, quality_within=limit
    ),
    st.one_of(numbers, st.just(1.0)), relations, st.floats(0, 0.5), st.booleans(), st.none() | st.floats(0, 0.1),
)  # fmt: skip
spans = st.tuples(numbers, numbers).map(lambda ends: (min(ends), max(ends)))
DEFINITE = {"contradicted", "reproduced", "direction only", "not supported"}
WEAKER = {  # what a verdict may become when the interval widens about it
    "contradicted": {"contradicted", "not supported", "inconclusive"},
    "reproduced": {"reproduced", "inconclusive"},
    "direction only": {"direction only", "not supported", "inconclusive"},
    "not supported": {"not supported", "inconclusive"},
    "inconclusive": {"inconclusive"},
}


@settings(deadline=None)
@given(claims, spans, st.floats(0.5, 1), st.floats(1, 2))
def test_less_knowledge_never_gives_a_stronger_or_opposite_verdict(
    of: Claim, span: tuple[float, float], down: float, up: float
) -> None:
    narrow, wide = word(of, between(*span)), word(of, between(span[0] * down, span[1] * up))
    assert wide in WEAKER[narrow]


@settings(deadline=None)
@given(claims, spans)
def test_reproduced_means_that_every_value_of_the_interval_satisfies_the_claim(
    of: Claim, span: tuple[float, float]
) -> None:
    low, high = band(of)
    seen = between(*span)
    assert seen.interval is not None
    found = word(of, seen)
    if found == "reproduced":
        assert low <= seen.interval.low <= seen.interval.high <= high
    if found == "contradicted":
        assert word(of, between(seen.interval.low, seen.interval.low)) != "reproduced"
        assert word(of, between(seen.interval.high, seen.interval.high)) != "reproduced"


@settings(deadline=None)
@given(claims, spans, st.floats(0, 0.5))
def test_a_stricter_claim_is_not_easier(of: Claim, span: tuple[float, float], tolerance: float) -> None:
    looser = of.model_copy(update={"tolerance": of.tolerance + tolerance})
    if word(of, between(*span)) == "reproduced":
        assert word(looser, between(*span)) == "reproduced"


@settings(deadline=None)
@given(claims, numbers)
def test_a_point_is_never_inconclusive(of: Claim, point: float) -> None:
    unlimited = of.model_copy(update={"quality_within": None})
    assert word(unlimited, between(point, point)) in DEFINITE


# over records


def judged(records: Any, *claims: Claim, **changes: Any) -> list[Judgement]:
    return verdicts(pairs(records), [card(*claims, **changes)])


def test_verdicts_come_with_evidence_interval_and_command() -> None:
    records = comparison("fast", pace_s=0.014)
    (verdict,) = judged(records, claim())
    assert (verdict.verdict, verdict.baseline, verdict.technique) == ("reproduced", "gpt", "fast")
    assert verdict.evidence == tuple(each.id for each in records)
    assert verdict.interval is not None and verdict.interval.contains(0.7)
    assert verdict.detectable is not None and 0 < verdict.detectable < 0.1
    assert verdict.command == "leantrain compare fast -b gpt --recipe modern --size nano --steps 200 --seeds 3"
    assert judged(comparison("fast", pace_s=0.03), claim())[0].verdict == "contradicted"


def test_no_record_other_conditions_and_other_hardware_are_not_testable() -> None:
    (verdict,) = judged([], claim(sizes=["base"]))
    assert (verdict.verdict, verdict.reason) == ("not testable here", "no record")
    assert verdict.command == "leantrain compare fast -b gpt --size base"
    records = comparison("fast", pace_s=0.014)
    for limit, reason in (
        ({"recipes": ["classic"]}, "only of the modern recipe (claimed for classic)"),
        ({"sizes": ["base"]}, "only of size nano (claimed for base)"),
        ({"devices": ["cuda"]}, "only of cpu (claimed for cuda)"),
    ):
        (verdict,) = judged(records, claim(**limit))
        assert verdict.verdict == "not testable here"
        assert reason in verdict.reason
    assert judged(records, claim(metric="optimizer_time"))[0].reason == "optimizer_time is not measured"
    assert judged(records, claim(metric="energy"))[0].verdict == "not testable here"
    assert judged(records, claim(), reference="dp_ddp")[0].verdict == "not testable here"


def test_failures_are_not_held_against_a_claim_unless_it_is_about_quality() -> None:
    gpu = [record([contender(), failure("fast", "unavailable", "needs CUDA")], seed) for seed in range(2)]
    (verdict,) = judged(gpu, claim())
    assert (verdict.verdict, verdict.reason) == ("not testable here", "no seed finished: fast: unavailable: needs CUDA")
    diverged = [record([contender(), failure("fast", "diverged", "nan")], seed) for seed in range(2)]
    assert judged(diverged, claim())[0].verdict == "not testable here"
    assert judged(diverged, claim(metric="loss"))[0].verdict == "quality constraint violated"
    assert judged(diverged[:1], claim(metric="loss"))[0].verdict == "inconclusive"


def test_a_quality_that_is_not_reached_violates_the_constraint() -> None:
    worse = comparison("fast", pace_s=0.014, final=2.4)
    assert judged(worse, claim(metric="time_to_quality"))[0].verdict == "quality constraint violated"
    assert judged(worse, claim(quality_within=0.05))[0].verdict == "quality constraint violated"
    assert judged(worse, claim())[0].verdict == "reproduced"
    assert judged(worse[:1], claim(metric="time_to_quality"))[0].verdict == "inconclusive"


def test_recipes_are_judged_apart_and_current_rows_come_first() -> None:
    classic = [
        each.model_copy(update={"conditions": conditions(recipe="classic"), "id": f"c{each.seed}"})
        for each in comparison("fast", pace_s=0.03)
    ]
    both = judged(comparison("fast", pace_s=0.014) + classic, claim())
    assert [(each.place.recipe, each.verdict) for each in both] == [
        ("classic", "contradicted"),
        ("modern", "reproduced"),
    ]
    old = [each.model_copy(update={"harness_sha256": "old", "id": f"o{each.seed}"}) for each in classic]
    now = Sources("h" * 64, {"gpt": "b" * 64}, {"fast": "1" * 64})
    (verdict,) = verdicts(pairs([*old, *classic], now), [card(claim())])
    assert verdict.evidence == ("c0", "c1", "c2")
    (verdict,) = verdicts(pairs(old, now), [card(claim())])
    assert "stale: the harness changed" in verdict.reason


def test_counters_and_probes_are_judged_by_every_seed() -> None:
    half = claim(kind="counted", metric="optimizer_state_bytes", expected=0.5, relation="==")
    records = changed(comparison("fast"), counters=counters(optimizer_state_bytes=2**19), probes={"fast.kept": 0.25})
    assert judged(records, half)[0].verdict == "reproduced"
    assert judged(records, half.model_copy(update={"expected": 0.51}))[0].verdict == "contradicted"
    bytes_ = half.model_copy(update={"expected": float(2**19), "absolute": True})
    assert judged(records, bytes_)[0].verdict == "reproduced"
    for name in ("probe.kept", "probe.fast.kept"):
        kept = half.model_copy(update={"metric": name, "expected": 0.25, "absolute": True})
        assert judged(records, kept)[0].verdict == "reproduced"
    one_differs = [*records[:2], *changed(comparison("fast")[2:], probes={"fast.kept": 0.3})]
    assert judged(one_differs, kept)[0].verdict == "contradicted"
    compiled = changed(comparison("fast"), counters=counters(optimizer_state_bytes=2**19, compiled=True))
    assert judged(compiled, half)[0].verdict == "not testable here"
    assert is_exact(half) and not is_exact(claim()) and not is_exact(claim(kind="counted"))


def test_the_table_joins_places_that_agree() -> None:
    found = judged([], claim(), claim(id="quoted", kind="literature"), baselines=["gpt", "vit"])
    assert counts(found) == {"not testable here": 2, "quoted": 1}
    assert [line[0] for line in table(found)] == ["not testable here", "quoted"]
    assert table(found)[0][4] == "gpt, vit"


# the command


def test_the_command_prints_verdicts_and_its_exit_code_says_the_worst(tmp_path: Any) -> None:
    store = Store(tmp_path)
    for each in comparison("lion", pace_s=0.014):
        store.append(each)
    runner = CliRunner()
    result = runner.invoke(app, ["claims", "lion", "--results", str(tmp_path)])
    assert result.exit_code == Exit.REGRESSED, (
        result.output
    )  # as much state as the reference: these records are made up
    assert "contradicted" in result.output
    result = runner.invoke(app, ["claims", "lion.update_traffic", "--results", str(tmp_path), "--json"])
    assert result.exit_code == Exit.FINE
    assert '"verdict": "not testable here"' in result.output
    result = runner.invoke(app, ["claims", "lino"])
    assert result.exit_code == Exit.USAGE
    assert "did you mean lion" in result.output
    assert runner.invoke(app, ["claims", "lion.cifar"]).exit_code == Exit.USAGE
    assert runner.invoke(app, ["claims", "lion.quality", "--exact"]).exit_code == Exit.NOTHING
