"""Drives processes that work on one thing together, one a rank: started, asked and ended as one."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from multiprocessing.connection import wait
from typing import Any, TypeVar, cast

from suite.process.child import Child, ContenderFailed, death
from suite.process.processes import oom_kills
from suite.process.replies import Failure, bounded, message
from suite.process.scratch import scratch
from suite.process.servers import Server

T = TypeVar("T")


class Ranks:
    """Holds the processes and the folder where they meet. Use as a context manager: it ends them."""

    def __init__(self) -> None:
        self._ranks: list[Child] = []
        self._folder = ""
        self._number = 0  # of the last command
        self._oom_kills: int | None = None

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def pids(self) -> list[int]:
        """Returns the processes, one a rank."""
        return [child.pid for child in self._ranks]

    @property
    def server_pid(self) -> int:
        """Returns the process that forked them; 0 before they start."""
        return next((child.server_pid or 0 for child in self._ranks), 0)

    def close(self) -> None:
        """Ends the processes and all that they started, whatever they are doing, and removes their folder."""
        for child in self._ranks:
            child.kill()
        for child in self._ranks:
            child.end()
        self._ranks.clear()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._folder = ""

    def _meet(self) -> str:
        """Makes the folder."""
        self._folder = tempfile.mkdtemp(prefix="ranks-", dir=scratch())
        return self._folder

    def _begin(
        self,
        server: Server,
        failing: Callable[[BaseException], Failure],
        make: Callable[..., object],
        *arguments_of: Sequence[Any],
    ) -> None:
        """Starts a process for each of these arguments. Raises ContenderFailed where one cannot be; none is left."""
        self._oom_kills = oom_kills()
        try:
            for arguments in arguments_of:
                self._ranks.append(Child(server, make, *arguments, failing=failing))
        except ContenderFailed:
            self.close()
            raise

    def _ask(self, command: str, *arguments: Any) -> None:
        """Raises EOFError where one is gone."""
        self._number += 1
        for child in self._ranks:
            child.ask(self._number, command, arguments)

    def _all_replies(self, command: str, *arguments: Any, limit_s: float) -> list[Any]:
        """Returns what every rank replies. Raises ContenderFailed where one fails, ends, or none says anything for so
        long."""
        replies: dict[Child, Any] = {}
        end_s = time.monotonic() + limit_s
        try:
            self._ask(command, *arguments)
            while silent := [child for child in self._ranks if child not in replies]:
                for child, kind, value in self._heard(silent, end_s):
                    if kind != "done":
                        raise ContenderFailed(*value)
                    replies[child] = value
            return [replies[child] for child in self._ranks]
        except EOFError:
            failed = self._death()
        except TimeoutError:
            failed = ContenderFailed("hung", f"no answer within {limit_s:g} s")
        raise failed.beside(self._ranks[0].output.tail())

    def _heard(self, silent: Iterable[Child], end_s: float) -> Iterator[tuple[Child, str, Any]]:
        """Waits until some of these say something; yields each of them that has replied, with the reply's kind and
        value. Raises TimeoutError where none says anything until ``end_s``, EOFError where one has ended,
        ContenderFailed for what is no reply."""
        silent = list(silent)
        if not wait([handle for child in silent for handle in child.handles], max(0.0, end_s - time.monotonic())):
            raise TimeoutError
        for child in silent:
            if reply := child.reply(self._number):
                yield child, *reply

    def _death(self) -> ContenderFailed:
        return death(self._ranks, self._oom_kills)


class Deputy(Ranks):
    """Works out plain values in a process of its own, one after the other. What fails, crashes or hangs there ends
    there, and the next value gets a new process. Use as a context manager.

    ``limit_s`` is for one value; ``failing`` says in the process how an exception reads.
    """

    def __init__(self, limit_s: float, server: Server, failing: Callable[[BaseException], Failure]) -> None:
        super().__init__()
        self.limit_s, self._server, self._failing = limit_s, server, failing

    def __enter__(self) -> Deputy:
        return self

    def __call__(self, task: Callable[..., T], *arguments: Any, mendable: tuple[type[Exception], ...] = ()) -> T:
        """Returns ``task(*arguments)``, a plain value. Raises ``mendable`` errors as the task does, ContenderFailed for
        all others."""
        if not self._ranks:
            self._begin(self._server, self._failing, _Worker, ())
        try:
            ((kind, value),) = self._all_replies("work", task, arguments, mendable, limit_s=self.limit_s)
        except BaseException:
            self.close()
            raise
        if known := next((error_type for error_type in mendable if error_type.__name__ == kind), None):
            raise known(value)
        return cast(T, value)


class _Worker:
    """Works out one value after the other, inside of a deputy's process."""

    def work(
        self, task: Callable[..., Any], arguments: Sequence[Any], mendable: tuple[type[Exception], ...]
    ) -> tuple[str, Any]:
        """Returns the value, behind an empty word; or the name of an error that is mendable, and its message."""
        try:
            return "", task(*arguments)
        except mendable as error:
            kind = next(error_type.__name__ for error_type in mendable if isinstance(error, error_type))
            return kind, bounded(message(error))
