"""Runs a process of our own beside the command: how it starts, answers, and ends with all that it started.

Whatever of a technique's runs, runs in one. A child that raises, dies, hangs or says what cannot be kept turns into
:class:`ContenderFailed` in the parent, and nothing else.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, TypeVar, cast

import torch

from suite.loop.run import Diverged
from suite.loop.sites import NotAttached
from suite.loop.technique import Unavailable
from suite.measure.contenders import fork_servers
from suite.measure.contenders.fork_servers import STARTING, Server
from suite.measure.contenders.output import Output, printing_to
from suite.measure.contenders.processes import (
    end_session,
    end_strays,
    lead_session,
    living,
    oom_kills,
    parent_of,
    track_own_resources,
)
from suite.measure.contenders.replies import NoReply, Replies, bounded, getpid, plain, send
from suite.measure.rules.broken import RuleBroken
from suite.record.numerics import off_the_clock
from suite.record.schema import ENVIRONMENT, Status

CHILDREN: set[Child] = set()  # that were started and are not yet ended; changed while STARTING is held
LONGEST_REASON = 500
KILLED = "killed (SIGKILL)"
LOST_SERVER = 255  # what multiprocessing says of a child whose fork server is gone

T = TypeVar("T")


class ContenderFailed(RuntimeError):
    """Says how a contender ended, in the words of a record."""

    def __init__(self, status: Status, reason: str, details: str = "") -> None:
        super().__init__(reason)
        self.status, self.reason, self.details = status, reason, details

    def beside(self, printed: str) -> ContenderFailed:
        """Returns this failure, with the end of what the process printed among its details."""
        words = f"{self.details}\nit printed last:\n{printed}".strip() if printed else self.details
        return ContenderFailed(self.status, self.reason, words)


class BrokenEntry(RuntimeError):
    """Is raised for a technique's module that cannot be imported, or has another shape; the message names it and the
    mend."""


class Child:
    """Holds one process, and the channel to it. ``target(*arguments, channel)`` runs in it, forked by ``server``: by
    default that of what is off the clock. One that ``may_start`` processes of its own is to be ended before this one
    ends.

    Raises ContenderFailed where it cannot be started.
    """

    def __init__(
        self, target: Callable[..., None], *arguments: Any, server: Server | None = None, may_start: bool = False
    ) -> None:
        server = server or fork_servers.shared(off_the_clock())
        for attempt in range(2):  # a fork server that was killed is started anew for the next one
            ours, theirs = server.context.Pipe()
            printed, printing = server.context.Pipe(duplex=False)
            whole = (printing, target, (*arguments, theirs))
            self.process: BaseProcess = server.context.Process(target=printing_to, args=whole, daemon=not may_start)
            try:
                with server.starting():
                    self.process.start()
                    CHILDREN.add(self)
                break
            except (EOFError, OSError) as error:
                ours.close()
                printed.close()
                if attempt:
                    why = f"{first_line(error)}; was it killed while it loaded the libraries, for want of memory?"
                    raise ContenderFailed("crashed", f"the fork server died: {why}") from None
                time.sleep(0.5)  # until its end can be seen
            finally:
                theirs.close()
                printing.close()
        self.connection, self._forked_by = ours, server
        self.output = Output(printed)
        self.server = parent_of(self.pid)
        self._replies = Replies(ours, self.pid)

    @property
    def pid(self) -> int:
        return self.process.pid or 0

    @property
    def handles(self) -> list[Any]:
        """Returns what becomes ready when it speaks, or ends."""
        return [self.connection, self.process.sentinel]

    def ask(self, number: int, command: str, arguments: tuple[Any, ...]) -> None:
        """Raises EOFError where it is gone."""
        try:
            self.connection.send((number, command, arguments))
        except OSError:
            raise EOFError from None

    def reply(self, number: int) -> tuple[str, Any] | None:
        """Returns the kind and value of its reply, None while that is not there; EOFError where none will come. Does
        not wait."""
        while self.connection.poll(0):
            try:
                if reply := self._replies.next(number):
                    return reply
            except NoReply as error:
                raise ContenderFailed("failed", str(error)) from None
        if not self.process.is_alive():
            raise EOFError
        return None

    def kill(self) -> None:
        self.process.kill()

    def end(self) -> None:
        """Kills it and all that it started."""
        self.connection.close()
        self.process.kill()
        self._forked_by.see_end_of(self.process)
        end_session(self.pid)
        self.output.close()
        with STARTING:
            CHILDREN.discard(self)
            if self.server and self.server != os.getpid():
                end_strays(self.server, {child.pid for child in CHILDREN})


class Deputy:
    """Works out plain values in a process of its own, one after the other. What crashes or hangs there ends there, and
    the next value gets a new process. Use as a context manager.

    ``limit_s`` is for one value; ``server`` and ``may_start`` as of a :class:`Child`.
    """

    def __init__(self, limit_s: float, server: Server | None = None, may_start: bool = False) -> None:
        self.limit_s, self._server, self._may_start = limit_s, server, may_start
        self._child: Child | None = None
        self._asked = 0

    def __enter__(self) -> Deputy:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __call__(self, task: Callable[..., T], *arguments: Any, mendable: tuple[type[Exception], ...] = ()) -> T:
        """Returns ``task(*arguments)``, a plain value. Raises ``mendable`` errors as the task does, ContenderFailed for
        all others."""
        before = oom_kills()
        child = self._child = self._child or Child(_serve, server=self._server, may_start=self._may_start)
        try:
            kind, value = self._reply(child, (task, arguments, mendable))
        except EOFError:
            failure = death([child], before).beside(child.output.tail())
            self.close()
            raise failure from None
        except BaseException:
            self.close()
            raise
        if kind == "done":
            return cast(T, value)
        if known := next((error_type for error_type in mendable if error_type.__name__ == kind), None):
            raise known(value)
        raise ContenderFailed(*value)

    def _reply(self, child: Child, question: tuple[Any, ...]) -> tuple[str, Any]:
        """Raises EOFError where the child has ended."""
        self._asked += 1
        deadline_s = time.monotonic() + self.limit_s  # loading the libraries, the first time, is none of the task
        child.ask(self._asked, "work", question)
        while (reply := child.reply(self._asked)) is None:
            if not wait(child.handles, timeout=max(0.0, deadline_s - time.monotonic())):
                raise ContenderFailed("hung", f"no answer within {self.limit_s:g} s").beside(child.output.tail())
        return reply

    def close(self) -> None:
        """Ends its process, whatever that is doing."""
        if self._child:
            self._child.end()
        self._child = None


def in_child(
    task: Callable[..., T],
    *arguments: Any,
    limit_s: float,
    mendable: tuple[type[Exception], ...] = (),
    server: Server | None = None,
) -> T:
    """Returns ``task(*arguments)``, a plain value, worked out by a :class:`Deputy` of the server's."""
    with Deputy(limit_s, server) as deputy:
        return deputy(task, *arguments, mendable=mendable)


def end_together(children: list[Child], folder: str | Path = "") -> None:
    """Ends processes and all that they started, whatever they are doing, and removes the folder that they share."""
    for child in children:
        child.kill()
    for child in children:
        child.end()
    children.clear()
    if folder:
        shutil.rmtree(folder, ignore_errors=True)


def end_all() -> None:
    """Ends all children; whoever waits for one gets ContenderFailed."""
    for child in list(CHILDREN):
        child.kill()


def death(children: Sequence[Child], oom_kills_before: int | None) -> ContenderFailed:
    """Tells how the processes ended, in the words of a record."""
    for child in children:
        child.process.join(timeout=2.0)
    ended = {rank: child.process.exitcode for rank, child in enumerate(children) if child.process.exitcode is not None}
    rank, code = next(((rank, code) for rank, code in ended.items() if code), next(iter(ended.items()), (0, None)))
    status, reason = _ended(code, {child.server for child in children}, oom_kills_before)
    return ContenderFailed(status, f"rank {rank}: {reason}" if len(children) > 1 else reason)


def _ended(code: int | None, servers: Collection[int | None], oom_kills_before: int | None) -> tuple[Status, str]:
    if code == -signal.SIGKILL:
        after = oom_kills()
        if after is None or oom_kills_before is None:
            why = f"{KILLED}; whether for want of memory, this system does not say"
            return "out_of_memory", why
        if after > oom_kills_before:
            return "out_of_memory", f"{KILLED} by the system for want of memory"
        return "crashed", f"{KILLED} by another process; the kernel counted no want of memory"
    if code == LOST_SERVER and not living().keys() & set(servers):
        return "crashed", "the fork server died, and its processes with it; was it killed?"
    if code is not None and code < 0:
        return "crashed", f"died of {_name(-code)}"
    return "crashed", f"the process ended with exit code {code}"


def _name(number: int) -> str:
    with suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"


# inside of the child --------------------------------------------------------------------------------------------------


_speaker = 0


def begin() -> None:
    """Does what every child does first."""
    global _speaker
    _speaker = os.getpid()
    parent = multiprocessing.parent_process()
    lead_session(of_server=parent is not None and parent.pid != os.getppid())
    track_own_resources()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _serve(connection: Connection) -> None:
    """Works out one value after the other."""
    begin()
    while True:
        try:
            number, _, (task, arguments, mendable) = connection.recv()
        except (EOFError, OSError):
            os._exit(0)  # the parent is gone or done with us
        try:
            value = task(*arguments)
        except mendable as error:
            kind = next(error_type.__name__ for error_type in mendable if isinstance(error, error_type))
            answer(connection, number, kind, bounded(_message(error)))
        except BaseException as error:
            answer(connection, number, "failed", failure(error))
        else:
            answer(connection, number, "done", value)


def answer(connection: Connection, number: int, kind: str, value: Any) -> None:
    """Tells the parent. A copy that a technique forked has no say: it would answer twice, and take the next command."""
    if getpid() != _speaker:
        os._exit(0)
    try:
        send(connection, number, kind, value)
    except OSError:
        os._exit(0)
    except BaseException as error:  # a value that cannot be sent
        send(connection, number, "failed", failure(error))


def _end_with_parent() -> None:
    """Ends this process when the parent dies, however it dies and whatever the main thread is doing."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    with suppress(OSError):
        if os.getpgid(0) == os.getpid():
            os.killpg(0, signal.SIGKILL)
    os._exit(0)


def failure(error: BaseException) -> tuple[Status, str, str]:
    """Returns an exception as a record's status, reason and details, all of them bounded."""
    status: Status = "failed"
    if isinstance(error, Diverged):
        status = "diverged"
    elif isinstance(error, Unavailable):
        status = "unavailable"
    elif isinstance(error, NotAttached):
        status = "not_attached"
    elif isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "can't allocate memory" in _message(error):
        status = "out_of_memory"
    if status in ("diverged", "unavailable", "not_attached") or isinstance(error, BrokenEntry | RuleBroken):
        return status, bounded(_message(error), LONGEST_REASON), ""
    whose = ENVIRONMENT if isinstance(error, OSError) and status == "failed" else ""
    return status, whose + first_line(error), trace(error)


def first_line(error: BaseException) -> str:
    """Returns one line that says what went wrong, for a record's ``reason``."""
    lines = _message(error).strip().splitlines()
    name = type(error).__name__
    return bounded(f"{name}: {lines[0]}" if lines else name, LONGEST_REASON)


def trace(error: BaseException) -> str:
    """Returns the end of the traceback, for a record's ``details``."""
    try:
        return plain("".join(traceback.format_exception(error))[-4000:])
    except Exception as another:  # a message that raises when it is asked for
        return f"no traceback: {type(another).__name__}"


def _message(error: BaseException) -> str:
    try:
        return str(error)[: 10 * LONGEST_REASON]
    except Exception as another:
        return f"its message cannot be read: {type(another).__name__}"


if sys.platform == "win32":
    raise ImportError("leantrain's contenders need a fork server, which Windows does not have; use WSL")
