"""The matrix of models on the board: every cell in its place, and nothing but text."""

import re

from suite.show.pages.rendered import as_html, as_markdown
from suite.topics.models.models_on_board import Shown, reasons, section, tables
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
    page = "\n".join(as_markdown(section(Shown(TRIED, frozenset({"lion"})))))
    assert "3 techniques on 3 models: 4 work, 2 are refused, each with a reason, 1 defective" in page
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
