"""Lends timings in tests one fork server. A set of processes has one of its own elsewhere, which costs it four seconds
and decides nothing that a test asks."""

from __future__ import annotations

import random
from typing import Any

from suite.measure.contenders import fork_servers
from suite.process.servers import Server
from suite.record.numerics import on_the_clock

ITS_OWN = fork_servers.of_one_timing


class Lent:
    """The shared server, which stays when a set ends."""

    def __getattr__(self, name: str) -> Any:
        return getattr(fork_servers.shared(on_the_clock()), name)

    def close(self) -> None:
        """Leaves it to the next."""


def lend() -> None:
    """Has timings share a server, in this process; to be called before what times is imported."""
    fork_servers.of_one_timing = lambda coin: Lent()  # type: ignore[assignment,return-value]


def of_its_own(seed: int) -> Server:
    """What a timing has outside of tests."""
    return ITS_OWN(random.Random(seed))
