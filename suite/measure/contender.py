"""A contender: one training run in its own process (or process group), driven in lock-step from outside.

::

    parent                         child (one a rank, forked from a server that has the libraries loaded)
      prepare()  ───────────────►    caches data and checkpoint; off the clock
      set_up()   ───────────────►    builds the Run; its seconds are the set-up cost
      block(n)   ───────────────►    n training steps; replies seconds and losses
      evaluate() ───────────────►    test loss; off the clock
      finish()   ───────────────►    one extra step under the exact counters, energy window, probes
      close()

A child that raises, dies, hangs or outlives its limit turns into :class:`ContenderFailed` in the parent, and nothing
else: the other contenders go on.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import torch

from suite.contract.baseline import RecipeName, Size, Task
from suite.contract.run import Diverged
from suite.contract.technique import Unavailable
from suite.record.schema import Status

PRELOADED = ["suite.measure.worker"]
STARTING = threading.Lock()


@dataclass(frozen=True)
class RunSpec:
    """All that decides a training run, as plain values."""

    baseline: str
    stack: str
    size: Size = "nano"
    recipe: RecipeName = "modern"
    task: Task = "pretrain"
    seed: int = 0
    steps: int | None = None
    data: str | None = None
    model: str | None = None
    device: str = "cpu"
    threads: int = 1


class ContenderFailed(RuntimeError):
    """How a contender ended, in the words of a record."""

    def __init__(self, status: Status, reason: str, details: str = "") -> None:
        super().__init__(reason)
        self.status, self.reason, self.details = status, reason, details


def server() -> multiprocessing.context.ForkServerContext:
    """The fork server that has torch and the models' libraries loaded: a contender starts in milliseconds."""
    # Threads that wait at OpenMP's barriers must sleep: where a neighbour takes a core, spinning made steps 4 to 14
    # times slower (measured on two shared cores). It counts only before the library is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


@contextmanager
def without_main() -> Iterator[None]:
    """What starts in here does not import the caller's main module, as multiprocessing has every new process do.

    A contender needs nothing of it, and it may be a script without a guard, or not even a file (standard input).
    """
    with STARTING:
        main = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")
        try:
            yield
        finally:
            sys.modules["__main__"] = main


class Contender:
    """The parent's handle on one run. ``limit_s`` bounds the time on its clock in all, ``hang_s`` each single reply.

    Every method raises ContenderFailed.
    """

    def __init__(self, spec: RunSpec, *, world_size: int = 1, limit_s: float = 3600.0, hang_s: float = 600.0) -> None:
        self.spec, self.world_size, self.limit_s, self.hang_s = spec, world_size, limit_s, hang_s
        self.spent_s = 0.0
        context = server()
        self._rendezvous = tempfile.mkdtemp(prefix="leantrain-") if world_size > 1 else ""
        self._ranks: list[tuple[BaseProcess, Connection]] = []
        threads = max(1, spec.threads // world_size)
        for rank in range(world_size):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_child,
                args=(replace(spec, threads=threads), theirs, rank, world_size, self._rendezvous),
                daemon=True,
            )
            with without_main():
                process.start()
            theirs.close()
            self._ranks.append((process, ours))

    def prepare(self) -> None:
        """Fills the caches that the run needs. May take minutes the first time; off the clock."""
        self._call("prepare", hang_s=max(self.hang_s, 3600.0))

    def set_up(self) -> dict[str, Any]:
        """Builds the run; ``{"setup_s", "steps", "recipe", "data", "data_sha256"}``."""
        reply = self._call("set_up", left_s=self.limit_s - self.spent_s)
        self._charge(reply["setup_s"])
        return reply

    def block(self, steps: int) -> dict[str, Any]:
        """``steps`` training steps; ``{"seconds", "cpu_s", "losses"}`` of rank 0 (losses: mean over ranks)."""
        reply = self._call("block", steps, left_s=self.limit_s - self.spent_s)
        self._charge(reply["seconds"])
        return reply

    def evaluate(self) -> dict[str, float]:
        return self._call("evaluate")

    def finish(self, energy_window_s: float = 0.0) -> dict[str, Any]:
        """Exact counters of one extra step, process memory, energy, probes."""
        return self._call("finish", energy_window_s, hang_s=self.hang_s + energy_window_s)

    def close(self) -> None:
        """Ends the processes, whatever they are doing."""
        for process, connection in self._ranks:
            connection.close()
            if process.is_alive():
                process.kill()
        for process, _ in self._ranks:
            process.join()
        if self._rendezvous:
            for path in Path(self._rendezvous).iterdir():
                path.unlink(missing_ok=True)
            os.rmdir(self._rendezvous)

    def _charge(self, seconds: float) -> None:
        self.spent_s += seconds
        if self.spent_s > self.limit_s:
            raise self._timeout()

    def _timeout(self) -> ContenderFailed:
        return ContenderFailed("timeout", f"more than the time limit of {self.limit_s:g} s")

    def _call(self, command: str, *arguments: Any, hang_s: float | None = None, left_s: float = math.inf) -> Any:
        hang_s = hang_s or self.hang_s
        try:
            for _, connection in self._ranks:
                connection.send((command, arguments))
        except (BrokenPipeError, ConnectionResetError):
            raise self._death() from None
        deadline = time.monotonic() + min(hang_s, left_s)
        replies: dict[Connection, Any] = {}
        open_ends = [connection for _, connection in self._ranks]
        while len(replies) < len(open_ends):
            ready = wait([c for c in open_ends if c not in replies], timeout=deadline - time.monotonic())
            if not ready:
                if left_s < hang_s:
                    raise self._timeout()
                raise ContenderFailed("hung", f"no answer to {command!r} within {hang_s:g} s")
            for connection in (each for each in open_ends if each in ready):
                try:
                    kind, value = connection.recv()
                except (EOFError, ConnectionResetError):
                    raise self._death() from None
                if kind == "failed":
                    raise ContenderFailed(*value)
                replies[connection] = value
        first, *others = (replies[connection] for connection in open_ends)
        if others and command == "block":
            ranks = [first, *others]
            first["losses"] = [sum(each) / len(ranks) for each in zip(*(rank["losses"] for rank in ranks), strict=True)]
        return first

    def _death(self) -> ContenderFailed:
        for process, _ in self._ranks:
            process.join(timeout=2.0)
        codes = [process.exitcode for process, _ in self._ranks if process.exitcode is not None]
        code = next(filter(None, codes), 0 if codes else None)
        if code == -signal.SIGKILL:
            return ContenderFailed("out_of_memory", "killed by the system (SIGKILL), as it does when memory runs out")
        if code is not None and code < 0:
            return ContenderFailed("crashed", f"died of {signal.Signals(-code).name}")
        return ContenderFailed("crashed", f"the process ended with exit code {code}")


def _child(spec: RunSpec, connection: Connection, rank: int, world_size: int, rendezvous: str) -> None:
    from suite.measure.worker import Session

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        session = Session(spec, rank, world_size, rendezvous)
    except Exception as error:
        connection.send(("failed", failure(error)))
        return
    while True:
        try:
            command, arguments = connection.recv()
        except (EOFError, OSError):
            os._exit(0)  # the parent is gone or done with us
        try:
            method: Callable[..., Any] = getattr(session, command)
            reply: tuple[Literal["done", "failed"], Any] = ("done", method(*arguments))
        except Exception as error:
            reply = ("failed", failure(error))
        try:
            connection.send(reply)
        except OSError:
            os._exit(0)


def _end_with_parent() -> None:
    """Ends this process when the parent dies, however it dies and whatever the main thread is doing."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(0)


def failure(error: BaseException) -> tuple[Status, str, str]:
    """An exception as a record's status, reason and details."""
    status: Status = "failed"
    if isinstance(error, Diverged):
        status = "diverged"
    elif isinstance(error, Unavailable):
        status = "unavailable"
    elif isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "can't allocate memory" in str(error):
        status = "out_of_memory"
    plain = status in ("diverged", "unavailable")
    return status, str(error) if plain else first_line(error), "" if plain else trace(error)


def first_line(error: BaseException) -> str:
    """One line that says what went wrong, for a record's ``reason``."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


def trace(error: BaseException) -> str:
    """The end of the traceback, for a record's ``details``."""
    return "".join(traceback.format_exception(error))[-4000:]


if sys.platform == "win32":
    raise ImportError("leantrain's contenders need a fork server, which Windows does not have; use WSL")
