"""Lends timings in tests one fork server. A set of processes has one of its own elsewhere, which costs it four seconds
and decides nothing that a test asks."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import context
from multiprocessing.process import BaseProcess

from suite.measure.contenders import fork_servers
from suite.record.numerics import on_the_clock

ITS_OWN = fork_servers.of_one_timing


class Lent(fork_servers.Server):
    """The shared server, which stays when a set ends."""

    def __init__(self) -> None:
        self.context = fork_servers.shared(on_the_clock()).context

    def begin(self) -> None:
        fork_servers.shared(on_the_clock()).begin()

    @contextmanager
    def starting(self) -> Iterator[context.ForkServerContext]:
        with fork_servers.shared(on_the_clock()).starting() as lent:
            yield lent

    def see_end_of(self, process: BaseProcess) -> None:
        fork_servers.shared(on_the_clock()).see_end_of(process)

    def close(self) -> None:
        """Leaves it to the next."""


def lend() -> None:
    """Has timings share a server, in this process; to be called before what times is imported."""
    fork_servers.of_one_timing = lambda coin: Lent()


def of_its_own(seed: int) -> fork_servers.Server:
    """What a timing has outside of tests."""
    return ITS_OWN(random.Random(seed))
