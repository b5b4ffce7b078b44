"""A report is read from a results folder, and reading and judging load no more than that needs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from markupsafe import Markup

import suite.topics
from suite.entries.catalogue import catalogue
from suite.record.store import Store
from suite.show.described import Paragraph, Section
from suite.show.packing import Pack
from suite.topics.board import contents, html, markdown, sections
from suite.topics.board.report import Report
from suite.topics.models import tried_models as matrix
from suite.topics.models.tried_models import Cell, Model, ModelsMatrix
from suite.topics.on_board import OnBoard, OnPage
from tests.factories import MACHINE, evidence, records, rows

LIGHT = """
import sys
import suite.judge.claims, suite.judge.interaction, suite.judge.rows, suite.record.store
import suite.topics.publish.export, suite.topics.board.html, suite.topics.board.markdown, suite.show.terminal
heavy = ("torch", "matplotlib", "suite.process.zygote", "suite.measure.contenders.contender")
sys.exit(", ".join(each for each in heavy if each in sys.modules) or None)
"""


def test_reading_and_judging_load_neither_torch_nor_matplotlib_nor_a_fork_server() -> None:
    done = subprocess.run([sys.executable, "-c", LIGHT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_report_holds_the_chosen_rows_and_says_what_could_not_be_read(tmp_path: Path) -> None:
    store = Store(tmp_path)
    lines = records(evidence("lion"), evidence("sam")).lines
    for each in lines:
        store.append(each, MACHINE.name)
    with store.path(MACHINE.name, "learned").open("a") as file:
        file.write("damaged\n")
    whole = Report.read(tmp_path)
    assert [row.stack for row in whole.rows] == ["lion", "sam"]
    assert (whole.records, len(whole.problems), len(whole.unreadable)) == (len(lines), 1, 0)
    assert {"lion", "sam", "lora"} <= set(whole.cards)
    lion = Report.read(tmp_path, {"lion"}, {"gpt"})
    assert ([row.stack for row in lion.rows], set(lion.cards)) == (["lion"], {"lion"})
    assert {each.technique for each in lion.verdicts} == {"lion"}
    assert not Report.read(tmp_path, on={"vit"}).rows


def test_a_report_has_the_matrix_of_models_and_the_page_a_link_to_it(tmp_path: Path) -> None:
    works = {"opt": Cell(verdict="works"), "swin": Cell(verdict="refused", reason="it has no head")}
    models = {"opt": Model(baseline="gpt"), "swin": Model(baseline="vit")}
    matrix.write(ModelsMatrix(models=models, cells={"lion": works, "gone": works}), tmp_path)
    report = Report.read(tmp_path)
    assert report.models is not None and report.models.changed == {"lion", "gone"}
    front, pages = markdown.split(report, "boards")
    assert "boards/models.md" in front and "| `lion`† | ✓ |" in pages["models.md"]
    assert '<a href="#models">' in html.render(report) and '<section id="models">' in html.render(report)
    vit = Report.read(tmp_path, {"lion"}, {"vit"}).models
    assert vit is not None and [*vit.matrix.cells["lion"]] == ["swin"]
    (tmp_path / matrix.NAME).write_text("{}")
    damaged = Report.read(tmp_path)
    assert damaged.models is None and "leantrain models" in damaged.unreadable[0]


def test_a_section_stands_where_its_order_says_and_may_read_a_file_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "weather.txt").write_text("rain")
    for each in records(evidence("lion")).lines:
        Store(tmp_path).append(each, MACHINE.name)
    known = contents.on_board()
    orders = [one.order for one in known]
    assert orders == sorted(set(orders))
    own = OnBoard(
        orders[0] - 1,
        lambda report: Section("weather", "Weather", "", [Paragraph((report.folder / "weather.txt").read_text())]),
        "the weather",
    )
    monkeypatch.setattr(contents, "on_board", lambda: (own, *known))
    report = Report.read(tmp_path)
    assert contents.sections(report)[0].anchor == "weather"
    front, pages = markdown.split(report, "boards")
    assert "[the weather](boards/weather.md)" in front and "rain" in pages["weather.md"]
    assert '<a href="#weather">' in html.render(report)


def test_a_new_topic_s_section_is_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "weather").mkdir()
    (tmp_path / "weather" / "weather_on_board.py").write_text(
        "from suite.show.described import Section\n"
        "from suite.topics.on_board import OnBoard\n"
        "ON_BOARD = OnBoard(1, lambda report: Section('weather', 'Weather', 'Rain.', []))\n"
    )
    monkeypatch.setattr(suite.topics, "__path__", [*suite.topics.__path__, str(tmp_path)])
    found = contents.on_board.__wrapped__()
    assert [one.section(Report()).anchor for one in found[:1]] == ["weather"] and len(found) > 5


class Unpacked(Pack):
    """A page whose folded parts stay as they are."""

    def fold(self, markup: Markup) -> Markup:
        return markup


def test_a_topic_s_part_of_a_technique_s_section_stands_where_its_order_says(monkeypatch: pytest.MonkeyPatch) -> None:
    known = contents.on_page()
    orders = [one.order for one in known]
    assert orders == sorted({*orders}) and len(orders) >= 6
    said = Markup("<p>{} records of {}</p>")
    own = OnPage(35, lambda report: lambda stack, placed: said.format(report.records, stack))
    monkeypatch.setattr(sections, "on_page", lambda: (own, *known))
    report = Report(rows(evidence("lion")), records=7, cards={"lion": catalogue()["lion"].card})
    page = sections.techniques(report, report.placed, [], set(), Unpacked())
    parts = ["Results of lion", "<p>7 records of lion</p>", "Learning curves", "How to use it"]
    assert sorted(parts, key=page.index) == parts
