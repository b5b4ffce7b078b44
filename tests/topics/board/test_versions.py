"""A baseline's version rose: rows of the older one stay, named by it, and are ranked with none of the newer; and two
machines in one folder stay two."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from suite.judge.claims import best, observed
from suite.judge.rows import Row, as_dict, pairs
from suite.record.schema import Line, Machine
from suite.show import terminal
from suite.show.pages.board import boards, older_sentence, remarks
from suite.topics.board import badge, html, markdown
from suite.topics.board.goals import tables
from suite.topics.board.report import Report
from suite.topics.board.standing import Standing
from suite.topics.publish.export import row_values
from suite.topics.references.references_on_board import ShownReferences
from tests.factories import CODE, MACHINE, claim, conditions, evidence, machine, put, records
from tests.show.samples import CHANGED, failing, whole

HERE = machine("amd-epyc-f25m17-2c", cpu="AMD EPYC test", cores=2, cpu_family=25, cpu_model=17)
THERE = machine("amd-epyc-f25m1-2c", cpu="AMD EPYC test", cores=2, cpu_family=25, cpu_model=1)


def of(lines: Iterable[Line], version: int, on: Machine = MACHINE, **changes: object) -> list[Line]:
    """The same evidence of another version, which has other data; and of another machine."""
    said = {"baseline_version": version, "data_sha256": f"{version}" * 64, **changes}
    return [
        each.model_copy(
            update={
                "conditions": conditions(**{"steps": each.conditions.steps} | said),
                "machine": on,  # type: ignore[union-attr]
                "id": f"{each.id}{version}{on.key}{''.join(map(str, changes.values()))}",
            }
        )
        for each in lines
    ]


def shown(*groups: Iterable[Line], installed: int | None = None, changed: bool = False) -> list[Row]:
    """The rows, where version ``installed`` of every baseline is installed, and its code is ``changed``."""
    code = CHANGED if changed else CODE
    return pairs(records(*groups), lambda stack: "baseline", lambda *_: code, version_of=lambda _: installed)


def transition() -> list[Row]:
    """Version 2 of "x", "y" and "z" on one machine, version 3 of "x" alone on another, where it is slower."""
    old = [line for stack in "xyz" for line in of(evidence(stack, pace_s=0.01), 2)]
    return shown(old, of(evidence("x", pace_s=0.04), 3, HERE))


def test_before_anything_is_measured_of_the_newer_version_all_stays_and_is_named():
    before = shown(of(evidence("x"), 2), of(evidence("y"), 2), installed=2)
    after = shown(of(evidence("x"), 2), of(evidence("y"), 2), installed=3, changed=True)
    assert len(after) == len(before) == 2
    assert [each.newer_version for each in before] == [None, None]
    assert [each.newer_version for each in after] == [3, 3]
    assert not any(each.unverified for each in after), "it is not unverified, it is of another version"
    assert all(each.unverified for each in shown(of(evidence("x"), 3), installed=3, changed=True))
    page = markdown.render(Report(rows=after))
    assert "No row is of today's version" in page and "## gpt version 2 · modern · nano" in page
    assert "2 rows of an older version of a baseline: gpt version 2 (now 3)" in page
    assert "†" not in page and "unverified" not in page
    assert "No row" not in markdown.render(Report(rows=before))


def test_only_the_newest_version_stands_on_the_tables():
    """ "y" and "z" of version 2 were faster, on another machine, than "x" of version 3."""
    standing = Standing.of(Report(rows=transition()))
    assert [(row.stack, row.conditions.baseline_version) for row in standing.rows] == [("x", 3)]
    (table,) = tables(standing)
    assert [(line.stack, str(line.verdict)) for line in table.lines] == [("x", "costs")]


def test_a_failure_of_the_newer_version_is_not_hidden_behind_an_older_success():
    rows = shown(of(evidence("x", pace_s=0.01), 2), of(failing("x", "crashed", "no reason"), 3))
    (table,) = tables(Standing.of(Report(rows=rows)))
    assert [str(line.verdict) for line in table.lines] == ["not known: crashed"]


def test_versions_are_never_ranked_together_and_the_newest_stands_first():
    of_boards = boards(transition())
    assert [{row.conditions.baseline_version for row in board.rows} for board in of_boards] == [{3}, {2}]
    assert [board.title.partition(" · ")[0] for board in of_boards] == ["gpt version 3", "gpt version 2"]
    assert [sorted(row.stack for row in board.rows) for board in of_boards] == [["x"], ["x", "y", "z"]]
    assert "no newer row is ranked with it" in of_boards[1].subtitle and "no newer row" not in of_boards[0].subtitle


def test_versions_of_one_title_without_others_need_no_name():
    (board,) = boards(shown(of(evidence("x"), 3), installed=3))
    assert "version" not in board.title


def test_an_older_row_stands_under_history_of_its_technique_and_on_no_board_of_the_page():
    rows = transition()
    assert len(rows) == 4 and sum(len(board.rows) for board in boards(rows)) == 4
    page = whole(html.render(Report(rows=rows)))
    assert len(set(re.findall(r'<tr id="([^"]*)"', page))) == 1
    history = re.findall(r"<summary>History</summary>(.*?)</details>", page, re.DOTALL)
    assert len(history) == 3 and all("gpt version 2 · modern" in each for each in history)


def test_badge_and_terminal_name_the_version():
    old = next(row for row in transition() if row.stack == "y")
    with pytest.raises(ValueError, match="leantrain run"):
        badge.render(Report(rows=[old]))
    assert "of version 2 of the baseline, which is at version 3 now" in terminal.summary(old)
    assert as_dict(old)["newer_version"] == 3
    table = row_values([old])
    assert {(each["baseline_version"], each["newer_version"], each["unverified"]) for each in table.lines} == {
        (2, 3, "")
    }


def test_what_an_older_row_lacks_cannot_be_measured_any_more_and_says_so():
    (row,) = shown(of(evidence("x", replicates=0), 2), installed=3)
    (said,) = [each for each in remarks(row, []) if each.startswith("missing")]
    assert said == "missing: timings; only version 3 can be measured now"


def test_a_claim_is_judged_by_an_older_version_only_where_there_is_nothing_newer():
    rows = transition()
    assert [row.conditions.baseline_version for row in best(claim(), (row for row in rows if row.stack == "x"))] == [3]
    (older,) = best(claim(), (row for row in rows if row.stack == "y"))
    note = observed(claim(), older).note
    assert "of version 2 of the baseline, which is at version 3 now" in note and "unverified" not in note


def test_no_sentence_where_no_row_is_older():
    assert older_sentence(shown(of(evidence("x"), 3), installed=3)) == ""


def test_references_of_an_older_version_say_which():
    each = Shown(conditions(baseline_version=2))
    older = ShownReferences(changed=frozenset([each.conditions.family]), older=frozenset([each.conditions.family]))
    assert older.heading(each) == "gpt version 2 · modern · nano · pretrain"  # type: ignore[arg-type]
    assert replace(older, older=frozenset()).heading(each) == "gpt · modern · nano · pretrain†"  # type: ignore[arg-type]


class Shown:
    def __init__(self, at):
        self.conditions = at


# two machines -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("other", [HERE, THERE])
def test_two_cpus_of_one_name_in_one_folder_stay_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: Machine):
    """MACHINE is of the old kind: its facts have no CPU's family. All else is equal to the other's."""
    here = evidence("x", pace_s=0.01)
    there = [each.model_copy(update={"machine": other, "id": f"t{each.id}"}) for each in evidence("x", pace_s=0.04)]
    put(put(tmp_path, here), there, other.name)
    monkeypatch.setattr("suite.judge.rows.card_reference", lambda stack: "baseline")
    report = Report.read(tmp_path)
    ratios = {row.machine.key: row.metrics["step_time"].number for row in report.rows}
    assert ratios == {MACHINE.key: pytest.approx(0.5, rel=0.02), other.key: pytest.approx(2.0, rel=0.02)}
    assert {len(row.known.timed) for row in report.rows} == {3}
    of_boards = boards(report.rows)
    assert [board.apart for board in of_boards] == [(each.rows[0].machine.name,) for each in of_boards]
    assert len({row.machine.key for row in Standing.of(report).rows}) == 1, "the tables are of one machine"
    page = markdown.render(report)
    for name in (MACHINE.name, other.name):
        assert f"Machine {name} (" in page and f"- Machine `{name}`: " in page
    assert "not recorded: cpu\\_family, cpu\\_model" in page
