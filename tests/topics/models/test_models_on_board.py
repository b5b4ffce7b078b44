"""The matrix of models on the board: every cell in its place, and nothing but text."""

import re

from suite.show.pages.rendered import as_html, as_markdown
from suite.topics.models import models_on_page, models_page
from suite.topics.models.models_on_board import Shown, ended, line_of, reasons, section, tables
from suite.topics.models.tried_models import Cell, Model, ModelsMatrix
from tests.show.samples import EVIL

MODELS = {name: Model(baseline="gpt" if name != "swin" else "vit") for name in ("llama", "opt", "swin")}


def matrix(**rows: dict[str, Cell]) -> ModelsMatrix:
    return ModelsMatrix(made="2026-01-01", versions={"torch": "2.15"}, models=MODELS, cells=rows)


WORKS = Cell(verdict="works")
TRIED = matrix(
    lion=dict.fromkeys(MODELS, WORKS),
    saf={
        "llama": Cell(verdict="refused", reason="logits of [4, 16] for 4 examples"),
        "opt": Cell(verdict="refused", reason="logits of [9, 16] for 9 examples"),
        "swin": Cell(verdict="defect", reason=EVIL),
    },
    new={"opt": WORKS},
)


def test_each_baseline_has_a_table_of_all_techniques():
    gpt, vit = tables(TRIED)
    assert (gpt.models, vit.models) == (("llama", "opt"), ("swin",))
    assert [name for name, _ in gpt.rows] == [name for name, _ in vit.rows] == ["lion", "saf", "new"]
    assert gpt.rows[2][1] == (None, WORKS), "one cell was not tried"


def test_a_reason_stands_once_with_defects_first():
    defect, refused = reasons(TRIED)
    assert (defect.verdict, defect.models) == ("defect", ("swin",))
    assert (refused.words, refused.models) == ("logits of [4, 16] for 4 examples", ("llama", "opt"))


def test_the_markdown_has_a_cell_for_every_model_and_says_what_is_old():
    page = "\n".join(as_markdown(section(Shown(TRIED, frozenset({("lion", "opt")})))))
    assert "3 techniques on 3 models: 4 work, 2 are refused, each with a reason, 0 do not apply, 1 defective" in page
    for line in page.splitlines():
        if line.startswith("| `"):
            assert line.count("|") in (3, 4)
    assert "| `lion`† | ✓ | ✓ |" in page and "| `saf` | – | – |" in page and "| `new` |  | ✓ |" in page
    assert "<script" not in page and "\n##" in page


def test_the_html_escapes_what_a_model_says():
    page = as_html(section(Shown(TRIED)))
    assert "<script" not in page and "<img" not in page
    assert page.count("<table") == 2
    assert len(re.findall("<td", page)) == 9


def test_a_technique_is_asked_of_the_models_that_it_is_about():
    away = {**TRIED.cells["saf"], "opt": Cell(verdict="inapplicable", reason="is about pictures"), "swin": WORKS}
    shown = Shown(matrix(lion=TRIED.cells["lion"], saf=away), frozenset({("saf", "opt")}))
    assert (ended("lion", shown)[:2], ended("saf", shown)[:2]) == ((3, 3), (2, 1))
    assert "Works on 1 of 2" in (line := line_of("saf", shown)) and "refuses 1, does not apply to 1 more" in line
    assert "changed since" in line and "changed since" not in line_of("lion", shown)


def test_a_techniques_page_has_a_line_and_why_not():
    shown = models_on_page.section("saf", Shown(TRIED))
    assert shown is not None and shown.introduction.startswith(
        "Works on 0 of 3 models of other architectures, refuses 2"
    )
    page = as_html(shown)
    assert "logits of [4, 16]" in page and "<script" not in page
    assert models_on_page.section("unknown", Shown(TRIED)) is None


def test_the_page_has_every_cell_once_packed_and_loads_nothing():
    page = models_page.render(Shown(TRIED, frozenset({("lion", "opt")})))
    assert EVIL not in page and "http" not in page.replace("http-equiv", "") and page.count("<script") == 2
    said = models_page.content(TRIED, Shown(TRIED, frozenset({("lion", "opt")})))
    rows = dict(said["rows"])
    assert rows["lion"] == [[0, 0, 0], [0, 0, 1], [0, 0, 0]] and rows["new"] == [None, [0, 0, 0], None]
    state, reason, _ = rows["saf"][2]
    assert (said["states"][state], said["reasons"][reason]) == ("defect", EVIL)
