"""Claims for people: measured ones first, exact ones counted apart."""

from __future__ import annotations

from dataclasses import replace

from suite.entries.card import Property
from suite.judge.claims import Judgement, Observation, VerdictBasis, judge
from suite.judge.statistics import Interval
from suite.topics.claims import claims_on_board as claims
from tests.factories import between, claim


def exactly(value: float) -> Observation:
    return Observation(Interval(value, value, value, 1.0, "every seed", 1), exact=True)


def at(baseline: str, *differs: str) -> VerdictBasis:
    return VerdictBasis(baseline, "modern", "nano", "m", differs=differs)


def some() -> list[Judgement]:
    read = claim(read="Table 1")
    half = claim(
        id="half",
        read="Table 1",
        kind="counted",
        metric="optimizer_state_bytes",
        expected=0.5,
        relation="==",
        tolerance=0.0,
    )
    return [
        judge(read, "fast", between(0.4, 0.6), at("gpt")),
        judge(read, "fast", between(0.4, 0.6), at("vit")),
        judge(read, "fast", between(1.4, 1.6), at("bert", "cpu, not 8 A100")),
        judge(claim(id="from_memory"), "fast", between(1.4, 1.6), at("bert")),
        judge(half, "fast", exactly(0.5), at("gpt")),
        judge(half, "slow", exactly(0.6), at("gpt")),
        judge(claim(), "none", Observation(reason="no evidence"), VerdictBasis("gpt")),
        judge(claim(kind="literature"), "fast", Observation(), VerdictBasis()),
    ]


def test_what_holds_by_construction_is_not_added_to_what_was_measured() -> None:
    by_worth = claims.sort(some())
    assert by_worth.sentence == (
        "Of 5 claims 3 are read, 3 judged, 3 decided. Measured: 2 reproduced, 1 not seen at nano. Exact: 1 "
        "contradicted, 1 reproduced. Of statements that nobody has read in the paper, not judged: 1. 1 not measured, "
        "1 quoted."
    )
    assert [title for title, _ in by_worth.parts] == [
        "Measured",
        "Exact, and not so",
        "Exact, and so",
        claims.UNREAD_TITLE,
        "Not judged: quoted, modelled, not measured",
    ]


def test_a_line_is_a_claim_with_a_verdict_and_names_the_places_with_their_numbers() -> None:
    first, second = claims.lines(some()[:3])
    assert (first.verdict, second.verdict) == ("reproduced", "not seen at nano")
    assert (first.distance, second.distance) == ("near", "far: cpu, not 8 A100")
    assert first.seen.startswith("gpt, vit 0.") and second.seen.startswith("bert 1.")
    assert claim().statement in first.says and "(Table 1)" in first.says


def test_places_of_several_recipes_are_named_whole() -> None:
    judged = [
        judge(claim(), "fast", between(0.4, 0.6), VerdictBasis("gpt", recipe)) for recipe in ("classic", "modern")
    ]
    (line,) = claims.lines(judged)
    assert line.seen.startswith("gpt · classic, gpt · modern 0.")


def test_a_place_is_named_by_what_sets_it_apart() -> None:
    here = VerdictBasis("gpt", "modern", "nano", "a-machine")
    at_scale, elsewhere = VerdictBasis("gpt", "modern", "large"), VerdictBasis("gpt", "modern", "nano", "another")

    def seen(*places: VerdictBasis) -> str:
        (line,) = claims.lines([judge(claim(), "fast", exactly(0.5), place) for place in places])
        return line.seen

    assert seen(here, at_scale) == "gpt · nano, gpt · large 0.5"
    assert seen(here, elsewhere) == "gpt · a-machine, gpt · another 0.5"


def test_a_reason_that_several_places_share_is_said_once() -> None:
    noted = [replace(exactly(0.5), note=note) for note in ("counted at paper scale; unverified", "unverified")]
    (line,) = claims.lines([judge(claim(), "fast", seen, at("gpt")) for seen in noted])
    assert line.why == "exactly; counted at paper scale; unverified"


def test_a_property_is_headed_by_what_must_hold() -> None:
    assert claims.columns("Measured")[1:3] == ("claim", "what the paper says")
    ((title, _),) = claims.sort([of_implementation("same", "fast", 0.0)]).parts
    assert claims.columns(title)[1:3] == ("property", "what must hold")


def test_one_claim_is_counted_as_one() -> None:
    assert claims.sort(some()[:1]).sentence.startswith("Of 1 claim 1 are read, 1 judged, 1 decided.")


def of_implementation(id: str, technique: str, seen: float | None) -> Judgement:
    own = Property(id=id, statement="No bit changes.", metric=f"probe.{technique}.{id}")
    there = exactly(seen) if seen is not None else Observation(reason="no evidence")
    return judge(own, technique, there, VerdictBasis("gpt"))


def test_properties_are_a_line_and_no_claims() -> None:
    held = [of_implementation("same", "fast", 0.0), of_implementation("even", "fast", 0.0)]
    assert claims.sort(some()[:1] + held).sentence.endswith("Measured: 1 reproduced. 2 of 2 properties hold.")
    assert [title for title, _ in claims.sort(some()[:1] + held).parts] == ["Measured"]
    ((title, lines),) = claims.sort(held).parts  # who asks for them alone sees them
    assert (title, [line.name for line in lines]) == ("Properties", ["fast.same", "fast.even"])


def test_a_property_that_does_not_hold_is_shown() -> None:
    judged = [of_implementation("same", "fast", 0.0), of_implementation("even", "fast", 1.0)]
    by_worth = claims.sort([*some()[:1], *judged, of_implementation("odd", "fast", None)])
    assert by_worth.sentence.endswith("1 of 3 properties hold, 1 not seen.")
    title, (line,) = by_worth.parts[-1]
    assert (title, line.name, line.verdict) == ("Properties that do not hold", "fast.even", "does not hold")
