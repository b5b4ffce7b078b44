"""Commands that load techniques and users' models themselves: what crashes or hangs there does not end the command."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from suite.cli import apart
from suite.process.watched import beat
from tests import plugin

FORK = multiprocessing.get_context("fork")


def ended(work: Callable[[], object], *arguments: str, silence_s: float = 30.0) -> int | None:
    """The exit code of a command that does this."""
    process = FORK.Process(target=lambda: apart.supervised(arguments or ("count",), work, silence_s))
    process.start()
    process.join(60)
    assert process.exitcode is not None, "it goes on"
    return process.exitcode


def test_the_exit_code_of_the_work_is_that_of_the_command() -> None:
    assert [ended(lambda code=code: os._exit(code)) for code in (0, 1, 4)] == [0, 1, 4]


def test_a_crash_and_a_silence_are_told_with_what_was_done_last(capfd: pytest.CaptureFixture[str]) -> None:
    def crashes() -> None:
        beat("lion on gpt\x1b[2J")
        signal.raise_signal(signal.SIGKILL)

    assert ended(crashes) == apart.RUN_FAILED
    assert "its process died of SIGKILL after 'lion on gpt\\\\x1b[2J': a technique or a model" in capfd.readouterr().err
    assert ended(lambda: time.sleep(3600), silence_s=0.3) == apart.RUN_FAILED
    assert "no sign of life for 0.3 s: a technique or a model hangs" in capfd.readouterr().err


def test_a_check_of_the_kernels_is_watched_as_their_own_command_is(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(apart.SILENCE_S, "kernels", 0.3)
    assert ended(lambda: time.sleep(3600), "check", "--kernels", silence_s=0) == apart.RUN_FAILED
    assert "no sign of life for 0.3 s" in capfd.readouterr().err


def test_whoever_reports_may_take_longer_than_the_silence() -> None:
    def reports() -> None:
        for _ in range(6):
            time.sleep(0.1)
            beat("on")
        os._exit(0)

    assert ended(reports, silence_s=0.4) == 0


def test_a_command_that_is_ended_ends_its_work(tmp_path: Path) -> None:
    mark = tmp_path / "mark"

    def waits() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        mark.write_text(str(os.getpid()))
        time.sleep(3600)

    process = FORK.Process(target=lambda: apart.supervised(("count",), waits, 60.0))
    process.start()
    while not (mark.exists() and mark.read_text()):
        time.sleep(0.02)
    os.kill(process.pid or 0, signal.SIGTERM)
    process.join(60)
    assert process.exitcode == apart.RUN_FAILED
    with pytest.raises(ProcessLookupError):
        os.kill(int(mark.read_text()), 0)


@pytest.mark.parametrize("command", [("list", "dies"), ("claims", "dies", "--exact"), ("leaderboard", "-t", "dies")])
def test_a_technique_that_dies_as_it_is_loaded_is_a_sentence(command: tuple[str, ...], tmp_path: Path) -> None:
    plugin.write(tmp_path, {"dies": "signal.raise_signal(signal.SIGSEGV)"})
    card = tmp_path / "planted_faults" / "planted" / "dies" / "card.toml"
    card.write_text(card.read_text() + CLAIM)
    done = plugin.leantrain(tmp_path, *command, "--json")
    assert done.returncode == 5 and "Traceback" not in done.stderr
    assert "died of SIGSEGV" in json.loads(done.stdout)["error"]


def test_a_technique_that_dies_as_it_is_counted_is_a_row_and_the_others_are_counted(tmp_path: Path) -> None:
    plugin.write(
        tmp_path,
        {
            "dies_loaded": "signal.raise_signal(signal.SIGSEGV)",
            "dies_counted": "def model(self, model, run):\n    os._exit(3)",
        },
    )
    stacks = [option for name in ("dies_loaded", "dies_counted", "lion") for option in ("-t", name)]
    done = plugin.leantrain(tmp_path, "count", *stacks, "-b", "gpt", "--size", "pico", "--json")
    assert done.returncode == 5 and "Traceback" not in done.stderr
    rows = {each["stack"]["stack"]: each for each in json.loads(done.stdout)}
    assert rows["dies_loaded"]["stack"]["reason"] == "crashed: died of SIGSEGV"
    assert rows["dies_counted"]["stack"]["reason"] == "crashed: the process ended with exit code 3"
    assert rows["lion"]["ratios"]["optimizer_state_bytes"] == 0.5
    assert rows["dies_counted"]["reference"] == rows["lion"]["reference"] and rows["lion"]["reference"]["reason"] == ""


def test_a_technique_that_dies_as_its_ranks_are_asked_for_is_a_row_and_the_others_are_counted(tmp_path: Path) -> None:
    plugin.write(tmp_path, {"dies": "signal.raise_signal(signal.SIGSEGV)"})
    stacks = ("-t", "dies", "-t", "dp_ddp")
    done = plugin.leantrain(tmp_path, "count", *stacks, "-b", "gpt", "--size", "pico", "--ranks", 4, "--json")
    assert done.returncode == 5 and "Traceback" not in done.stderr
    first, second = json.loads(done.stdout)
    assert first["stack"]["reason"] == "crashed: died of SIGSEGV" and first["reference"] is None
    assert second["stack"]["stack"] == "dp_ddp:ranks=4" and second["stack"]["ranks"] == 4


@pytest.mark.parametrize("command", [("list",), ("list", "lion")])
def test_a_reader_that_leaves_ends_nothing(command: tuple[str, ...]) -> None:
    process = subprocess.Popen(plugin.command(*command), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout and process.stderr
    process.stdout.close()
    assert (process.stderr.read(), process.wait(60)) == (b"", 0)


CLAIM = """
[[claim]]
id = "state"
statement = "None."
read = "Section 1"
metric = "optimizer_state_bytes"
kind = "counted"
relation = "<="
expected = 1.0
scope = "step"
"""
