"""Fills a model's cells, each model in processes of its own: what crashes, hangs or leaves something behind spoils no
other.

The processes start loaded (:func:`suite.measure.contenders.contender.server`). Techniques of several ranks are tried by
a crew of so many processes, one a rank.
"""

from __future__ import annotations

import gc
import logging
import os
import tempfile
import time
import warnings
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from suite.measure.contenders.child import Child, ContenderFailed, answer, begin, death, end_together, failure
from suite.measure.contenders.fork_servers import Server
from suite.measure.contenders.processes import oom_kills
from suite.record.numerics import environment, off_the_clock
from suite.record.scratch import scratch
from suite.topics.models.trial import Trials
from suite.topics.models.tried_models import Cell

LIMIT_S = 180.0  # of one cell: a hundred times what it takes on an idle machine
RANKS_APART_S = 20.0  # after one rank failed, the others fail too or wait for it forever


@dataclass(frozen=True)
class TrialPlace:
    """Names the model that a crew tries techniques on; ``model`` is a folder, or None for the baseline's own."""

    baseline: str
    model: str | None
    transformer: bool = True


class Died(RuntimeError):
    """Is raised where the processes ended, or were ended, before they answered."""


class Crew:
    """Drives one model's processes from the parent. Use as a context manager."""

    def __init__(self, place: TrialPlace, ranks: int = 1, limit_s: float = LIMIT_S) -> None:
        self.place, self.ranks, self.limit_s = place, ranks, limit_s
        self._members: list[Child] = []
        self._scratch: Path | None = None
        self._asked = 0

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def cell(self, technique: str, spared: Collection[str] = ()) -> Cell:
        """Fills one cell. A crew that dies of it is a defect, too, and starts anew for the next one."""
        try:
            cells = [Cell.model_validate(said) for said in self._ask("cell", technique, tuple(spared))]
        except Died as error:
            self.close()
            return Cell(verdict="defect", reason=str(error))
        if self.ranks > 1 and any(one.verdict != "works" for one in cells):
            self.close()  # collectives that were begun and not ended would meet the next technique's
        return next((one for one in cells if one.verdict == "defect"), cells[0])

    def left_behind(self) -> bool:
        """Tells whether the plain run changed since the crew started."""
        try:
            return bool(self._members) and any(self._ask("left_behind"))
        except Died:
            return True

    def close(self) -> None:
        """Ends the processes, whatever they are doing."""
        end_together(self._members, self._scratch or "")
        self._scratch = None

    def _start(self) -> None:
        self._scratch = Path(tempfile.mkdtemp(prefix="crew-", dir=scratch()))
        for rank in range(self.ranks):
            self._members.append(Child(_member, self.place, rank, self.ranks, self._scratch, server=_server()))

    def _ask(self, command: str, *arguments: Any) -> list[Any]:
        """Returns the reply of every rank. Raises Died where one does not come."""
        before = oom_kills()
        try:
            if not self._members:
                self._start()
            return self._replies(command, arguments)
        except EOFError:
            raise Died(str(death(self._members, before))) from None
        except ContenderFailed as failed:
            raise Died(str(failed)) from None

    def _replies(self, command: str, arguments: tuple[Any, ...]) -> list[Any]:
        """Returns the reply of every rank. Raises Died where one takes too long, ContenderFailed for what is none,
        EOFError where one has ended."""
        self._asked += 1
        replies: dict[Child, Any] = {}
        deadline = time.monotonic() + self.limit_s
        for member in self._members:
            member.ask(self._asked, command, arguments)
        while waiting := [member for member in self._members if member not in replies]:
            handles = [handle for child in waiting for handle in child.handles]
            if not wait(handles, timeout=max(0.0, deadline - time.monotonic())):
                raise Died(self._silence(list(replies.values())))
            for member in waiting:
                if not (reply := member.reply(self._asked)):
                    continue
                kind, replies[member] = reply
                if kind == "failed":
                    raise ContenderFailed(*replies[member])
                if _is_ill(replies[member]):
                    deadline = min(deadline, time.monotonic() + RANKS_APART_S)
        return [replies[member] for member in self._members]

    def _silence(self, answers: list[Any]) -> str:
        """Tells what is known of a cell without an answer: where ranks wait for one that failed, what that one said."""
        said = next((answer.get("reason", "") for answer in answers if _is_ill(answer)), "")
        return f"the other ranks wait for one that says: {said}" if said else f"no answer within {self.limit_s:g} s"


def _is_ill(answer: Any) -> bool:
    return isinstance(answer, dict) and answer.get("verdict") != "works"


@cache
def _server() -> Server:
    return Server(environment(off_the_clock()), preloaded=[__name__])


def _member(place: TrialPlace, rank: int, ranks: int, scratch: Path, connection: Connection) -> None:
    import torch

    from suite.device.ranks import joined

    begin()
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
            number, command, arguments = connection.recv()
        except (EOFError, OSError):
            os._exit(0)  # the parent is gone or done with us
        try:
            value = getattr(trials, command)(*arguments)
        except BaseException as error:
            answer(connection, number, "failed", failure(error))
        else:
            answer(connection, number, "done", value)
