"""The badge: of one row its headline in the board's colour, of more the tally; well-formed whatever a record says."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from xml.etree import ElementTree

import pytest

from suite.show import badge
from suite.show.drawing import COLOURS
from suite.show.report import Report
from tests.factories import evidence
from tests.show.samples import EVIL, failing, on, shown

SVG = "{http://www.w3.org/2000/svg}"


def drawn(*lines: Iterable[Any]) -> tuple[list[str | None], str | None]:
    """The words of both fields, and the colour of the second."""
    root = ElementTree.fromstring(badge.render(Report(shown(*lines))))
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


def test_a_failure_is_said_and_names_are_text() -> None:
    (label, message), _ = drawn(failing(EVIL, "crashed", EVIL))
    assert label == f"{EVIL} · gpt nano" and message == "failed"


def test_without_records_it_says_what_to_do() -> None:
    with pytest.raises(ValueError, match="leantrain run"):
        badge.render(Report())
