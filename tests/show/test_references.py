"""What references have learned and can tell apart: kept in one file, shown beside each baseline's numbers."""

from __future__ import annotations

from datetime import date
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from suite.contract.sources import code_of
from suite.measure.evidence import conditions_of
from suite.record import references as record
from suite.record.job import BASELINE, Setting
from suite.record.references import Bar, Control, LearnedReference, Picture, Power, References
from suite.record.schema import Code
from suite.show import html, markdown
from suite.show.references import drawn
from suite.show.report import Report

MAE = Setting(baseline="mae", size="pico")
GPT = Setting(baseline="gpt", size="pico")
HOSTILE = "<script>alert(1)</script>|[x](javascript:1)"


def of(setting: Setting, **others: Any) -> dict[str, Any]:
    return {"conditions": conditions_of(setting), "code": code_of(setting, BASELINE), "made": date(2026, 1, 2)} | others


def learned(setting: Setting, loss: float = 0.5, **others: Any) -> LearnedReference:
    return LearnedReference(
        judged_by="loss", quality="squared error", seeds=[{"loss": loss}, {"loss": loss + 0.2}],
        bars=[Bar(method="PCA inpainting", scores={"loss": 0.7}, passed=True)], **of(setting, **others),
    )  # fmt: skip


def power(setting: Setting) -> Power:
    seeds = Control(name="other seeds", seeds=2, equivalent_budget=1.01, low=0.95, high=1.08, loss_ratio=0.999)
    return Power(seeds=3, seed_deviation=0.03, smallest_change=0.08, controls=[seeds], **of(setting))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    picture = Picture(caption="shown, completed", picture=[[0, 0, 255], [128, 128, 128]])
    text = Picture(caption="a beginning | what follows", text=HOSTILE)
    known = References(learned=[learned(MAE, samples=[picture]), learned(GPT, samples=[text])], power=[power(MAE)])
    record.write(known, tmp_path)
    return tmp_path


def test_they_are_read_as_written_and_newer_ones_take_their_places(folder: Path) -> None:
    known = record.read(folder)
    assert known.learned[0].scores == {"loss": pytest.approx(0.6)} and known.learned[0].passed
    newer = known.with_newer([learned(MAE, 0.1)])
    assert [each.conditions.baseline for each in newer.learned] == ["gpt", "mae"]
    assert newer.learned[1].seeds[0] == {"loss": 0.1} and newer.power == known.power


def test_a_damaged_file_is_named_with_what_to_do(folder: Path) -> None:
    (folder / record.NAME).write_text("{")
    with pytest.raises(ValueError, match="damaged; delete it and make it again: leantrain baselines"):
        record.read(folder)
    report = Report.read(folder)
    assert not report.references and "damaged" in report.unreadable[0]


def test_each_baselines_page_has_its_own(folder: Path) -> None:
    report = Report.read(folder)
    _, pages = markdown.split(report, "boards")
    assert "PCA inpainting | 0.7 | passed" in pages["mae.md"] and "![shown, completed](mae-1.svg)" in pages["mae.md"]
    assert "sees a change of the equivalent budget of 8.0%" in pages["mae.md"]
    assert "what follows" in pages["gpt.md"] and "PCA inpainting" in pages["gpt.md"]
    assert "×1.010" not in pages["gpt.md"]
    assert "†" not in pages["mae.md"]


def test_what_older_code_made_is_marked(folder: Path) -> None:
    older = learned(MAE, code=Code(trajectory="before", counts="before"))
    record.write(record.read(folder).with_newer([older]), folder)
    report = Report.read(folder)
    assert (
        "## What the reference has learned: mae · modern · pico · pretrain†" in markdown.split(report, "b")[1]["mae.md"]
    )


def test_the_page_shows_text_as_text(folder: Path) -> None:
    page = html.render(Report.read(folder))
    tags: list[str] = []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attrs: tags.append(tag)  # type: ignore[method-assign]
    parser.feed(page[page.index('id="references"') :])
    assert "&lt;script&gt;alert(1)" in page and "<script>alert(1)" not in page
    assert "pre" in tags and "rect" in tags


def test_a_picture_has_its_pixels() -> None:
    svg = ElementTree.fromstring(drawn([[0, 0, 255], [128, 128, 128]], "<a>"))
    rectangles = [each.attrib for each in svg if each.tag.endswith("rect")]
    assert [(each["x"], each["y"], each["width"], each["fill"]) for each in rectangles] == [
        ("0", "0", "2", "#000000"), ("2", "0", "1", "#ffffff"), ("0", "1", "3", "#808080"),
    ]  # fmt: skip
