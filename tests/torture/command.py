"""The real command line with plug-ins, in a place of its own, and what it leaves there."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from suite.measure.learning import cores
from suite.process.processes import living
from tests import plugin

SHORT = ("-b", "gpt", "--size", "pico", "--steps", 6, "--seeds", 2, "--no-time", "--hang-limit", 120)
LIMIT_S = 1800.0
GONE_S = 60.0  # what was killed has that long to be gone: a loaded machine is slow
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Place:
    """A folder with plug-ins, results and temporary files of its own; ``mark`` is in every process's environment."""

    def __init__(self, folder: Path, bodies: Mapping[str, str]) -> None:
        self.folder, self.temporary = folder, folder / "tmp"
        self.temporary.mkdir(parents=True, exist_ok=True)
        plugin.write(folder, bodies)
        self.environment = plugin.environment(folder, TMPDIR=str(self.temporary), LEANTRAIN_PLACE=str(folder))
        self.results = folder / "results"

    def start(self, *arguments: object, **extra: str) -> subprocess.Popen[bytes]:
        """The command over the results here."""
        return self.begin(*arguments, "--results", self.results, **extra)

    def begin(self, *arguments: object, **extra: str) -> subprocess.Popen[bytes]:
        """The command, as the leader of a group of its own that no shell told to ignore signals."""

        def fresh() -> None:
            for each in ENDING:
                signal.signal(each, signal.SIG_DFL)

        return subprocess.Popen(
            plugin.command(*arguments),
            cwd=self.folder,
            env=self.environment | extra,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
            preexec_fn=fresh,
        )

    def processes(self) -> list[int]:
        """Those that live and were started here, in whatever session."""
        mark = f"LEANTRAIN_PLACE={self.folder}\0".encode()
        return [each for each in living() if mark in _environment_of(each)]

    def left(self) -> str:
        """What is left although the command has ended, in words; empty where nothing is."""
        end_s = time.monotonic() + GONE_S
        while (processes := self.processes()) and time.monotonic() < end_s:
            time.sleep(0.1)
        for each in processes:
            os.kill(each, signal.SIGKILL)
        if (shared := Path("/dev/shm", f"leantrain-{self.folder.name}")).exists():
            shared.unlink()
            return "shared memory left"
        return f"{len(processes)} processes left" if processes else ""

    def folders(self) -> int:
        """Temporary folders that are there."""
        return len(list(self.temporary.glob("*leantrain-*"))) + len(list(self.temporary.glob("pymp-*")))

    def ids(self) -> set[str]:
        """Of all records. Raises AssertionError for a line that cannot be read."""
        return {each.id for each in plugin.records(self.results).lines}


@contextmanager
def place(bodies: Mapping[str, str]) -> Iterator[Place]:
    """A place for one trial, removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as folder:
        yield Place(Path(folder), bodies)


@contextmanager
def at_once() -> Iterator[ThreadPoolExecutor]:
    """As many trials side by side as there are cores."""
    with ThreadPoolExecutor(cores()) as pool:
        yield pool


def _environment_of(process: int) -> bytes:
    try:
        return Path(f"/proc/{process}/environ").read_bytes() + b"\0"
    except OSError:
        return b""
