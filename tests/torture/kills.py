"""``kill -9`` of all processes of a run at a random moment: what was stored is there, and the next run goes on."""

from __future__ import annotations

import signal
from collections.abc import Iterator

from tests.torture import Row, Scale
from tests.torture.interruptions import ended, made


def attack(scale: Scale) -> Iterator[Row]:
    yield made(
        "kill -9 of the whole group during a run",
        scale.trials(100),
        lambda coin: ended(coin, signal.SIGKILL, group=True),
    )
