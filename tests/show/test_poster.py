"""The picture of the matrix: well-formed, inert, and of the same numbers as the page."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from suite.show import poster
from suite.show.report import Report
from tests.factories import evidence
from tests.show.samples import EVIL, failing, on, shown

SVG = "{http://www.w3.org/2000/svg}"


def drawn() -> ElementTree.Element:
    lines = [*evidence("fast", pace_s=0.01), *evidence("slow", pace_s=0.04), *evidence("far", final=1.3)]
    rows = shown(lines, on(lines, baseline="vit"), failing(EVIL, "crashed", EVIL))
    return ElementTree.fromstring(poster.render(Report(rows)))


def test_every_technique_has_a_line_with_its_numbers_and_colour_where_it_is_sure() -> None:
    texts = [(each.get("class"), each.text) for each in drawn().iter(f"{SVG}text")]
    names = [text for kind, text in texts if kind == "name"]
    assert names[:2] == ["far", "fast"] and set(names) == {"fast", "slow", "far", EVIL}
    kinds = {text: kind for kind, text in texts if text and text.startswith(("×", "> ×"))}
    assert set(kinds.values()) == {"better", "worse"}
    assert ("faint", "failed") in texts
    assert any("2 better, 1 worse, 0 undecided, 1 failed" in (text or "") for _, text in texts)


def test_marks_stay_on_their_axis_and_a_bound_has_none() -> None:
    circles = [float(each.get("cx", 0)) for each in drawn().iter(f"{SVG}circle")]
    assert len(circles) == 4, "two techniques are measured on two baselines; bounds are no points"
    starts = [poster.NAME + poster.CELL * column + 8 for column in range(2)]
    assert all(any(start <= x <= start + poster.AXIS for start in starts) for x in circles)


def test_it_is_of_the_recipe_and_size_that_the_page_opens_with() -> None:
    lines = [*evidence("fast", pace_s=0.01), *evidence("slow", pace_s=0.04)]
    larger = on(evidence("fast", pace_s=0.04), size="micro")
    drawing = poster.render(Report(shown(lines, larger, on(lines, recipe="classic"))))
    assert drawing == poster.render(Report(shown(lines)))


def test_without_records_it_says_what_to_do() -> None:
    with pytest.raises(ValueError, match="leantrain run"):
        poster.render(Report())
