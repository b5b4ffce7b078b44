"""Runs zygotes from the command's end: each is started with its first child, watched, and started anew where it died.

What is decided when a process starts holds for all that it forks: its environment, the arithmetic of its libraries, the
order of hashes, where libraries, heap and stack lie. So a server has an environment of its own, and its children share
a layout.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe, wait
from multiprocessing.reduction import ForkingPickler
from os import _exit
from typing import Any, NamedTuple

from suite.process import zygote
from suite.process.processes import has_ended, is_stopped
from suite.process.scratch import scratch
from suite.process.zygote import NUMBER

LOADING_S, FORKING_S = 600.0, 60.0  # a zygote that takes longer for its libraries, or for a fork, never ends
LOOK_S = 5.0  # so often a zygote that is waited for is looked at: one that was stopped says nothing
PROGRAM = "import sys; sys.path[:] = {paths!r}; from suite.process.zygote import main; main({command}, {modules!r})"


class Forked(NamedTuple):
    """Holds the command's ends of a process that was just forked: its channel, what it prints, and its status."""

    pid: int
    zygote: int | None
    channel: Connection
    printed: Connection
    status: int


class Server:
    """Runs a zygote that has loaded ``modules``, under variables of its own in its environment. It starts with its
    first child, and ends with the process that made it."""

    def __init__(self, environment: Mapping[str, str], modules: Sequence[str] = ()) -> None:
        self.environment, self.modules = dict(environment), list(modules)
        self.lock = threading.RLock()  # held while a child is forked, or strays are ended
        self.pid: int | None = None
        self._control: socket.socket | None = None
        self._owner = 0  # whose zygote it is: a fork of that process starts one of its own
        self.answered: int | None = None  # which zygote has loaded its libraries

    def begin(self) -> None:
        """Has it load its libraries, which its first child waits for: so several load side by side."""
        with self.lock:
            if self._lives():
                return
            if self._control:
                self._control.close()
            self._control, theirs = socket.socketpair()
            self._owner, self.pid = os.getpid(), None
            try:
                self.pid = self._launch(theirs)
            finally:
                theirs.close()

    def _launch(self, control: socket.socket) -> int:
        """Starts the zygote, whose end of the control this is; returns its process."""
        program = PROGRAM.format(paths=list(map(str, sys.path)), command=os.getpid(), modules=self.modules)
        handed = [(os.POSIX_SPAWN_DUP2, control.fileno(), 0)]
        command = [sys.executable, "-P", "-c", program]
        return os.posix_spawn(sys.executable, command, os.environ | self.environment, file_actions=handed)

    def _lives(self) -> bool:
        if self.pid is None or self._owner != os.getpid():
            return False
        try:
            return os.waitpid(self.pid, os.WNOHANG) == (0, 0)
        except ChildProcessError:  # this process has others wait for its children, or the system
            return not has_ended(self.pid)

    def fork(self, target: Callable[..., None], *arguments: Any) -> Forked:
        """Forks a process that calls ``target(*arguments, channel)``, functions and values that can be pickled.

        It does not import ``__main__``: it needs nothing of that, which may be a script without a guard, or not even a
        file (standard input). Raises EOFError where the zygote died or was ended for its silence, OSError where the
        system forks no more, or no temporary folder has room for a socket.
        """
        called = ForkingPickler.dumps((target, arguments))
        asker = os.getpid(), list(sys.path), os.getcwd(), list(sys.argv), str(scratch())
        with self.lock:
            channel, theirs = Pipe()
            printed, printing = Pipe(duplex=False)
            try:
                with theirs, printing:
                    pid, status = self._child(theirs.fileno(), printing.fileno(), [channel.fileno(), printed.fileno()])
            except BaseException:
                channel.close()
                printed.close()
                raise
            forked = Forked(pid, self.pid, channel, printed, status)
        with suppress(OSError):  # it has ended already
            channel.send(asker)
            channel.send_bytes(called)
        return forked

    def _child(self, channel: int, output: int, ours: Sequence[int]) -> tuple[int, int]:
        """Forks a process with these handles, and without ``ours``; returns its id, and a handle of its status."""
        self.begin()
        assert self._control is not None
        status, telling = os.pipe()
        try:
            with open(telling, "wb"):
                socket.send_fds(self._control, [b"."], [channel, output, telling])
            return self._first_word(status), status
        except BaseException as error:
            os.close(status)
            if isinstance(error, EOFError | BrokenPipeError | ConnectionResetError):
                self.kill()  # it may still be dying
            raise

    def exit_code(self, pid: int, status: int) -> int | None:
        """Returns the exit code of a child that has ended; None where the zygote ended with it."""
        said = os.read(status, NUMBER.size)
        return NUMBER.unpack(said)[0] if said else None

    def _first_word(self, status: int) -> int:
        """Returns the id of the child that was just asked for."""
        if not self.says_something(status, FORKING_S if self.answered == self.pid else LOADING_S):
            raise EOFError("it did not answer, and was ended")
        if not (said := os.read(status, NUMBER.size)):
            raise EOFError
        self.answered = self.pid
        (pid,) = NUMBER.unpack(said)
        if pid < 0:
            raise OSError(-pid, os.strerror(-pid))
        return int(pid)

    def says_something(self, status: int, limit_s: float = FORKING_S) -> bool:
        """Tells whether a status has a word. If it has none in time, or the zygote is stopped, that is killed, and with
        it its children."""
        end_s = time.monotonic() + limit_s
        while not wait([status], min(LOOK_S, max(0.0, end_s - time.monotonic()))):
            if time.monotonic() >= end_s or (self.pid and is_stopped(self.pid)):
                self.kill()
                return False
        return True

    def kill(self) -> None:
        """Ends it, whatever it is doing, and its children; the next child starts it anew."""
        with self.lock:
            if self._lives():
                assert self.pid is not None
                os.kill(self.pid, signal.SIGKILL)  # nothing in it is worth the time that libraries take to leave
                with suppress(ChildProcessError):
                    os.waitpid(self.pid, 0)
            self.pid = None

    def close(self) -> None:
        """Ends it, and its children."""
        self.kill()
        if self._control:
            self._control.close()


class ThisProcess(Server):
    """Forks this process itself, as it is then, with what was changed in it."""

    def __init__(self) -> None:
        super().__init__({})

    def begin(self) -> None:
        """Does nothing: it has its libraries."""

    def _child(self, channel: int, output: int, ours: Sequence[int]) -> tuple[int, int]:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError, AttributeError):
                stream.flush()  # else the fork would have it, too
        status, held = os.pipe()  # it can be read when nobody holds the other end any more
        if (pid := os.fork()) == 0:
            try:
                zygote.begin(channel, output, [*ours, status])
            finally:
                _exit(1)
        os.close(held)
        if (handle := zygote.handle_of(pid)) is not None:
            os.close(status)
            status = handle
        return pid, status

    def exit_code(self, pid: int, status: int) -> int | None:
        """Returns the exit code of a child that has ended; None where this process has others wait for its children."""
        with suppress(ChildProcessError):
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        return None
