"""Runs a process beside the command: how it starts, answers, and ends with all that it started.

Whatever of a technique's runs, runs in one. A child that raises, dies, hangs or says what cannot be kept turns into
:class:`ContenderFailed` in the parent, and nothing else.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from os import _exit  # as it was before a technique changed it
from typing import Any, NoReturn

from suite.process.output import Output
from suite.process.processes import end_session, end_strays, living, oom_kills
from suite.process.replies import Failure, NoReply, Replies, first_line, getpid, send
from suite.process.servers import Server
from suite.record.schema import Status

CHILDREN: set[Child] = set()  # that were started and are not yet ended; changed while their server's lock is held
KILLED = "killed (SIGKILL)"
LAST_WORDS_S = 2.0  # for the end of what died to be told


class ContenderFailed(RuntimeError):
    """Says how a process ended, in the words of a record."""

    def __init__(self, status: Status, reason: str, details: str = "") -> None:
        super().__init__(reason)
        self.status, self.reason, self.details = status, reason, details

    def beside(self, printed: str) -> ContenderFailed:
        """Returns this failure, with the end of what the process printed among its details."""
        words = f"{self.details}\nit printed last:\n{printed}".strip() if printed else self.details
        return ContenderFailed(self.status, self.reason, words)


class Child:
    """Holds one process, and the channel to it. In it ``make(*arguments)`` makes what answers commands by its methods
    (:func:`serve`); ``failing`` says there how an exception reads.

    Raises ContenderFailed where it cannot be started.
    """

    def __init__(
        self, server: Server, make: Callable[..., object], *arguments: Any, failing: Callable[[BaseException], Failure]
    ) -> None:
        self.server = server
        with server.lock:
            for attempt in range(2):  # a zygote that was killed is started anew for the next one
                try:
                    forked = server.fork(serve, make, arguments, failing)
                    break
                except (EOFError, OSError) as error:
                    if attempt:
                        why = f"{first_line(error)}; was it killed while it loaded the libraries, for want of memory?"
                        raise ContenderFailed("crashed", f"the fork server died: {why}") from None
            self.pid, self.server_pid, self.connection, printed, self._status = forked
            CHILDREN.add(self)
        self.exit_code: int | None = None
        self.lost = False  # with its zygote, which told no exit code
        self.output = Output(printed)
        self._replies = Replies(self.connection, self.pid)

    @property
    def handles(self) -> list[Any]:
        """Returns what becomes ready when it speaks, or ends."""
        return [self.connection, self._status]

    def ended(self, wait_s: float = 0.0) -> bool:
        """Tells whether it has ended, or does so in this time."""
        if self.exit_code is None and not self.lost and wait([self._status], wait_s):
            self.exit_code = self.server.exit_code(self.pid, self._status)
            self.lost = self.exit_code is None
        return self.lost or self.exit_code is not None

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
        if self.ended():
            raise EOFError
        return None

    def kill(self) -> None:
        if self.exit_code is None and not self.lost:
            with suppress(OSError):
                os.kill(self.pid, signal.SIGKILL)

    def end(self) -> None:
        """Kills it and all that it started."""
        self.connection.close()
        self.kill()
        if not self.ended() and self.server.says_something(self._status):
            self.ended()
        end_session(self.pid)
        os.close(self._status)
        with self.server.lock:
            CHILDREN.discard(self)
            if self.server_pid:
                end_strays(self.server_pid, {child.pid for child in list(CHILDREN)})
        self.output.close()


def end_all() -> None:
    """Ends all children; whoever waits for one gets ContenderFailed."""
    for child in list(CHILDREN):
        child.kill()


def death(children: Sequence[Child], oom_kills_before: int | None) -> ContenderFailed:
    """Tells how the processes ended, in the words of a record."""
    ended = [(rank, child) for rank, child in enumerate(children) if child.ended(LAST_WORDS_S)]
    rank, child = next(((rank, child) for rank, child in ended if child.exit_code), (ended or [(0, children[0])])[0])
    status, reason = _ended(child, oom_kills_before)
    return ContenderFailed(status, f"rank {rank}: {reason}" if len(children) > 1 else reason)


def _ended(child: Child, oom_kills_before: int | None) -> tuple[Status, str]:
    code = child.exit_code
    if code == -signal.SIGKILL:
        after = oom_kills()
        if after is None or oom_kills_before is None:
            why = f"{KILLED}; whether for want of memory, this system does not say"
            return "out_of_memory", why
        if after > oom_kills_before:
            return "out_of_memory", f"{KILLED} by the system for want of memory"
        return "crashed", f"{KILLED} by another process; the kernel counted no want of memory"
    if child.lost and child.server_pid not in living():
        return "crashed", "the fork server died, and its processes with it; was it killed?"
    if code is not None and code < 0:
        return "crashed", f"died of {_name(-code)}"
    return "crashed", f"the process ended with exit code {code}"


def _name(number: int) -> str:
    with suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"


# inside of the child --------------------------------------------------------------------------------------------------


def serve(
    make: Callable[..., object],
    arguments: Sequence[Any],
    failing: Callable[[BaseException], Failure],
    connection: Connection,
) -> NoReturn:
    """Answers one command after the other by a method of ``make(*arguments)``; each with its failure where that
    fails. A copy that a technique forked has no say: it would answer twice, and take the next command."""
    speaker, session, broken = getpid(), None, None
    try:
        session = make(*arguments)
    except BaseException as error:
        broken = failing(error)
    while True:
        try:
            number, command, given = connection.recv()
        except (EOFError, OSError):
            _exit(0)  # the parent is gone or done with us
        try:
            kind, value = ("failed", broken) if broken else ("done", getattr(session, command)(*given))
        except BaseException as error:  # also what sys.exit raises: it is the technique's, not ours
            kind, value = "failed", failing(error)
        if getpid() != speaker:
            _exit(0)
        try:
            send(connection, number, kind, value)
        except OSError:
            _exit(0)
        except BaseException as error:  # a value that cannot be sent
            send(connection, number, "failed", failing(error))


if sys.platform == "win32":
    raise ImportError("leantrain's contenders need a fork server, which Windows does not have; use WSL")
