"""Each signal that ends a command, sent to a run at a random moment, and SIGKILL to the command alone: nothing is lost,
and its processes end with it."""

from __future__ import annotations

import signal
from collections.abc import Iterator

from tests.torture import Row, Scale
from tests.torture.command import ENDING
from tests.torture.interruptions import ended, made


def attack(scale: Scale) -> Iterator[Row]:
    for how in (signal.SIGKILL, *ENDING):
        test = "SIGKILL of the command alone" if how == signal.SIGKILL else f"{how.name} during a run"
        yield made(test, scale.trials(20), lambda coin, how=how: ended(coin, how, group=False))
