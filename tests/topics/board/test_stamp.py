"""A board takes the place of an earlier one of the same records, and of nothing else unasked."""

from __future__ import annotations

from pathlib import Path
from xml.dom import minidom

import pytest

from suite.cli import Exit
from tests.factories import evidence, put
from tests.plugin import called


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two results folders, ``results`` the larger."""
    monkeypatch.chdir(tmp_path)
    for folder, stacks in (("results", ("lion", "sam")), ("mine", ("lion",))):
        lines = {line.id: line for stack in stacks for line in evidence(stack, seeds=1, replicates=1, ruler=False)}
        put(Path(folder), lines.values())
    return tmp_path


@pytest.mark.parametrize("name", ["leaderboard.md", "leaderboard.html", "board.svg"])
def test_only_a_board_of_the_same_records_is_replaced(there: Path, name: str) -> None:
    assert called("leaderboard", "--write", name)[0] == Exit.FINE
    assert called("leaderboard", "--write", name)[0] == Exit.FINE, "again, of the same"
    before = Path(name).read_bytes()
    others: tuple[tuple[str, ...], ...] = (("--results", "mine"), ("-t", "lion"))
    for other in others:
        code, _, error = called("leaderboard", "--write", name, *other)
        assert code == Exit.USAGE
        assert error.startswith(f"leantrain: {name} is a board of ") and error.endswith("or say --replace\n")
        assert Path(name).read_bytes() == before
    for file in sorted((there / "results").rglob("learned.jsonl")):
        file.unlink()
    assert called("leaderboard", "--write", name)[0] == Exit.USAGE, "records are gone"
    assert called("leaderboard", "--write", name, "--results", "mine", "--replace")[0] == Exit.FINE
    assert Path(name).read_bytes() != before


def test_an_empty_results_folder_leaves_the_board(there: Path) -> None:
    assert called("leaderboard")[0] == Exit.FINE
    before = Path("leaderboard.md").read_bytes()
    Path("empty").mkdir()
    assert called("leaderboard", "--results", "empty", "--replace")[0] == Exit.NOTHING
    assert Path("leaderboard.md").read_bytes() == before


def test_a_file_that_is_no_board_stays(there: Path) -> None:
    Path("README.md").write_text("# mine, about leantrain\n")
    code, _, error = called("leaderboard", "--write", "new.html", "--write", "README.md")
    assert (code, error) == (
        Exit.USAGE,
        "leantrain: README.md is something else than a board; write to another file, or say --replace\n",
    )
    assert Path("README.md").read_text() == "# mine, about leantrain\n"
    assert not Path("new.html").exists(), "all or none"


def test_a_board_of_a_version_without_stamps_is_one(there: Path) -> None:
    assert called("leaderboard")[0] == Exit.FINE
    board = Path("leaderboard.md")
    board.write_text(board.read_text().rpartition("<!-- leantrain board")[0])
    assert called("leaderboard")[0] == Exit.FINE


def test_the_stamp_is_a_comment(there: Path) -> None:
    assert called("leaderboard", "--results", "mine", "--write", "board.svg", "--write", "board.md")[0] == Exit.FINE
    assert minidom.parse("board.svg").documentElement.tagName == "svg"
    assert Path("board.md").read_text().splitlines()[-1].startswith("<!-- leantrain board {")
