"""Studies: what is kept of them, and what becomes of files that are damaged, newer or somebody else's."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import suite.topics.studies.study
from suite.cli import app
from suite.entries.catalogue import catalogue
from suite.topics.studies.lab import NOT_FINITE, StudyTable
from suite.topics.studies.study import Study, baseline_for, read_studies, study_of, write_study
from tests.factories import CODE, MACHINE, installed

SWEEP = StudyTable(
    "steps_to_quality",
    (
        "batch_size",
        "rule",
        "learning_rate",
        "seeds",
        "reached",
        "steps_to_quality",
        "examples_to_quality",
        "steps_half_way",
        "final_loss",
        "final_loss_low",
        "final_loss_high",
        "cpu_s",
    ),
    [
        (32, "reference", 1e-3, 3, 3, 200.0, 6400.0, 50.0, 2.0, 1.9, 2.1, 40.0),
        (128, "linear", 4e-3, 3, 3, 60.0, 7680.0, 15.0, 2.0, 1.9, 2.1, 30.0),
        (512, "linear", 1.6e-2, 3, 0, None, None, None, math.nan, None, None, 20.0),
    ],
    "medians over the seeds",
)


def study(technique: str = "linear_scaling_warmup", **changes: Any) -> Study:
    values: dict[str, Any] = {
        "technique": technique,
        "code": CODE.trajectory,
        "baseline": "gpt",
        "size": "nano",
        "recipe": "modern",
        "device": "cpu",
        "seeds": 3,
        "machine": MACHINE,
        "made": datetime(2026, 1, 2, tzinfo=UTC),
        "tables": [SWEEP],
    }
    return Study(**values | changes)


scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text().filter(lambda text: text not in NOT_FINITE)
)


@given(st.lists(st.tuples(scalars, scalars)), st.text(), st.text())
def test_every_scalar_comes_back_as_it_was(rows: list[tuple[Any, ...]], name: str, note: str) -> None:
    stored = study(tables=[StudyTable(name, (note, "x"), rows, note)])
    (read,) = Study.model_validate_json(stored.model_dump_json()).tables
    assert (read.name, read.columns, read.note) == (name, (note, "x"), note)
    assert [*map(repr, read.rows)] == [*map(repr, rows)]  # NaN, and 1 beside 1.0 and True


def test_a_spreadsheet_takes_no_cell_of_a_study_for_a_formula() -> None:
    table = StudyTable("t", ("=HYPERLINK(1)", "x"), [("=HYPERLINK(1)", -1.5), ("+1", None)])
    assert table.as_csv() == "'=HYPERLINK(1),x\r\n'=HYPERLINK(1),-1.5\r\n'+1,\r\n"


def test_a_study_runs_on_gpt_or_else_on_the_first_baseline_that_it_is_for() -> None:
    chosen = {id: baseline_for(catalogue()[id], study_of(catalogue()[id]), None) for id in ("lamb", "sam", "vit_sam")}
    assert chosen == {"lamb": "gpt", "sam": "vit", "vit_sam": "vit"}
    assert baseline_for(catalogue()["lamb"], study_of(catalogue()["lamb"]), "mae") == "mae"


RESULTS = Path(__file__).parents[3] / "results"


def test_the_committed_studies_are_read_and_drawn() -> None:
    studies, problems = read_studies(RESULTS)
    assert all("older" in each for each in problems)
    plots = [(getattr(study_of(catalogue()[each.technique]), "plot", None), each.tables) for each in studies]
    assert sum(plot is not None for plot, _ in plots) > 10
    for plot, tables in plots:
        assert plot is None or plot(tables).axes  # one that draws nothing is tables alone


def test_a_study_is_stored_beside_the_records_of_its_machine_and_replaces_the_one_before(tmp_path: Path) -> None:
    path = write_study(study(), tmp_path)
    assert path == tmp_path / MACHINE.name / "studies" / "linear_scaling_warmup-gpt-nano-modern.json"
    write_study(study(seeds=5), tmp_path)
    (read,), problems = read_studies(tmp_path)
    assert (read.seeds, problems) == (5, [])
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_a_study_with_empty_tables_is_not_stored(tmp_path: Path) -> None:
    assert write_study(study(tables=[StudyTable("a", ("x",), []), StudyTable("b", ("x",), [])]), tmp_path) is None
    assert not list(tmp_path.iterdir())
    assert read_studies(tmp_path) == ([], [])


def test_numpy_s_scalars_are_stored_as_numbers_and_other_cells_are_refused() -> None:
    (table,) = study(tables=[StudyTable("a", ("x", "y", "z"), [(np.int64(3), np.bool_(True), np.float32(0.5))])]).tables
    assert [*map(repr, table.rows[0])] == ["3", "True", "0.5"]
    with pytest.raises(ValueError, match="a cell is a number, a text"):
        study(tables=[StudyTable("a", ("x",), [([1],)])])
    with pytest.raises(ValueError, match="one cell for each column"):
        StudyTable("a", ("x",), [(1, 2)])


def test_cells_as_people_read_them() -> None:
    assert StudyTable("a", ("x",) * 5, [(1 / 3, 12345678, None, "words", math.nan)]).as_text() == [
        ["0.3333", "12345678", "n/a", "words", "nan"]
    ]


def test_a_study_is_unverified_where_the_code_of_its_runs_changed_or_is_gone() -> None:
    assert not study().unverified(installed)
    assert study(code="other").unverified(installed)
    assert study(technique="gone").unverified()
    assert study().unverified(), "of synthetic code"


def test_a_study_of_an_older_schema_says_how_to_make_it_again(tmp_path: Path) -> None:
    path = write_study(study(), tmp_path)
    assert path
    path.write_text(content(schema_version=1))
    assert read_studies(tmp_path) == (
        [],
        [
            f"{path}: schema version 1 is older than 2 and cannot be read any more; delete the file and make it again "
            "with: leantrain study linear_scaling_warmup"
        ],
    )


def content(**changes: Any) -> str:
    return json.dumps(json.loads(study().model_dump_json()) | changes)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "damaged"),
        ("{", "damaged"),
        ("[]", "damaged"),
        ("[" * 10**5, "damaged"),
        ("1" * 10**5, "a whole number beyond 64 bits"),
        ("{}", "names no schema version"),
        (content(schema_version="1"), "names no schema version"),
        (content(schema_version=3), "schema version 3 is newer than 2; update leantrain"),
        ('{"schema_version": 2, "id": "a record"}', "technique: Field required"),
        (content(tables=[{"name": "a", "columns": ["x"], "rows": [[1, 2]]}]), "one cell for each column"),
        (content(tables=[{"name": "a", "columns": ["x"], "rows": [[{"a": 1}]]}]), "a cell is a number"),
        (content(seeds=math.nan), "not a study"),
        (content(made="soon"), "made: "),
        (content(technique="\ud800"), "Invalid"),
    ],
)
def test_a_file_that_is_no_study_is_one_sentence_and_hides_no_other(text: str, words: str, tmp_path: Path) -> None:
    path = write_study(study(), tmp_path)
    assert path
    bad = path.with_name("bad\x1b[31m.json")
    bad.write_text(text, "utf-8")
    studies, (problem,) = read_studies(tmp_path)
    assert [each.model_dump_json() for each in studies] == [study().model_dump_json()]
    assert words in problem
    assert problem.isprintable()
    assert bad.read_text("utf-8") == text


def test_a_file_that_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "machine" / "studies" / "folder.json").mkdir(parents=True)
    studies, (problem,) = read_studies(tmp_path)
    assert not studies
    assert "folder.json: cannot be read: Is a directory" in problem


def called(*arguments: object) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, [str(each) for each in arguments])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.stdout, done.stderr


def test_the_command_stores_its_tables_and_the_boards_show_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = [SWEEP]
    module = SimpleNamespace(study=lambda lab: tables)
    monkeypatch.setattr(suite.topics.studies.study, "study_of", lambda entry: module)
    code, printed, error = called("study", "lamb", "-b", "gpt", "--seeds", 2, "--results", tmp_path)
    assert code == 0
    assert "n/a" in printed and "medians over the seeds" in printed
    (stored,), _ = read_studies(tmp_path)
    (path,) = tmp_path.glob("*/studies/lamb-gpt-nano-modern.json")
    assert f"kept: {path}" in error.replace("\n", "")
    assert (stored.technique, stored.seeds, stored.machine.name) == ("lamb", 2, path.parent.parent.name)
    tables[:] = [StudyTable("empty", ("x",), [])]
    assert "not kept: every table is empty" in called("study", "lamb", "--results", tmp_path, "--json")[2]

    board, page = tmp_path / "board.md", tmp_path / "board.html"
    path.with_name("bad.json").write_text("{")
    code, _, error = called("leaderboard", "--results", tmp_path, "--write", board, "--write", page)
    assert code == 0
    assert "bad.json: not a study: it is damaged; it is left out" in error.replace("\n", "")
    assert "### LAMB · gpt · modern · nano\n" in (tmp_path / "boards" / "gpt.md").read_text("utf-8")
    assert '<section id="studies">' in page.read_text("utf-8")
