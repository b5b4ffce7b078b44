"""A contender: one training run in its own process (or process group), driven in lock-step from outside.

::

    parent                         child (one a rank, forked from a server that has the libraries loaded)
      start()    ───────────────►    a process
      prepare()  ───────────────►    caches data and checkpoint; off the clock
      set_up()   ───────────────►    builds the Run; its seconds are the set-up cost
      block(n)   ───────────────►    n training steps; replies seconds and losses
      evaluate() ───────────────►    test loss; off the clock
      finish()   ───────────────►    one extra step under the exact counters, energy window, probes
      close()

A child that raises, dies, hangs or outlives its limit turns into :class:`ContenderFailed` in the parent, and nothing
else: the other contenders go on. What the replies say is collected, and :meth:`Contender.outcome` is what a record
holds of it.
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
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import torch

from suite.contract.run import Diverged
from suite.contract.technique import Unavailable
from suite.record.job import Job
from suite.record.schema import EqualTime, Evaluation, Outcome, Status

PRELOADED = ["suite.measure.worker", "suite.measure.contender"]
STARTING = threading.Lock()


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
    data: str
    data_sha256: str


@dataclass(frozen=True)
class TimedBlock:
    """Some training steps: their seconds, processor seconds of all threads, and losses (the mean over ranks)."""

    seconds: float
    cpu_s: float
    losses: list[float]


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
    """The parent's handle on one job. Commands raise ContenderFailed; :meth:`attempt` keeps the failure instead."""

    def __init__(
        self,
        job: Job,
        *,
        world_size: int = 1,
        limits: Limits = Limits(),
        sources: dict[str, str] | None = None,
    ) -> None:
        self.job, self.world_size, self.limits = job, world_size, limits
        self.spent_s = 0.0
        self.failure: ContenderFailed | None = None
        self.ready: SetUp | None = None
        self._known: dict[str, Any] = {"stack": job.stack, "sources": sources or {}}
        self._ranks: list[tuple[BaseProcess, Connection]] = []
        self._rendezvous = ""

    # commands -------------------------------------------------------------------------------------------------------

    def start(self) -> Contender:
        """Starts the processes, one a rank."""
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

    def set_up(self) -> SetUp:
        """Builds the run."""
        self.ready = SetUp(**self._call("set_up", left_s=self.limits.train_s - self.spent_s))
        self._charge(self.ready.setup_s)
        self._known |= {
            "setup_s": self.ready.setup_s, "steps": self.ready.steps, "recipe": self.ready.recipe,
            "block_s": [], "block_steps": [], "train_loss": [], "curve": [], "cpu_s": 0.0,
        }  # fmt: skip
        return self.ready

    def block(self, steps: int) -> TimedBlock:
        """``steps`` training steps."""
        reply = TimedBlock(**self._call("block", steps, left_s=self.limits.train_s - self.spent_s))
        self._charge(reply.seconds)
        self._known["train_loss"] += [float(f"{loss:.6g}") for loss in reply.losses]
        self._known["cpu_s"] += reply.cpu_s
        return reply

    def evaluate(self) -> Evaluation:
        """Test loss and further metrics, after the steps that were made."""
        scores = self._call("evaluate")
        reply = Evaluation(step=len(self._known["train_loss"]), loss=scores.pop("loss"), metrics=scores)
        self._known["curve"].append(reply)
        return reply

    def finish(self, energy_window_s: float = 0.0) -> Outcome:
        """Takes exact counters of one extra step, process memory, energy and probes."""
        self._known |= self._call("finish", energy_window_s, reply_s=self.limits.reply_s + energy_window_s)
        return self.outcome()

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
            for path in Path(self._rendezvous).iterdir():
                path.unlink(missing_ok=True)
            os.rmdir(self._rendezvous)
            self._rendezvous = ""

    # what is known --------------------------------------------------------------------------------------------------

    @property
    def alive(self) -> bool:
        """Whether it is started, and has neither failed nor been closed."""
        return bool(self._ranks) and self.failure is None

    def attempt(self, command: Callable[..., Any], *arguments: Any) -> Any:
        """``command(self, *arguments)`` if it is alive; a failure ends this contender alone, and gives None."""
        if not self.alive:
            return None
        try:
            return command(self, *arguments)
        except ContenderFailed as failure:
            self.fail(failure)
            return None

    def fail(self, failure: ContenderFailed) -> None:
        """Ends it with that status."""
        self.failure = failure
        self.close()

    def timed_round(self, block_s: tuple[float, float], block_steps: tuple[int, int]) -> None:
        """Notes the seconds and steps of its two blocks of a round."""
        self._known["block_s"].append((round(block_s[0], 7), round(block_s[1], 7)))
        self._known["block_steps"].append(block_steps)

    def at_equal_time(self, other: EqualTime) -> None:
        """Notes how a second run ended whose schedule fits the reference's budget."""
        self._known["equal_time"] = other

    def outcome(self) -> Outcome:
        """What is known so far."""
        ended = self.failure
        status = {"status": ended.status, "reason": ended.reason, "details": ended.details} if ended else {}
        return Outcome(**self._known | status)

    # the channel ----------------------------------------------------------------------------------------------------

    def _charge(self, seconds: float) -> None:
        self.spent_s += seconds
        if self.spent_s > self.limits.train_s:
            raise self._timeout()

    def _timeout(self) -> ContenderFailed:
        return ContenderFailed("timeout", f"more than the time limit of {self.limits.train_s:g} s")

    def _call(self, command: str, *arguments: Any, reply_s: float | None = None, left_s: float = math.inf) -> Any:
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
