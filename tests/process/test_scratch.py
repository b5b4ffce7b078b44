"""A process's own temporary folder goes with it, or with the next process."""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from suite.process import scratch as module
from suite.process.scratch import LOCK, LONGEST, PREFIX, scratch

FORK = multiprocessing.get_context("fork")


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Any:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # pytest's own is too long for a socket
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


def ends(target: Callable[[], None]) -> int | None:
    process = FORK.Process(target=target)
    process.start()
    process.join()
    return process.exitcode


def test_a_folder_goes_with_its_process(place: Path) -> None:
    def seen() -> None:
        assert scratch() == scratch()
        assert scratch().parent == place and (scratch() / LOCK).is_file()
        (scratch() / "more").mkdir()

    assert ends(seen) == 0
    assert not list(place.iterdir())


def test_what_a_killed_process_left_goes_with_the_next_and_what_lives_stays(place: Path) -> None:
    def is_killed() -> None:
        (scratch() / "more").mkdir()
        os.kill(os.getpid(), signal.SIGKILL)

    def looks() -> None:
        assert scratch() in place.iterdir()
        before = set(place.iterdir())

        def beside() -> None:
            assert scratch() not in before and before < set(place.iterdir())

        assert ends(beside) == 0

    assert ends(is_killed) == -signal.SIGKILL
    (left,) = place.iterdir()
    (place / f"{PREFIX}of-another-kind").mkdir()
    assert ends(looks) == 0
    assert {each.name for each in place.iterdir()} == {f"{PREFIX}of-another-kind"} and not left.exists()


def test_where_a_path_is_too_long_for_a_socket_is_no_place(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = place / ("x" * 110)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    assert ends(lambda: os._exit(len(os.fsencode(scratch().parent)) > LONGEST)) == 0
    monkeypatch.setattr(module, "_places", lambda: [deep])
    with pytest.raises(OSError, match="set TMPDIR to one of at most 50 characters"):
        module._new_folder()


@pytest.mark.parametrize("error", [OSError("no locks"), NotImplementedError("no flock")])
def test_nothing_stays_where_there_are_no_locks(error: Exception, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise error

    monkeypatch.setattr(module, "_places", lambda: [place])
    (place / f"{PREFIX}left").mkdir()
    (place / f"{PREFIX}left" / LOCK).touch()
    monkeypatch.setattr(module.FileLock, "_acquire", refused)
    module.prune()
    with pytest.raises(OSError, match="that has locks"):
        module._new_folder()
    assert [each.name for each in place.iterdir()] == [f"{PREFIX}left"]
