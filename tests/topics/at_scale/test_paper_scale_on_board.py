"""Counts at the papers' own sizes: kept, found again, old ones marked, and shown beside their reference."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from suite.cli import app
from suite.judge.at_scale import CountsAtScale
from suite.measure.at_scale.full_size import Scale, StepCount, survey
from suite.process.child import ContenderFailed
from suite.record.job import Setting
from suite.record.paper_scale import NAME, PaperScale, SizeCount, read, write
from suite.record.placed import CountPlace
from suite.topics.at_scale.paper_scale_on_board import tables
from suite.topics.board import html, markdown
from suite.topics.board.report import Report
from suite.topics.modelled_time.aside import Aside
from tests.show.samples import EVIL, whole

PLACE = CountPlace("gpt", "large", "modern", "cuda", "pretrain")
NUMBERS = {"peak_tensor_bytes": 2**30, "saved_activation_bytes": 2**29, "optimizer_state_bytes": 2**20, "flops": 10**12}


def count(
    stack: str, share: float = 1.0, *, place: CountPlace = PLACE, reference: str = "baseline", **own: str
) -> SizeCount:
    numbers = {} if own.get("unavailable") else {name: round(share * number) for name, number in NUMBERS.items()}
    return SizeCount(place=place, stack=stack, reference=reference, code="old", quantities=numbers, **own)


COUNTS = PaperScale(
    made="2026-01-01",
    versions={"torch": "2.15"},
    counts=[count("baseline"), count("sam", 1.5), count("lion", 0.5), count("lora", unavailable=EVIL)],
)


def test_a_place_has_a_table_with_the_smallest_peak_first() -> None:
    (table,) = tables(COUNTS)
    assert [each.stack.stack for each in table.counted] == ["lion", "sam"]
    assert [each.stack.stack for each in table.uncounted] == ["lora"]
    assert "peak of all tensors 1 GiB" in table.reference


def test_a_newer_count_takes_the_place_of_the_older_one_and_a_choice_keeps_the_references() -> None:
    newer = COUNTS.with_newer(PaperScale(made="2026-01-02", counts=[count("lion", 0.25)]))
    assert newer.made == "2026-01-02" and len(newer.counts) == 4
    assert newer.beside()[PLACE][0].ratio("flops") == 0.25
    assert [each.stack for each in newer.only(["lion"], ["gpt"]).counts] == ["baseline", "lion"]
    assert not newer.only([], ["vit"]).counts


def test_the_board_shows_them_marks_what_is_old_and_escapes_reasons(tmp_path: Path) -> None:
    write(COUNTS, tmp_path)
    report = Report.read(tmp_path)
    front, pages = markdown.split(report, "boards")
    assert "boards/paper-scale.md" in front
    assert "| `lion`† | 512 MiB | 0.500 | 0.500 | 0.500 | 0.500 |" in pages["paper-scale.md"]
    page = whole(html.render(report))
    assert '<a href="#paper-scale">' in page and '<section id="paper-scale">' in page
    assert EVIL not in page and EVIL not in pages["paper-scale.md"]
    assert not Report.read(tmp_path, on={"vit"}).paper_scale
    (tmp_path / NAME).write_text("{}")
    damaged = Report.read(tmp_path)
    assert not damaged.paper_scale and "leantrain count --keep" in damaged.unreadable[0]


def test_nothing_counted_is_no_section() -> None:
    assert not CountsAtScale() and not CountsAtScale(PaperScale(counts=[count("baseline")]))


def test_what_was_counted_of_this_code_is_not_counted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    scale = Scale(Setting(baseline="gpt", size="pico", device="cuda"))
    kept: list[PaperScale] = []
    first = survey(["lion", "zero1"], scale, PaperScale(), kept.append)
    assert [len(each.counts) for each in kept] == [1, 2, 3, 4]
    (beside,) = first.beside().values()
    by_stack = {each.stack.stack: each for each in beside}
    assert by_stack["lion"].ratio("optimizer_state_bytes") == pytest.approx(0.5, abs=0.01)
    assert (by_stack["dp_ddp"].reference.stack, by_stack["zero1"].reference.stack) == ("baseline", "dp_ddp")
    assert by_stack["zero1"].ratio("optimizer_state_bytes") == pytest.approx(0.5, abs=0.01)
    monkeypatch.setattr("suite.measure.at_scale.full_size.counted", lambda *_: pytest.fail("it is known"))
    assert survey(["lion", "zero1"], scale, first, kept.append) == first


def test_the_command_keeps_and_refuses(tmp_path: Path) -> None:
    arguments = ["count", "--size", "pico", "--keep", "--results", str(tmp_path)]
    done = CliRunner().invoke(app, [*arguments, "-t", "lion"])
    assert done.exit_code == 0 and "lion" in done.output and str(tmp_path / NAME) in done.output
    assert {each.stack for each in read(tmp_path).counts} == {"baseline", "lion"}
    assert json.loads(CliRunner().invoke(app, [*arguments, "-t", "lion", "--json"]).stdout)["counts"]
    for other in ("--batch", "3"), ("--steps", "3"):
        assert CliRunner().invoke(app, [*arguments, *other]).exit_code == 2
    assert CliRunner().invoke(app, ["count"]).exit_code == 2


def test_what_fails_is_told_and_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = ContenderFailed("crashed", "died of SIGSEGV")
    monkeypatch.setattr(Aside, "counted", lambda self, stack, scale: StepCount.of_failure(stack, failed))
    done = CliRunner().invoke(
        app, ["count", "--size", "pico", "--keep", "--results", str(tmp_path), "-t", "lion", "--json"]
    )
    assert done.exit_code == 5 and "lion: crashed: died of SIGSEGV" in done.stderr
    assert not read(tmp_path).counts
