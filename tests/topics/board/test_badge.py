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


@pytest.mark.parametrize(("pace_s", "word", "colour"), [(0.01, "helps", "better"), (0.04, "costs", "worse")])
def test_one_technique_has_its_verdict_and_its_colour(pace_s: float, word: str, colour: str) -> None:
    (label, message), fill = drawn(evidence("lion", pace_s=pace_s))
    assert label == "lion · gpt"
    assert message and message.startswith(f"{word} · ×") and message.endswith("]")
    assert fill == COLOURS[colour][0]


def test_several_are_a_tally_of_the_words_without_colour() -> None:
    lines = [*evidence("fast", pace_s=0.01), *evidence("slow", pace_s=0.04)]
    said, fill = drawn(lines, on(lines, baseline="vit"))
    assert said == ["leantrain", "1 help, 1 cost"]
    assert fill == COLOURS["faint"][0]


def test_what_is_sold_at_a_worse_quality_does_not_help() -> None:
    """Half of the memory at a loss that is far above the reference's is no gain."""
    rows = shown(lean("small", 2**20, final=2.9), evidence("fast", pace_s=0.01))
    cards = {"small": card("small").model_copy(update={"sells": "memory"}), "fast": card("fast")}
    (_, message), _ = read(badge.render(Report(rows, cards=cards)))
    assert message == "1 help, 1 cost"


def test_a_failure_is_said_and_names_are_text() -> None:
    (label, message), _ = drawn(failing(EVIL, "crashed", EVIL))
    assert label == f"{EVIL} · gpt" and message == "not known: crashed"


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
