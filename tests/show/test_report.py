"""A report is read from a results folder, and reading and judging load no more than that needs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from suite.record.store import Store
from suite.show.report import Report
from tests.factories import MACHINE, evidence, records

LIGHT = """
import sys
import suite.judge.claims, suite.judge.interaction, suite.judge.rows, suite.record.store
import suite.show.export, suite.show.html, suite.show.markdown, suite.show.terminal
heavy = ("torch", "matplotlib", "multiprocessing.forkserver", "suite.measure.contender")
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
    (tmp_path / MACHINE.name / "calibration.json").write_text("{}")
    whole = Report.read(tmp_path)
    assert [row.stack for row in whole.rows] == ["lion", "sam"]
    assert (whole.records, len(whole.problems), len(whole.unreadable)) == (len(lines), 1, 1)
    assert {"lion", "sam", "lora"} <= set(whole.cards)
    lion = Report.read(tmp_path, {"lion"}, {"gpt"})
    assert ([row.stack for row in lion.rows], set(lion.cards)) == (["lion"], {"lion"})
    assert {each.technique for each in lion.verdicts} == {"lion"}
    assert not Report.read(tmp_path, on={"vit"}).rows
