"""The machine's clock jumps by years while a run goes on: all that is stored is in order, read again, and shown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from tests import plugin
from tests.torture import Row, Scale, row
from tests.torture.command import LIMIT_S, SHORT, place

FARTHEST_DAYS = 3650
JUMPING = """
import datetime as whole
import random
import time

import suite.measure.provenance

coin, true_time = random.Random({seed}), time.time


class Jumping(whole.datetime):
    @classmethod
    def now(cls, zone=None):
        return whole.datetime.now(zone) + whole.timedelta(days=coin.uniform(-{days}, {days}))


suite.measure.provenance.datetime = Jumping
time.time = lambda: true_time() + 86400 * coin.uniform(-{days}, {days})
"""


def attack(scale: Scale) -> Iterator[Row]:
    yield row(
        "the clock jumps by up to ten years, back and forth, during a run", Counter(map(jumped, range(scale.trials(5))))
    )


def jumped(seed: int) -> str:
    """One trial, in words."""
    with place({"still": "pass"}) as at:
        with (at.folder / "sitecustomize.py").open("a") as file:
            file.write(JUMPING.format(seed=seed, days=FARTHEST_DAYS))
        run = ("run", *SHORT, "-t", "still")
        for arguments in (run, run, ("leaderboard",), ("history",)):
            process = at.start(*arguments)
            told = process.communicate(timeout=LIMIT_S)[1]
            if b"Traceback" in told or process.returncode not in (0, 1, 3, 6):
                return f"{arguments[0]}: exit code {process.returncode}: {told.splitlines()[-1:]}"
        learned = plugin.records(at.results).learned
        seeds = [(each.stack, each.conditions.key, each.seed) for each in learned]
        if not seeds or len(seeds) != len({*seeds}):
            return "a run that was learned twice, or none"
        return at.left() or "held"
