"""Fills a model's cells, each model in processes of its own: what crashes, hangs or leaves something behind spoils no
other.

The processes start loaded. Techniques of several ranks are tried by a crew of so many processes, one a rank.
"""

from __future__ import annotations

import gc
import logging
import time
import warnings
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from suite.measure.contenders.deputies import failure
from suite.measure.contenders.fork_servers import loaded
from suite.process.child import Child, ContenderFailed
from suite.process.groups import Ranks
from suite.process.servers import Server
from suite.record.numerics import environment, off_the_clock
from suite.topics.models.trial import Trials
from suite.topics.models.tried_models import Cell

LIMIT_S = 600.0  # of one cell: hundreds of times what it takes on an idle machine
PRELOADED = "suite.topics.models.preloaded"
RANKS_APART_S = 20.0  # after one rank failed, the others fail too or wait for it forever


@dataclass(frozen=True)
class TrialPlace:
    """Names the model that a crew tries techniques on; ``model`` is a folder, or None for the baseline's own."""

    baseline: str
    model: str | None
    transformer: bool = True


class Crew(Ranks):
    """Drives one model's processes from the parent. Use as a context manager."""

    def __init__(self, place: TrialPlace, ranks: int = 1, limit_s: float = LIMIT_S) -> None:
        super().__init__()
        self.place, self.ranks, self.limit_s = place, ranks, limit_s
        self._listens = False
        self.cpu_s = 0.0  # of all its processes that ended as they were told to

    def __enter__(self) -> Crew:
        return self

    def cell(self, technique: str) -> Cell:
        """Fills one cell. A crew that dies of it is a defect, too, and starts anew for the next one. Raises
        ContenderFailed where none can start: that is no technique's doing."""
        if not self._ranks:
            self._start()
        try:
            cells = [Cell.model_validate(said) for said in self._replies("cell", technique)]
        except ContenderFailed as failed:
            self._listens = False
            self.close()
            return Cell(verdict="defect", reason=str(failed))
        if self.ranks > 1 and any(one.verdict != "works" for one in cells):
            self.close()  # collectives that were begun and not ended would meet the next technique's
        return next((one for one in cells if one.verdict == "defect"), cells[0])

    def close(self) -> None:
        """Ends its processes, and adds up their CPU time."""
        if self._ranks and self._listens:
            with suppress(ContenderFailed):
                self.cpu_s += sum(self._replies("cpu_s"))
        super().close()

    def left_behind(self) -> bool:
        """Tells whether the plain run changed since the crew started."""
        try:
            return bool(self._ranks) and any(self._replies("left_behind"))
        except ContenderFailed:
            return True

    def _start(self) -> None:
        folder = self._meet()
        places = [(self.place, rank, self.ranks, folder) for rank in range(self.ranks)]
        self._begin(server(), failure, _trials, *places)
        self._listens = True

    def _replies(self, command: str, *arguments: Any) -> list[Any]:
        """Returns the reply of every rank. Raises ContenderFailed where one does not come."""
        replies: dict[Child, Any] = {}
        try:
            end_s = time.monotonic() + self.limit_s
            self._ask(command, *arguments)
            while len(replies) < len(self._ranks):
                for rank, kind, value in self._heard([each for each in self._ranks if each not in replies], end_s):
                    if kind == "failed":
                        raise ContenderFailed(*value)
                    if _is_ill(value):
                        end_s = min(end_s, time.monotonic() + RANKS_APART_S)
                    replies[rank] = value
        except EOFError:
            raise self._death() from None
        except TimeoutError:
            raise ContenderFailed("hung", self._silence(replies.values())) from None
        return [replies[rank] for rank in self._ranks]

    def _silence(self, answers: Iterable[Any]) -> str:
        """Tells what is known of a cell without an answer: where ranks wait for one that failed, what that one said."""
        said = next((answer.get("reason", "") for answer in answers if _is_ill(answer)), "")
        return f"the other ranks wait for one that says: {said}" if said else f"no answer within {self.limit_s:g} s"


def _is_ill(answer: Any) -> bool:
    return isinstance(answer, dict) and answer.get("verdict") != "works"


@cache
def server() -> Server:
    """Returns the server of all crews, and of what is asked of a model before."""
    return loaded(environment(off_the_clock()), [__name__, PRELOADED])


def _trials(place: TrialPlace, rank: int, ranks: int, folder: str) -> Trials:
    """Makes what answers for one rank, inside of its process."""
    import torch

    from suite.device.ranks import joined

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # libraries' advice on models of four blocks
    logging.disable(logging.WARNING)
    gc.freeze()  # every counted step collects garbage, and need not look for it among the libraries
    mesh = joined("cpu", rank, ranks, folder) if ranks > 1 else None
    own = Path(folder) / str(rank)
    own.mkdir()
    return Trials(place.baseline, place.model, own, place.transformer, mesh)
