"""The ledger: tries are numbered and survive what kills them; an edited file decides nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suite.guard.ledger import EndedTry, Ledger, LedgerError
from suite.judge.many_tries import level_of


def filled(path: Path) -> Ledger:
    ledger = Ledger(path)
    for decision in ("discard", "keep", "undecided"):
        begun = ledger.begin(against="main")
        ledger.end(EndedTry(begun.number, decision, 3.0, "votes"))
    return ledger


def test_a_try_is_numbered_and_what_was_kept_raises_its_level(tmp_path: Path) -> None:
    begun = filled(tmp_path / "tries.jsonl").begin(against="main")
    assert (begun.number, begun.kept, begun.level) == (4, 1, level_of(4, 1))
    assert Ledger(tmp_path / "tries.jsonl").begin(against="main").number == 5  # the fourth never ended, and counts


@given(at=st.integers(0, 2000), put=st.integers(0, 255))
@settings(max_examples=60, deadline=None)
def test_no_byte_can_be_changed_unseen(at: int, put: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("ledger") / "tries.jsonl"
    ledger = filled(path)
    before = path.read_bytes()
    at %= before.rfind(b"\n", 0, -1)  # in the last line a changed byte is no other's either, but its end may be cut
    if before[at] == put:
        return
    path.write_bytes(before[:at] + bytes([put]) + before[at + 1 :])
    with pytest.raises(LedgerError, match="edited"):
        ledger.begin(against="main")


def test_a_line_that_was_taken_out_is_missed(tmp_path: Path) -> None:
    ledger = filled(tmp_path / "tries.jsonl")
    lines = ledger.path.read_bytes().splitlines(keepends=True)
    ledger.path.write_bytes(b"".join([*lines[:3], *lines[5:]]))
    with pytest.raises(LedgerError, match=r"tries\.jsonl:4: the line was edited, or one before it was taken out"):
        ledger.read()


def test_what_a_crash_cut_off_is_written_over(tmp_path: Path) -> None:
    ledger = filled(tmp_path / "tries.jsonl")
    with ledger.path.open("ab") as file:
        file.write(b'{"after":"12')
    assert ledger.begin(against="main").number == 4 and len(ledger.read()) == 7


def test_a_process_that_is_killed_leaves_a_try_and_no_lock(tmp_path: Path) -> None:
    path = tmp_path / "tries.jsonl"
    code = (
        "import os, signal; from pathlib import Path; from suite.guard.ledger import Ledger\n"
        f"Ledger(Path({str(path)!r})).begin(against='main'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    assert Ledger(path).begin(against="main").number == 2


def test_processes_at_once_get_numbers_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "tries.jsonl"
    code = f"from pathlib import Path; from suite.guard.ledger import Ledger\nledger = Ledger(Path({str(path)!r}))\n"
    code += "for _ in range(5): ledger.begin(against='main')"
    running = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(3)]
    assert [each.wait() for each in running] == [0, 0, 0]
    assert [line["number"] for line in Ledger(path).read()] == [*range(1, 16)]


def test_a_try_ends_once_and_a_ledger_has_one_rate(tmp_path: Path) -> None:
    ledger = filled(tmp_path / "tries.jsonl")
    with pytest.raises(LedgerError, match="try 2 did not begin, or has ended"):
        ledger.end(EndedTry(2, "keep", 9.0, "again"))
    with pytest.raises(LedgerError, match=r"share of 0\.05 false keeps, not 0\.2"):
        Ledger(ledger.path, 0.2).begin(against="main")
