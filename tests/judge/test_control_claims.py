"""Claims that a technique beats its control, and claims that a study's table decides."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import ValidationError

from suite.entries.card import Claim
from suite.judge.claims import Judgement, control_of, only_controls, shown, stack_of, verdicts
from suite.judge.study_tables import Study, StudyTable
from suite.record.schema import Counted, Learned, Line, Timed
from tests.factories import CODE, MACHINE, claim, evidence, machine, rows, side, timed
from tests.judge.test_claims import card

CONTROL = "fast:control=true"
OTHER = machine(cpu="another", cores=2)


def better(**changes: Any) -> Claim:
    return claim(metric="loss", kind="quality", expected=1.0, relation="<", against=CONTROL, **changes)


def two(final: float, of_control: float) -> list[Line]:
    """A technique and its control, both against the baseline."""
    lines = evidence("fast", final=final, ruler=False)
    return [*lines, *(each for each in evidence(CONTROL, final=of_control, ruler=False) if each.id not in _ids(lines))]


def _ids(lines: list[Line]) -> set[str]:
    return {each.id for each in lines}


def judged(lines: list[Line], of: Claim) -> Judgement:
    (verdict,) = verdicts(rows(lines), [card(of)])
    return verdict


@pytest.mark.parametrize(
    ("final", "of_control", "outcome"),
    [(2.2, 2.6, "holds"), (2.2, 2.1, "does not hold"), (2.2, 2.2, "undecided")],
)
def test_a_technique_is_compared_with_its_control_and_not_with_the_baseline(
    final: float, of_control: float, outcome: str
) -> None:
    verdict = judged(two(final, of_control), better())
    assert verdict.outcome == outcome
    assert verdict.interval is not None and verdict.interval.estimate == pytest.approx(final / of_control, rel=0.01)
    assert verdict.command.startswith(f"leantrain compare fast {CONTROL} -b gpt")


def test_without_the_control_nothing_is_said() -> None:
    verdict = judged(evidence("fast", final=1.0, ruler=False), better())
    assert (verdict.outcome, verdict.reason) == ("not measured", "no evidence")


def test_runs_of_other_arithmetic_are_no_pair() -> None:
    lines = [
        each.model_copy(update={"machine": OTHER}) if isinstance(each, Learned) and each.stack == CONTROL else each
        for each in two(2.0, 2.6)
    ]
    assert judged(lines, better()).outcome == "not measured"


def test_a_control_that_was_timed_nowhere_stands_beside_what_was_timed() -> None:
    lines = [each for each in two(2.0, 2.6) if not (isinstance(each, Timed) and each.contenders[1].stack == CONTROL)]
    assert judged(lines, better()).outcome == "holds"


def test_a_time_is_compared_where_both_were_timed_together() -> None:
    faster = claim(against=CONTROL)
    assert judged(two(2.0, 2.0), faster).outcome == "not measured"
    beside = [timed([side(CONTROL), side("fast", pace_s=0.01)], replicate) for replicate in range(3)]
    assert judged([*two(2.0, 2.0), *beside], faster).outcome == "holds"


def test_what_both_sides_have_is_part_of_both() -> None:
    within = claim(within="both", against="slow", settings="k=2")
    assert (stack_of(card(within), within), control_of(within)) == ("both+fast:k=2", "both+slow")
    assert control_of(claim(within="both")) == "both"
    beside = [timed([side("both"), side("both+fast", pace_s=0.01)], replicate) for replicate in range(3)]
    verdict = judged(list(beside), claim(within="both"))
    assert verdict.outcome == "holds" and verdict.command.startswith("leantrain compare both+fast both ")


def test_controls_are_told_from_what_claims_are_about() -> None:
    about = claim(id="b", settings="k=2", against="slow")
    assert only_controls([card(better(), about), card(claim(), id="slow")]) == {CONTROL}


# studies


def study(trained: Any = 1.0, seeds: int = 3, **changes: Any) -> Study:
    rows = [("fast", 64, seeds, trained), ("neither", 64, seeds, 0.0), ("fast", 4, seeds, 0.0)]
    table = StudyTable("depths", ("side", "depth", "seeds", "trained"), rows)
    values: dict[str, Any] = {
        "technique": "fast",
        "code": CODE.trajectory,
        "baseline": "gpt",
        "size": "nano",
        "recipe": "modern",
        "device": "cpu",
        "seeds": seeds,
        "machine": MACHINE,
        "made": datetime(2026, 1, 2, tzinfo=UTC),
        "tables": [table],
    }
    return Study(**values | changes)


def of_cell(column: str = "trained", **changes: Any) -> Claim:
    values = {"cell": {"side": "fast", "depth": 64}, "kind": "quality", "expected": 1.0, "relation": "=="}
    return claim(metric=f"study.depths.{column}", **values | changes)


def seen(of: Claim, *studies: Study) -> Judgement:
    (verdict,) = verdicts([], [card(of)], studies=studies)
    return verdict


def test_a_share_of_a_study_s_seeds_is_judged() -> None:
    verdict = seen(of_cell(), study())
    assert (verdict.outcome, verdict.word) == ("holds", "statement not read")
    assert verdict.command == "leantrain study fast -b gpt --size nano --seeds 3"
    assert verdict.basis.newest.startswith("2026-01-02") and "unverified" in verdict.reason  # nobody installed it
    assert seen(of_cell(), study(trained=2 / 3)).outcome == "does not hold"
    assert seen(of_cell(cell={"side": "neither", "depth": 64}, relation="<"), study()).outcome == "holds"


def test_one_seed_of_a_study_is_no_verdict() -> None:
    assert seen(of_cell(), study(seeds=1)).outcome == "undecided"
    assert seen(of_cell(), study(seeds=1, trained=0.0)).outcome == "undecided"


def test_what_a_study_does_not_have_is_not_measured_and_says_so() -> None:
    assert seen(of_cell()).command == "leantrain study fast -b gpt"
    for of, reason in (
        (of_cell(column="loss"), "the study has no loss in a table depths"),
        (of_cell(cell={"side": "fast", "depth": 8}), "0 rows of the table depths have side fast, depth 8"),
        (of_cell(cell={"side": "fast"}), "2 rows of the table depths have side fast"),
    ):
        verdict = seen(of, study())
        assert verdict.outcome == "not measured" and verdict.reason.startswith(reason)
    assert seen(of_cell(), study(trained=math.inf)).outcome == "not measured"
    assert seen(of_cell(sizes=["base"]), study()).outcome == "not measured"
    assert seen(of_cell(), study(technique="slow")).outcome == "not measured"


@pytest.mark.parametrize(
    "changes", [{"cell": {"a": 1}}, {"metric": "study.depths.trained"}, {"metric": "study.depths", "cell": {"a": 1}}]
)
def test_a_claim_on_a_study_names_table_column_and_cell(changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=r"study\.TABLE\.COLUMN"):
        claim(**changes)


def headlines(**changes: Any) -> Study:
    row: dict[str, Any] = {"claim": "speed", "modelled": 5.0, "least": 2.0, "most": 9.0, "unavailable": ""} | changes
    return study(tables=[StudyTable("headlines", tuple(row), [tuple(row.values())])])


def of_headline(**changes: Any) -> Claim:
    values = {"cell": {"claim": "speed"}, "kind": "modelled", "relation": ">="}
    return claim(metric="study.headlines.modelled", **values | changes)


@pytest.mark.parametrize(
    ("expected", "relation", "why"),
    [(1.5, ">=", "agrees with the claim"), (58.1, ">=", "does not agree"), (3.0, ">=", "and others that do not")],
)
def test_a_chips_headline_is_compared_with_the_model_and_never_judged(expected: float, relation: str, why: str) -> None:
    verdict = seen(of_headline(expected=expected, relation=relation), headlines())
    assert verdict.outcome == verdict.word == "modelled" and why in verdict.reason
    assert shown(verdict) == "5 [2, 9]" and verdict.detectable is None


def test_a_headline_that_no_arithmetic_reaches_says_why() -> None:
    verdict = seen(of_headline(expected=4.5), headlines(modelled=None, unavailable="which hardware is not known"))
    assert (verdict.outcome, verdict.interval) == ("not measured", None)
    assert verdict.reason.startswith("unavailable: which hardware is not known")
    assert "no number in modelled" in seen(of_headline(expected=4.5), headlines(modelled=math.nan)).reason
    alone = study(tables=[StudyTable("headlines", ("claim", "modelled"), [("speed", 4.0)])])
    assert shown(seen(of_headline(expected=4.5), alone)) == "4"


def test_the_lines_that_were_taken_are_of_all_kinds() -> None:
    assert {type(each) for each in two(2.0, 2.0)} == {Counted, Learned, Timed}
