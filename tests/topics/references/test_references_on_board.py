"""What references have learned and can tell apart: kept in one file, shown beside each baseline's numbers."""

from __future__ import annotations

from base64 import b64decode
from datetime import date
from html.parser import HTMLParser
from io import BytesIO
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from PIL import Image
from pydantic import ValidationError

from suite.entries.sources import code_of
from suite.loop.baseline import Sample
from suite.measure.provenance import conditions_of
from suite.record.job import BASELINE, Setting
from suite.record.schema import Code
from suite.topics.board import html, markdown
from suite.topics.board.report import Report
from suite.topics.references import learned_references as record
from suite.topics.references.learned_references import Bar, Control, LearnedReference, Picture, Power, References
from suite.topics.references.measured_references import _picture
from suite.topics.references.references_on_board import drawn

MAE = Setting(baseline="mae", size="pico")
GPT = Setting(baseline="gpt", size="pico")
HOSTILE = "<script>alert(1)</script>|[x](javascript:1)"


def of(setting: Setting, **others: Any) -> dict[str, Any]:
    return {"conditions": conditions_of(setting), "code": code_of(setting, BASELINE), "made": date(2026, 1, 2)} | others


def learned(setting: Setting, loss: float = 0.5, **others: Any) -> LearnedReference:
    return LearnedReference(
        judged_by="loss",
        quality="squared error",
        seeds=[{"loss": loss}, {"loss": loss + 0.2}],
        bars=[Bar(method="PCA inpainting", scores={"loss": 0.7}, passed=True)],
        **of(setting, **others),
    )


def power(setting: Setting) -> Power:
    seeds = Control(name="other seeds", seeds=2, equivalent_budget=1.01, low=0.95, high=1.08, loss_ratio=0.999)
    return Power(seeds=3, seed_deviation=0.03, smallest_change=0.08, controls=[seeds], **of(setting))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    picture = Picture(caption="shown, completed", png="AAAA", height=2, width=3)
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
    assert "pre" in tags and "image" in tags


def test_every_column_has_a_name_and_every_text_takes_the_keyboard(folder: Path) -> None:
    page = html.render(Report.read(folder))
    part = page[page.index('id="references"') :]
    assert '<button type="button"></button>' not in part and '<th scope="col"></th>' not in part
    assert part.count("<pre") == part.count('<pre tabindex="0"') == 1


def test_a_picture_is_the_samples() -> None:
    pixels = torch.tensor([[0, 0, 255], [128, 128, 128]], dtype=torch.uint8)
    kept = _picture(Sample("<a>", picture=pixels))
    svg = ElementTree.fromstring(drawn(kept))
    (image,) = (each.attrib for each in svg if each.tag.endswith("image"))
    png = b64decode(image["href"].removeprefix("data:image/png;base64,"))
    assert torch.equal(torch.from_numpy(np.array(Image.open(BytesIO(png)))), pixels)
    assert (image["width"], image["height"]) == ("3", "2")


def test_what_is_no_base64_is_no_picture() -> None:
    with pytest.raises(ValidationError):
        Picture(caption="x", png='"/><script>')
