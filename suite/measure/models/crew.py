"""A model's cells, each model in processes of its own: what crashes, hangs or leaves something behind spoils no other.

The processes start loaded (:func:`suite.measure.contenders.contender.server`). Techniques of several ranks are tried by
a crew of so many processes, one a rank.
"""

from __future__ import annotations

import gc
import logging
import os
import shutil
import signal
import tempfile
import time
import warnings
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from suite.measure.contenders.fork_servers import Server
from suite.measure.models.matrix import Cell
from suite.measure.models.trial import Trials
from suite.record.numerics import environment, off_the_clock
from suite.record.scratch import scratch

LIMIT_S = 180.0  # of one cell: a hundred times what it takes on an idle machine
RANKS_APART_S = 20.0  # after one rank failed, the others fail too or wait for it forever


@dataclass(frozen=True)
class TrialPlace:
    """The model that a crew tries techniques on; ``model`` is a folder, or None for the baseline's own."""

    baseline: str
    model: str | None
    transformer: bool = True


class Died(RuntimeError):
    """The processes ended, or were ended, before they answered."""


class Crew:
    """The parent's handle on one model's processes. Use as a context manager."""

    def __init__(self, place: TrialPlace, ranks: int = 1, limit_s: float = LIMIT_S) -> None:
        self.place, self.ranks, self.limit_s = place, ranks, limit_s
        self._members: list[tuple[BaseProcess, Connection]] = []
        self._scratch: Path | None = None

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def cell(self, technique: str, spared: Collection[str] = ()) -> Cell:
        """One cell. A crew that dies of it is a defect, too, and starts anew for the next one."""
        try:
            each: list[Cell] = self._ask("cell", technique, tuple(spared))
        except Died as error:
            self.close()
            return Cell(verdict="defect", reason=str(error))
        if self.ranks > 1 and any(one.verdict != "works" for one in each):
            self.close()  # collectives that were begun and not ended would meet the next technique's
        return next((one for one in each if one.verdict == "defect"), each[0])

    def left_behind(self) -> bool:
        """Whether the plain run changed since the crew started."""
        try:
            return bool(self._members) and any(self._ask("left_behind"))
        except Died:
            return True

    def close(self) -> None:
        """Ends the processes, whatever they are doing."""
        for process, connection in self._members:
            connection.close()
            process.kill()
        for process, _ in self._members:
            process.join()
        self._members = []
        if self._scratch:
            shutil.rmtree(self._scratch, ignore_errors=True)
            self._scratch = None

    def _start(self) -> None:
        self._scratch = Path(tempfile.mkdtemp(prefix="crew-", dir=scratch()))
        server = _server()
        for rank in range(self.ranks):
            ours, theirs = server.context.Pipe()
            arguments = (self.place, theirs, rank, self.ranks, self._scratch)
            process = server.context.Process(target=_member, args=arguments, daemon=True)
            with server.starting():
                process.start()
            theirs.close()
            self._members.append((process, ours))

    def _ask(self, command: str, *arguments: Any) -> list[Any]:
        """The reply of every rank. Raises Died where one does not come."""
        if not self._members:
            self._start()
        replies: dict[Connection, Any] = {}
        connections = [connection for _, connection in self._members]
        deadline = time.monotonic() + self.limit_s
        try:
            for connection in connections:
                connection.send((command, arguments))
            while waiting := [each for each in connections if each not in replies]:
                ready = wait(waiting, timeout=max(0.0, deadline - time.monotonic()))
                if not ready:
                    raise Died(self._silence(list(replies.values())))
                for connection in waiting:
                    if connection in ready:
                        reply = replies[connection] = connection.recv()
                        if isinstance(reply, Cell) and reply.verdict != "works":
                            deadline = min(deadline, time.monotonic() + RANKS_APART_S)
        except (EOFError, BrokenPipeError, ConnectionResetError):
            raise Died(self._death()) from None
        return [replies[connection] for connection in connections]

    def _silence(self, answers: list[Any]) -> str:
        """What is known of a cell without an answer: where ranks wait for one that failed, what that one said."""
        said = next((each.reason for each in answers if isinstance(each, Cell)), "")
        return f"the other ranks wait for one that says: {said}" if said else f"no answer within {self.limit_s:g} s"

    def _death(self) -> str:
        for process, _ in self._members:
            process.join(timeout=2.0)
        code = next((process.exitcode for process, _ in self._members if process.exitcode), 0)
        return f"died of {signal.Signals(-code).name}" if code < 0 else f"the process ended with exit code {code}"


@cache
def _server() -> Server:
    return Server(environment(off_the_clock()), preloaded=[__name__])


def _member(place: TrialPlace, connection: Connection, rank: int, ranks: int, scratch: Path) -> None:
    import torch

    from suite.device.ranks import joined

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # libraries' advice on models of four blocks
    logging.disable(logging.WARNING)
    gc.freeze()  # every counted step collects garbage, and need not look for it among the libraries
    mesh = joined("cpu", rank, ranks, str(scratch)) if ranks > 1 else None
    own = scratch / str(rank)
    own.mkdir()
    trials = Trials(place.baseline, place.model, own, place.transformer, mesh)
    while True:
        try:
            command, arguments = connection.recv()
            connection.send(getattr(trials, command)(*arguments))
        except (EOFError, OSError):
            os._exit(0)  # the parent is gone or done with us
