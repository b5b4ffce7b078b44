"""A contender: one training run in its own process (or process group), driven from outside.

::

    parent                         child (one a rank, forked from a server that has the libraries loaded)
      start()     ──────────────►    a process
      prepare()   ──────────────►    caches data and checkpoint; off the clock
      set_up()    ──────────────►    builds the Run; its seconds are the set-up cost
      block(n)    ──────────────►    n training steps; replies seconds and losses
      evaluate()  ──────────────►    loss and metrics on held-out examples; off the clock
      count()     ──────────────►    one training step under the exact counters
      save(path)  load(path)  ──►    the training state, a file for each rank
      probes()    ──────────────►    the technique's own measurements, or what recorded steps show
      usage()     ──────────────►    peaks of memory, and the energy of a window of steps
      close()

A child that raises, dies, hangs or outlives its limit turns into :class:`ContenderFailed` in the parent, and nothing
else: the other contenders go on.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType
from typing import Any, Literal
from weakref import WeakSet

import torch

from suite.contract.baseline import baseline_of
from suite.contract.catalogue import UnknownId
from suite.contract.data import HeldOut
from suite.contract.run import Diverged
from suite.contract.sites import NotAttached
from suite.contract.stack import build
from suite.contract.technique import Unavailable
from suite.record.job import Job, StackError
from suite.record.schema import Counters, Energy, Evaluation, Memory, Status

PRELOADED = ["suite.measure.worker", "suite.measure.contender"]
STARTING = threading.Lock()
LIVE: WeakSet[Contender] = WeakSet()


class ContenderFailed(RuntimeError):
    """How a contender ended, in the words of a record."""

    def __init__(self, status: Status, reason: str, details: str = "") -> None:
        super().__init__(reason)
        self.status, self.reason, self.details = status, reason, details


@dataclass(frozen=True)
class Limits:
    """``train_s`` bounds a contender's time on its clock in all, ``reply_s`` each single reply."""

    train_s: float = 3600.0
    reply_s: float = 600.0


@dataclass(frozen=True)
class SetUp:
    """What a contender says when its run is built."""

    setup_s: float
    steps: int
    recipe: dict[str, Any]


@dataclass(frozen=True)
class Block:
    """Some training steps: their seconds, processor seconds of all threads and ranks, losses (the mean over ranks)."""

    seconds: float
    cpu_s: float
    losses: list[float]


def world_size(job: Job) -> int:
    """Ranks that the stack's recipe asks for. Also where a stack that cannot be built raises, in the parent."""
    return build(job.stack).recipe(baseline_of(job.setting).recipe_of(job.setting)).world_size


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
    """Start processes without re-importing ``__main__``.

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
    """The parent's handle on one job. Commands raise ContenderFailed. Use as a context manager: starts and closes it.

    Raises UnknownId or StackError for a job that cannot be built.
    """

    def __init__(self, job: Job, limits: Limits = Limits()) -> None:
        self.job, self.limits = job, limits
        self.spent_s = 0.0
        self.ready: SetUp | None = None
        self._ranks: list[tuple[BaseProcess, Connection]] = []
        self._rendezvous = ""
        try:
            self.world_size = world_size(job)
        except (UnknownId, StackError):
            raise
        except Exception as error:  # the technique's recipe method runs in this process, and its failure is its row
            raise ContenderFailed(*failure(error)) from error

    def __enter__(self) -> Contender:
        return self.start()

    def __exit__(self, *exception: object) -> None:
        self.close()

    # commands -------------------------------------------------------------------------------------------------------

    def start(self) -> Contender:
        """Starts the processes, one a rank."""
        LIVE.add(self)
        context = server()
        self._rendezvous = tempfile.mkdtemp(prefix="leantrain-") if self.world_size > 1 else ""
        setting = self.job.setting
        threads = max(1, setting.threads // self.world_size)
        job = self.job.model_copy(update={"setting": setting.but(threads=threads)})
        for rank in range(self.world_size):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_child, args=(job, theirs, rank, self.world_size, self._rendezvous), daemon=True
            )
            with without_main():
                process.start()
            theirs.close()
            self._ranks.append((process, ours))
        return self

    def prepare(self) -> None:
        """Fills the caches that the run needs. May take minutes the first time; off the clock."""
        self._call("prepare", reply_s=max(self.limits.reply_s, 3600.0))

    def set_up(self, *, recorded: bool = False) -> SetUp:
        """Builds the run; with ``recorded`` one of few examples, whose steps are recorded for the probes."""
        self.ready = SetUp(**self._call("set_up", recorded, left_s=self.limits.train_s - self.spent_s)[0])
        self._charge(self.ready.setup_s)
        return self.ready

    def block(self, steps: int) -> Block:
        """``steps`` training steps."""
        ranks = self._call("block", steps, left_s=self.limits.train_s - self.spent_s)
        losses = [sum(each) / len(ranks) for each in zip(*(rank["losses"] for rank in ranks), strict=True)]
        reply = Block(ranks[0]["seconds"], sum(rank["cpu_s"] for rank in ranks), losses)
        self._charge(reply.seconds)
        return reply

    def evaluate(self, part: HeldOut, step: int) -> Evaluation:
        """Loss and further metrics on held-out examples; the evaluation says that it was after ``step`` steps."""
        scores = self._call("evaluate", part)[0]
        return Evaluation(step=step, loss=scores.pop("loss"), metrics=scores)

    def count(self) -> Counters:
        """The exact counts of one training step, which is made."""
        counters: Counters = self._call("count")[0]
        return counters

    def probes(self) -> dict[str, float]:
        """The technique's own measurements, for its claims; of a recorded run what its steps show."""
        probes: dict[str, float] = self._call("probes")[0]
        return probes

    def save(self, path: Path) -> None:
        """Writes the training state, a file for each rank."""
        self._call("save", path)

    def load(self, path: Path) -> None:
        """Goes on from a state that :meth:`save` wrote."""
        self._call("load", path)

    def usage(self, energy_window_s: float = 0.0) -> tuple[Memory, Energy]:
        """The peaks of memory so far, and the energy of a window of steps where there is a counter."""
        usage: tuple[Memory, Energy] = self._call(
            "usage", energy_window_s, reply_s=self.limits.reply_s + energy_window_s
        )[0]
        return usage

    def kill(self) -> None:
        """Ends the processes; whoever waits for them gets ContenderFailed."""
        for process, _ in list(self._ranks):
            process.kill()

    def close(self) -> None:
        """Ends the processes, whatever they are doing."""
        for process, connection in self._ranks:
            connection.close()
            if process.is_alive():
                process.kill()
        for process, _ in self._ranks:
            process.join()
        self._ranks = []
        if self._rendezvous:
            shutil.rmtree(self._rendezvous, ignore_errors=True)
            self._rendezvous = ""

    # the channel ----------------------------------------------------------------------------------------------------

    def _charge(self, seconds: float) -> None:
        self.spent_s += seconds
        if self.spent_s > self.limits.train_s:
            raise self._timeout()

    def _timeout(self) -> ContenderFailed:
        return ContenderFailed("timeout", f"more than the time limit of {self.limits.train_s:g} s")

    def _call(self, command: str, *arguments: Any, reply_s: float | None = None, left_s: float = math.inf) -> list[Any]:
        """The reply of every rank."""
        reply_s = reply_s or self.limits.reply_s
        try:
            for _, connection in self._ranks:
                connection.send((command, arguments))
        except (BrokenPipeError, ConnectionResetError):
            raise self._death() from None
        deadline = time.monotonic() + min(reply_s, left_s)
        replies: dict[Connection, Any] = {}
        open_ends = [connection for _, connection in self._ranks]
        while len(replies) < len(open_ends):
            ready = wait([c for c in open_ends if c not in replies], timeout=deadline - time.monotonic())
            if not ready:
                if left_s < reply_s:
                    raise self._timeout()
                raise ContenderFailed("hung", f"no answer to {command!r} within {reply_s:g} s")
            for connection in (each for each in open_ends if each in ready):
                try:
                    kind, value = connection.recv()
                except (EOFError, ConnectionResetError):
                    raise self._death() from None
                if kind == "failed":
                    raise ContenderFailed(*value)
                replies[connection] = value
        return [replies[connection] for connection in open_ends]

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


def end_all() -> None:
    """Ends the processes of all contenders; whoever waits for one gets ContenderFailed."""
    for contender in list(LIVE):
        contender.kill()


def _child(job: Job, connection: Connection, rank: int, world_size: int, rendezvous: str) -> None:
    from suite.measure.worker import Session

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        session = Session(job, rank, world_size, rendezvous)
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
    elif isinstance(error, NotAttached):
        status = "not_attached"
    elif isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "can't allocate memory" in str(error):
        status = "out_of_memory"
    plain = status in ("diverged", "unavailable", "not_attached")
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
