"""What commands print: on a terminal tables that fit it with whole ids, in a pipe lines for other programs."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console
from typer.main import get_command
from typer.testing import CliRunner

from suite.cli import Exit, app, shared
from suite.cli.shared import GROUPS, bar, show_table
from suite.entries.catalogue import catalogue
from suite.judge.study_tables import StudyTable
from suite.topics.studies.study import write_study
from tests.factories import evidence, put
from tests.plugin import called, command
from tests.show.samples import study

WIDTH = 80


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """What is printed on a terminal of 80 columns."""
    text = io.StringIO()
    console = Console(file=text, width=WIDTH, force_terminal=True, color_system=None, highlight=False)
    monkeypatch.setattr(shared, "out", console)
    return text


def on_terminal(*arguments: object) -> str:
    """What the command line prints on a real terminal of 80 columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, WIDTH, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    environment |= {"TERM": "xterm"}
    process = subprocess.Popen(command(*arguments), stdout=theirs, stderr=subprocess.DEVNULL, env=environment)
    os.close(theirs)
    parts = []
    try:
        while part := os.read(ours, 65536):
            parts.append(part)
    except OSError:  # the other end is closed
        pass
    process.wait(60)
    os.close(ours)
    return re.sub(r"\x1b\[[0-9;]*m|\r", "", b"".join(parts).decode())


def test_the_list_fits_a_terminal_and_cuts_no_id() -> None:
    said = on_terminal("list")
    assert all(cell_len(line) <= WIDTH for line in said.splitlines())
    assert {line.split(" ")[0] for line in said.splitlines()} >= set(catalogue())


def test_the_list_is_tab_separated_in_a_pipe() -> None:
    lines = [line.split("\t") for line in called("list")[1].splitlines()]
    assert lines[0] == ["id", "category", "baselines", "task", "against", "what it changes"]
    assert [line[0] for line in lines[1:]] == list(catalogue())
    assert {len(line) for line in lines} == {6}
    assert not any(cell != cell.strip() for line in lines for cell in line)


def test_claims_fit_a_terminal(terminal: io.StringIO, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("suite.cli.read.out", shared.out)
    put(tmp_path, {line.id: line for line in evidence("lion")}.values())
    assert called("claims", "lion", "--results", tmp_path)[0] in (Exit.FINE, Exit.REGRESSED)
    said = terminal.getvalue()
    assert all(cell_len(line.rstrip()) <= WIDTH for line in said.splitlines())
    words = said.split()
    assert all(f"lion.{claim.id}" in words for claim in catalogue()["lion"].card.claim)


words = st.text(st.characters(categories=["L", "N", "P"]), min_size=1, max_size=40)
texts = st.lists(words, max_size=12).map(" ".join)


@given(st.lists(st.tuples(words, words, texts, texts), min_size=1, max_size=4))
def test_any_table_fits_and_keeps_its_ids_whole(lines: list[tuple[str, str, str, str]]) -> None:
    text, before = io.StringIO(), shared.out
    shared.out = Console(file=text, width=WIDTH, force_terminal=True, color_system=None, highlight=False)
    try:
        show_table(("id", "of", "why", "seen"), lines, title="a title", whole=(0, 1))
    finally:
        shared.out = before
    said = text.getvalue()
    assert all(cell_len(line.rstrip()) <= WIDTH for line in said.splitlines())
    for one, two, *_ in lines:
        if cell_len(one) + cell_len(two) <= WIDTH - 2:
            assert one in said and two in said


@given(st.lists(st.tuples(st.text(), st.text()), min_size=1, max_size=4))
def test_any_table_is_one_line_a_row_in_a_pipe(lines: list[tuple[str, str]]) -> None:
    printed: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("builtins.print", printed.append)
        patch.setattr(shared, "out", Console(file=io.StringIO(), force_terminal=False))
        show_table(("a", "b"), lines)
    assert len(printed) == len(lines) + 1
    assert all(line.count("\t") == 1 and line.isprintable() == ("\t" not in line) for line in printed)


def test_a_bar_never_runs_backwards(monkeypatch: pytest.MonkeyPatch) -> None:
    text = io.StringIO()
    monkeypatch.setattr(shared, "err", Console(file=text, force_terminal=False))
    with bar(quiet=False) as progress:
        for share, label in ((0.0, "a"), (0.5, "b"), (0.2, "c (1)"), (0.3, "c (2)"), (1.0, "done")):
            progress(share, label)
    assert text.getvalue().splitlines() == ["  0 % a", " 50 % b", " 50 % c", "100 % done"]


def test_help_has_the_commands_in_groups() -> None:
    said = called("--help")[1]
    places = [said.index(f" {group} ") for group in GROUPS]
    assert places == sorted(places)
    group = get_command(app)
    panels = [each.rich_help_panel for each in group.commands.values()]  # type: ignore[attr-defined]
    assert set(panels) == set(GROUPS) and len(GROUPS) == 4
    assert sum(panel != GROUPS[-1] for panel in panels) == 10, "what is asked for first"


@pytest.mark.parametrize(
    ("begun", "offered"),
    [
        ("ru", "run"),
        ("run -t lio", "lion"),
        ("run -t sam+lio", "sam+lion"),
        ("run --size mi", "micro"),
        ("run --recipe cl", "classic"),
        ("study lin", "linear_scaling_warmup"),
        ("claims lion.", "lion.state_bytes"),
        ("leaderboard --format mo", "model-index"),
    ],
)
def test_a_shell_is_offered_the_names(begun: str, offered: str) -> None:
    environment = {
        "_LEANTRAIN_COMPLETE": "complete_bash",
        "COMP_WORDS": f"leantrain {begun}",
        "COMP_CWORD": str(len(begun.split())),
    }
    done = CliRunner().invoke(app, [], env=environment, prog_name="leantrain")
    assert offered in done.stdout.split(), done.output


def test_a_techniques_card_ends_with_what_its_studies_found(tmp_path: Path) -> None:
    found = [("modelled", 1.5857), ("measured", None)]
    table = StudyTable("numbers", ("kind", "speedup"), found, "not one over the other")
    path = write_study(study(technique="sanger", baseline="bert", tables=[table]), tmp_path)
    assert path and path.suffix == ".json"
    path.with_suffix(".svg").write_text("<svg/>")
    write_study(study(technique="dota", baseline="bert", tables=[StudyTable("other", ("x",), [(1,)])]), tmp_path)
    code, text, _ = called("list", "sanger", "--results", tmp_path)
    assert code == 0 and "numbers: not one over the other" in text
    assert text.index("Properties of this") < text.index("modelled\t1.586") < text.index("measured\tn/a")
    assert text.count("Study bert nano (modern)") == 1 and "\nother" not in text
    (tmp_path / "none").mkdir()
    assert "softmax(S over M) V" in text and f"plot: {path.with_suffix('.svg')}" in text
    assert "Study" not in called("list", "sanger", "--results", tmp_path / "none")[1]
