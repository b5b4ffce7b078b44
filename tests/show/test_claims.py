"""Claims for people: measured ones first, exact ones counted apart."""

from __future__ import annotations

from suite.judge.claims import ClaimPlace, Judgement, Observation, judge
from suite.judge.statistics import Interval
from suite.show import claims
from tests.factories import between, claim


def exactly(value: float) -> Observation:
    return Observation(Interval(value, value, value, 1.0, "every seed", 1), exact=True)


def some() -> list[Judgement]:
    half = claim(id="half", kind="counted", metric="optimizer_state_bytes", expected=0.5, relation="==", tolerance=0.0)
    return [
        judge(claim(), "fast", between(0.4, 0.6), ClaimPlace("gpt", "modern", "nano", "m")),
        judge(claim(), "fast", between(0.4, 0.6), ClaimPlace("vit", "modern", "nano", "m")),
        judge(claim(), "fast", between(1.4, 1.6), ClaimPlace("bert", "modern", "nano", "m")),
        judge(half, "fast", exactly(0.5), ClaimPlace("gpt")),
        judge(half, "slow", exactly(0.6), ClaimPlace("gpt")),
        judge(claim(), "none", Observation(reason="no evidence"), ClaimPlace("gpt")),
        judge(claim(kind="literature"), "fast", Observation(), ClaimPlace()),
    ]


def test_what_holds_by_construction_is_not_added_to_what_was_measured() -> None:
    by_worth = claims.sort(some())
    assert by_worth.sentence == (
        "Measured: 2 reproduced, 1 contradicted. Exact: 1 hold, 1 do not. 1 not testable here, 1 quoted."
    )
    assert [title for title, _ in by_worth.parts] == [
        "Measured", "Exact, and not so", "Exact, and so", "Not judged: quoted, modelled, not testable here",
    ]  # fmt: skip
    assert claims.sort(some()[:4]).sentence == "Measured: 2 reproduced, 1 contradicted. Exact: all 1 hold."


def test_a_line_is_a_claim_with_a_verdict_and_names_the_places_with_their_numbers() -> None:
    first, second = claims.lines(some()[:3])
    assert (first.verdict, second.verdict) == ("reproduced", "contradicted")
    assert first.seen.startswith("gpt, vit 0.") and second.seen.startswith("bert 1.")
    assert claim().statement in first.says and claim().place in first.says


def test_places_of_several_recipes_are_named_whole() -> None:
    judged = [judge(claim(), "fast", between(0.4, 0.6), ClaimPlace("gpt", recipe)) for recipe in ("classic", "modern")]
    (line,) = claims.lines(judged)
    assert line.seen.startswith("gpt · classic, gpt · modern 0.")
