"""The badge: of one row its headline in the board's colour, of more the tally; well-formed whatever a record says."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from xml.etree import ElementTree

import pytest

from suite.guard.findings import Finding
from suite.judge.verdicts import ChangeVerdict
from suite.show.pictures.drawing import COLOURS
from suite.topics.board import badge
from suite.topics.board.report import Report
from tests.factories import evidence
from tests.show.samples import EVIL, card, failing, lean, on, shown

SVG = "{http://www.w3.org/2000/svg}"


def drawn(*lines: Iterable[Any]) -> tuple[list[str | None], str | None]:
    """The words of both fields, and the colour of the second."""
    return read(badge.render(Report(shown(*lines))))


def read(svg: str) -> tuple[list[str | None], str | None]:
    root = ElementTree.fromstring(svg)
    return [each.text for each in root.iter(f"{SVG}text")], list(root.iter(f"{SVG}rect"))[1].get("fill")


@pytest.mark.parametrize(("pace_s", "colour"), [(0.01, "better"), (0.04, "worse")])
def test_one_row_has_its_headline_and_its_colour(pace_s: float, colour: str) -> None:
    (label, message), fill = drawn(evidence("lion", pace_s=pace_s))
    assert label == "lion · gpt nano"
    assert message and message.startswith("×") and message.endswith("] to the same quality")
    assert fill == COLOURS[colour][0]


def test_several_rows_are_a_tally_without_colour() -> None:
    lines = [*evidence("fast", pace_s=0.01), *evidence("slow", pace_s=0.04)]
    said, fill = drawn(lines, on(lines, baseline="vit"))
    assert said == ["leantrain", "1 better, 1 worse, 0 undecided, 0 failed"]
    assert fill == COLOURS["faint"][0]


def test_the_tally_is_the_board_s_by_what_each_technique_sells() -> None:
    rows = shown(lean("small", 2**20, pace_s=0.04), evidence("fast", pace_s=0.01))
    cards = {"small": card("small").model_copy(update={"sells": "memory"})}
    (_, message), _ = read(badge.render(Report(rows, cards=cards)))
    assert message == "2 better, 0 worse, 0 undecided, 0 failed"


def test_a_failure_is_said_and_names_are_text() -> None:
    (label, message), _ = drawn(failing(EVIL, "crashed", EVIL))
    assert label == f"{EVIL} · gpt nano" and message == "failed"


def test_without_records_it_says_what_to_do() -> None:
    with pytest.raises(ValueError, match="leantrain run"):
        badge.render(Report())


@pytest.mark.parametrize(
    ("verdict", "code", "said", "colour"),
    [
        ("not checked", 0, "passed; speed: not checked", "faint"),
        ("equivalent", 0, "passed; speed: 1 not slower", "better"),
        ("regressed", 1, "regressed; speed: 1 slower", "worse"),
        ("inconclusive", 3, "inconclusive; speed: 1 cannot tell", "faint"),
        ("unfit", 4, "unfit; speed: not checked", "faint"),
        ("failed", 5, "failed; speed: not checked", "worse"),
    ],
)
def test_a_check_is_never_green_where_nobody_looked_at_speed(
    verdict: ChangeVerdict, code: int, said: str, colour: str
) -> None:
    findings = [Finding("x", "exact", "equal"), Finding("x", "timing", verdict)]
    words, fill = read(badge.of_check(findings, code))
    assert words == ["leantrain check", said]
    assert fill == COLOURS[colour][0]
