"""Has what loads techniques' code worked out in processes of its own, and says how that failed in a record's words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

from suite.loop.run import Diverged
from suite.loop.sites import NotAttached
from suite.loop.technique import Unavailable
from suite.measure.contenders import fork_servers
from suite.measure.rules.broken import RuleBroken
from suite.process.groups import Deputy
from suite.process.replies import LONGEST_REASON, Failure, bounded, first_line, message, trace
from suite.process.servers import Server
from suite.record.numerics import off_the_clock
from suite.record.schema import ENVIRONMENT, Status

T = TypeVar("T")


class BrokenEntry(RuntimeError):
    """Is raised for a technique's module that cannot be imported, or has another shape; the message names it and the
    mend."""


def failure(error: BaseException) -> Failure:
    """Returns an exception as a record's status, reason and details, all of them bounded."""
    status: Status = "failed"
    if isinstance(error, Diverged):
        status = "diverged"
    elif isinstance(error, Unavailable):
        status = "unavailable"
    elif isinstance(error, NotAttached):
        status = "not_attached"
    elif isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "can't allocate memory" in message(error):
        status = "out_of_memory"
    if status in ("diverged", "unavailable", "not_attached") or isinstance(error, BrokenEntry | RuleBroken):
        return status, bounded(message(error), LONGEST_REASON), ""
    whose = ENVIRONMENT if isinstance(error, OSError) and status == "failed" else ""
    return status, whose + first_line(error), trace(error)


def deputy(limit_s: float, server: Server | None = None) -> Deputy:
    """Returns a deputy that ``server`` forks: by default that of what is off the clock."""
    return Deputy(limit_s, server or fork_servers.shared(off_the_clock()), failure)


def in_child(
    task: Callable[..., T],
    *arguments: Any,
    limit_s: float,
    mendable: tuple[type[Exception], ...] = (),
    server: Server | None = None,
) -> T:
    """Returns ``task(*arguments)``, a plain value, worked out by a :func:`deputy`."""
    with deputy(limit_s, server) as one:
        return one(task, *arguments, mendable=mendable)
