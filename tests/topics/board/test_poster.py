"""The picture of the matrix: well-formed, inert, and of the same numbers as the page."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree

import pytest

from suite.judge.at_scale import CountsAtScale
from suite.record.paper_scale import PaperScale, SizeCount
from suite.record.placed import CountPlace
from suite.topics.board import poster
from suite.topics.board.report import Report
from tests.factories import counters, evidence
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
    said = " ".join(text or "" for kind, text in texts if kind == "faint")
    assert "2 better, 1 worse, 0 undecided, 1 failed" in said
    assert [text for kind, text in texts if kind == "group"] == [
        "Time: sooner at the same quality",
        "Saves none of these, as far as is known",
    ]


def test_no_technique_is_left_out_and_what_a_larger_model_takes_stands_first() -> None:
    lines = [*evidence("fast", pace_s=0.01), *evidence("slow", pace_s=0.04)]
    many = [replace(each, stack=f"{each.stack}_{number}") for each in shown(lines) for number in range(60)]
    place = CountPlace("gpt", "large", "modern", "cuda", "pretrain")
    sizes = {"baseline": 100, "fast_0": 50}
    counts = [
        SizeCount(
            place=place,
            stack=stack,
            reference="baseline",
            code="c",
            quantities={"peak_tensor_bytes": size, "flops": 100},
        )
        for stack, size in sizes.items()
    ]
    drawing = poster.render(Report(many, paper_scale=CountsAtScale(PaperScale(counts=counts))))
    texts = [(each.get("class"), each.text) for each in ElementTree.fromstring(drawing).iter(f"{SVG}text")]
    assert len([text for kind, text in texts if kind == "name"]) == 120
    assert ("better", "=0.50") in texts and ("group", "at the papers' own sizes") in texts
    assert texts.index(("faint", "memory ↓")) < texts.index(("faint", "gpt"))


def test_no_word_is_cut_off_and_none_runs_out_of_the_picture() -> None:
    """Of letters as wide as those of a wide font."""
    root = drawn()
    width = float(root.get("viewBox", "").split()[2])
    starts = [each for each in root.iter(f"{SVG}text") if each.get("text-anchor") is None]
    assert not any("…" in (each.text or "") for each in starts)
    names = [each for each in starts if each.get("class") == "name"]
    cells = min(float(each.get("x", 0)) - poster.CELL for each in root.iter(f"{SVG}text") if each.get("text-anchor"))
    assert all(float(each.get("x", 0)) + 7.3 * len(each.text or "") < cells + 12 for each in names)
    assert all(float(each.get("x", 0)) + 7.3 * len(each.text or "") < width for each in starts)


def test_what_has_more_hardware_says_so_and_is_not_called_better() -> None:
    split = evidence("split", points=[counters(ranks=2)], pace_s=0.01)
    root = ElementTree.fromstring(poster.render(Report(shown(split, evidence("fast", pace_s=0.01)))))
    texts = [(each.get("class"), each.text or "") for each in root.iter(f"{SVG}text")]
    assert ("words", "on two cores against one") in texts
    assert [kind for kind, text in texts if text.startswith("×")] == ["better", "same"]
    said = " ".join(text for kind, text in texts if kind == "faint")
    assert "1 better, 0 worse, 0 undecided, 0 failed, 1 sooner on more hardware" in said


def test_marks_stay_on_their_axis_and_a_bound_has_none() -> None:
    root = drawn()
    circles = [float(each.get("cx", 0)) for each in root.iter(f"{SVG}circle")]
    assert len(circles) == 4, "two techniques are measured on two baselines; bounds are no points"
    ones = [float(each.get("d", "").split()[0][1:]) for each in root.iter(f"{SVG}path") if "v15" in each.get("d", "")]
    starts = {one - poster.AXIS / 2 for one in ones}
    assert len(starts) == 2
    assert all(any(start <= x <= start + poster.AXIS for start in starts) for x in circles)


def test_it_is_of_the_recipe_and_size_that_the_page_opens_with() -> None:
    lines = [*evidence("fast", pace_s=0.01), *evidence("slow", pace_s=0.04)]
    larger = on(evidence("fast", pace_s=0.04), size="micro")
    drawing = poster.render(Report(shown(lines, larger, on(lines, recipe="classic"))))
    assert drawing == poster.render(Report(shown(lines)))


def test_without_records_it_says_what_to_do() -> None:
    with pytest.raises(ValueError, match="leantrain run"):
        poster.render(Report())
