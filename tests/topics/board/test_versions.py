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
from suite.show.pages.matrix import first, matrix, parts
from suite.topics.board import badge, html, markdown, poster
from suite.topics.board.report import Report
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
    assert "| here: gpt version 2 |" in page and "## gpt version 2 · modern · nano" in page
    assert "2 rows of an older version of a baseline: gpt version 2 (now 3)" in page
    assert "†" not in page and "unverified" not in page
    assert "version 2" not in markdown.render(Report(rows=before)).replace("gpt version 2.", "")


def test_a_cell_shows_the_newest_version_that_says_something_and_names_an_older_one():
    (rows,) = parts(transition()).values()
    whole = matrix(rows)
    assert whole.columns == ("gpt",) and whole.title("gpt") == "gpt"
    best_of = {each.stack: each.best["gpt"].conditions.baseline_version for each in whole.entries}
    assert best_of == {"x": 3, "y": 2, "z": 2}
    assert {each.stack: dict(each.versions) for each in whole.entries} == {
        "x": {},
        "y": {"gpt": "version 2"},
        "z": {"gpt": "version 2"},
    }
    assert whole.shared == f"modern · nano · {HERE.name} · version 2 on {MACHINE.name}"
    page = markdown.render(Report(rows=transition()))
    lines = {stack: next(line for line in page.splitlines() if line.startswith(f"| `{stack}` |")) for stack in "xy"}
    assert "(version 2)" in lines["y"] and "Sooner on gpt (version 2)." in lines["y"]
    assert "‡ |" in lines["y"] and "version" not in lines["x"] and "Later on gpt." in lines["x"]


@pytest.mark.parametrize("newer", [[], of(evidence("x", seeds=0, replicates=0, ruler=False), 3)])
def test_what_was_only_counted_of_the_newer_version_takes_no_headline_away(newer: list[Line]):
    (entry,) = matrix(first(shown(of(evidence("x", pace_s=0.01), 2), newer, installed=3))).entries
    assert entry.best["gpt"].conditions.baseline_version == 2 and entry.answer.startswith("Sooner on gpt")


def test_a_failure_of_the_newer_version_is_not_hidden_behind_an_older_success():
    failed = of(failing("x", "crashed", "no reason"), 3)
    (entry,) = matrix(first(shown(of(evidence("x", pace_s=0.01), 2), failed))).entries
    assert entry.best["gpt"].failed and entry.verdicts == ("failed",)


def test_versions_are_never_ranked_together_and_the_newest_stands_first():
    of_boards = boards(transition())
    assert [{row.conditions.baseline_version for row in board.rows} for board in of_boards] == [{3}, {2}]
    assert [board.title.partition(" · ")[0] for board in of_boards] == ["gpt version 3", "gpt version 2"]
    assert [sorted(row.stack for row in board.rows) for board in of_boards] == [["x"], ["x", "y", "z"]]
    assert "no newer row is ranked with it" in of_boards[1].subtitle and "no newer row" not in of_boards[0].subtitle


def test_versions_of_one_title_without_others_need_no_name():
    (board,) = boards(shown(of(evidence("x"), 3), installed=3))
    assert "version" not in board.title


def test_the_best_of_a_column_is_sought_in_one_version_alone():
    """ "y" and "z" of version 2 were faster, on another machine, than "x" of version 3."""
    slower = of([line for stack in "abc" for line in evidence(stack, pace_s=0.015)], 3, HERE)
    rows = [*shown(of([line for stack in "yz" for line in evidence(stack, pace_s=0.01)], 2), slower)]
    (answer,) = matrix(first(rows)).answers
    assert {row.stack for row in answer.time} == {"a", "b", "c"} and answer.version == ""
    (answer,) = matrix(first(transition())).answers
    assert {row.conditions.baseline_version for row in answer.time} == {2} and answer.version == "version 2"


def test_a_mean_is_over_one_machine_and_no_mixture_of_versions():
    gpt = of(evidence("x", pace_s=0.01), 3, HERE)
    vit = {version: of(evidence("x", pace_s=0.01), version, HERE, baseline="vit") for version in (2, 3)}
    assert matrix(first(shown(gpt, vit[3], installed=3))).entries[0].mean is not None
    (entry,) = matrix(first(shown(gpt, vit[2], installed=3))).entries
    assert len(entry.best) == 2 and entry.mean is None


def test_no_row_is_lost_in_any_form():
    rows = transition()
    assert len(rows) == 4
    assert sum(len(each) for each in parts(rows).values()) == 4
    assert sum(len(board.rows) for board in boards(rows)) == 4
    page = whole(html.render(Report(rows=rows)))
    assert set(re.findall(r'<tr id="([^"]*)"', page)).__len__() == 4
    assert "Sooner on gpt (version 2)" in page and "gpt version 2 · modern" in page
    assert "of version 2 of the baseline, which is at version 3 now" in page


def test_a_page_of_several_machines_opens_on_all_of_them():
    page = html.render(Report(rows=transition()))
    select = re.search(r'<select data-filter="machine">.*?</select>', page, re.DOTALL)
    assert select and "selected" not in select[0]


def test_picture_badge_and_terminal_name_the_version():
    rows = transition()
    picture = poster.render(Report(rows=rows))
    assert "‡ version 2 of the baseline, not the newest" in picture and picture.count("‡") == 3
    whole = poster.render(Report(rows=shown(of(evidence("x"), 2), installed=3)))
    assert "gpt version 2" in whole and "‡" not in whole
    old = next(row for row in rows if row.stack == "y")
    assert "y · gpt nano version 2" in badge.render(Report(rows=[old]))
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
    assert len(parts(report.rows)) == 2, "a matrix is of one machine"
    page = markdown.render(report)
    for name in (MACHINE.name, other.name):
        assert f"Machine {name} (" in page and f"- Machine `{name}`: " in page
    assert "not recorded: cpu\\_family, cpu\\_model" in page
