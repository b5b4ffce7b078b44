"""Drives a referee from the command's end: a process of its own that scores what a contender hands over."""

from __future__ import annotations

from typing import Any

from suite.measure.contenders.deputies import failure
from suite.process.groups import Ranks
from suite.process.servers import Server
from suite.record.job import Job


class RefereeProcess(Ranks):
    """Holds the referee of one job (:class:`suite.measure.rules.referee.Referee`), which ``server`` forks."""

    def __init__(self, job: Job, server: Server) -> None:
        super().__init__()
        self._begin(server, failure, _referee, (job,))

    def answer(self, command: str, *arguments: Any, limit_s: float) -> Any:
        """Returns its answer. Raises ContenderFailed where a rule is broken, or what was handed over cannot be
        scored."""
        return self._all_replies(command, *arguments, limit_s=limit_s)[0]


def _referee(job: Job) -> object:
    """Makes what answers, inside of its process."""
    from suite.measure.rules.referee import Referee

    return Referee(job)
