from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest
from matplotlib.figure import Figure

from suite.show.pages.rendered import as_html
from suite.topics.board import html, markdown
from suite.topics.board.report import Report
from suite.topics.studies import studies_on_board as studies
from suite.topics.studies.lab import StudyTable
from suite.topics.studies.studies_on_board import Studied
from tests.factories import evidence
from tests.show.samples import EVIL, shown, study, whole
from tests.topics.board.test_html import Page


def drawn(draw: Any, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> str:
    """The section of a study whose module's ``plot`` is ``draw``."""
    monkeypatch.setattr(
        "suite.topics.studies.study.study_of", lambda entry: SimpleNamespace(**({"plot": draw} if draw else {}))
    )
    return as_html(studies.section(studies.placed_studies([Studied(study(**changes))], {}), {}))


def labelled(tables: list[StudyTable]) -> Figure:
    figure = Figure()
    axes = figure.subplots()
    axes.plot([1, 2], color="black", label=tables[0].note)
    axes.set(xlabel=tables[0].name)
    axes.legend()
    return figure


def test_words_of_a_file_are_text_in_the_plot(monkeypatch: pytest.MonkeyPatch) -> None:
    words = EVIL.replace("$", "")  # a pair of these is mathematics to matplotlib
    page = Page(drawn(labelled, monkeypatch, tables=[StudyTable("name", ("x",), [(1,)], words)]))
    assert not page.having("script") and not page.having("img")
    assert words in page.words
    (svg,) = page.having("svg")
    assert svg["role"] == "img" and svg["aria-label"] == "Plot of linear_scaling_warmup · gpt · modern · nano"


def test_the_plot_stands_alone_in_the_page_s_colours_and_is_the_same_every_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = drawn(labelled, monkeypatch)
    assert made == drawn(labelled, monkeypatch)
    assert not [mark for mark in ("#000000", "#ffffff", "http", "<style", "<metadata", "<!", "ns0") if mark in made]
    assert "stroke: currentColor" in made and "fill: var(--page)" in made
    ids = [each["id"] for _, each in Page(made).elements if "id" in each]
    assert len(ids) == len(set(ids)) > 10
    assert all(id.startswith("study-") for id in ids if id != "studies")


def test_tables_of_the_same_name_in_two_studies_are_regions_of_different_names() -> None:
    placed = studies.placed_studies([Studied(study()), Studied(study(baseline="bert"))], {})
    captions = re.findall(r"<caption[^>]*>([^<]*)", as_html(studies.section(placed, {})))
    assert len(captions) == len(set(captions)) == 2


def raising(tables: list[StudyTable]) -> Figure:
    raise KeyError(EVIL)


def picture(tables: list[StudyTable]) -> Figure:
    figure = Figure()
    figure.subplots().imshow([[0, 1], [1, 0]])
    return figure


@pytest.mark.parametrize(
    ("draw", "note", "words"),
    [
        (raising, "", "No plot: &#x27;&lt;/script&gt;"),
        (picture, "", "No plot: it has an image or a link"),
        (labelled, "$\\frac$", "No plot: "),
        (labelled, "\x00", "No plot: "),
        (lambda tables: None, "", "No plot: "),
    ],
)
def test_a_plot_that_cannot_be_drawn_is_one_sentence(
    draw: Any, note: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = drawn(draw, monkeypatch, tables=[StudyTable("steps", ("x",), [(1,)], note)])
    assert words in made
    assert not Page(made).having("svg")
    assert ": steps. " in made


def test_a_study_without_a_plot_has_its_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    made = drawn(None, monkeypatch)
    assert "No plot" not in made and "<svg" not in made
    assert "medians over the seeds" in made and ">7680<" in made


def test_long_tables_are_cut_and_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    made = drawn(labelled, monkeypatch, tables=[StudyTable("long", ("x",), [(n,) for n in range(100_000)])])
    assert len(Page(made).having("td")) == studies.MOST_ROWS
    assert "The first 500 of 100000 rows" in made
    assert "No plot: a table has more than 500 rows" in made


def test_a_study_and_its_technique_s_place_lead_to_each_other() -> None:
    rows = shown(evidence("linear_scaling_warmup:k=2"), evidence("linear_scaling_warmup"))
    page = whole(html.render(Report(rows, studies=[Studied(study(), unverified=True), Studied(study("gone"))])))
    places = {each["data-name"]: each["id"] for each in Page(page).having("details") if "data-name" in each}
    (anchor,) = [each["id"] for each in Page(page).having("article") if "data-unverified" in each]
    assert page.count(f'<p>Studies: <a href="#{anchor}">') == 2
    title = "linear_scaling_warmup · gpt · modern · nano"
    assert f'<h3><a href="#{places["linear_scaling_warmup"]}">{title}</a><abbr' in page
    assert "3 seeds at most. Unverified: the code changed since." in page
    assert "<h3>gone · gpt" in page and "No plot: gone is not installed" in page
    assert "#studies" not in html.render(Report(rows))


def test_the_markdown_has_short_tables_and_the_length_of_long_ones() -> None:
    long = StudyTable("long", ("x",), [(n,) for n in range(13)], EVIL)
    made = study(tables=[*study().tables, long, StudyTable("none", ("x",), [])])
    page = markdown.render(Report(studies=[Studied(made, unverified=True)]))
    assert "\n### linear\\_scaling\\_warmup · gpt · modern · nano†\n" in page
    assert "\n| 512 | linear | 0.016 | 3 | 0 | n/a | n/a | n/a | nan | n/a | n/a | 20 | n/a |\n" in page
    assert "(13 rows, left out here)" in page
    assert "<" not in page and "none" not in page
    assert "Studies" not in markdown.render(Report())
