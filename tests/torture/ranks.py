"""Ranks of a training that are killed or stopped at random moments: the row says so, and all of them are gone."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from suite.measure.contenders.contender import Contender, Limits
from suite.process.child import ContenderFailed
from suite.process.processes import living
from suite.process.scratch import scratch
from suite.record.job import Job, Setting
from tests.torture import Row, Scale, row

JOB = Job(setting=Setting(baseline="gpt", size="pico", steps=10**6), stack="dp_ddp")


def attack(scale: Scale) -> Iterator[Row]:
    coin = random.Random(0)
    killed = Counter(ended(coin, signal.SIGKILL, "crashed") for _ in range(scale.trials(20)))
    yield row("one of two ranks is killed (SIGKILL)", killed)
    stopped = Counter(ended(coin, signal.SIGSTOP, "hung") for _ in range(scale.trials(5)))
    yield row("one of two ranks is stopped (SIGSTOP)", stopped)


def ended(coin: random.Random, how: signal.Signals, status: str) -> str:
    """One trial, in words."""
    with Contender(JOB, Limits(reply_s=60.0)) as contender:
        contender.prepare()
        contender.set_up()
        contender.limits = Limits(reply_s=5.0 if how == signal.SIGSTOP else 60.0)
        ranks = [child.pid for child in contender._ranks]
        timer = threading.Timer(coin.uniform(0.0, 1.0), os.kill, (coin.choice(ranks), how))
        timer.start()
        try:
            contender.block(10**6)
            said = "it went on"
        except ContenderFailed as failure:
            said = "held" if failure.status == status else f"{failure.status}: {failure.reason}"
        timer.join()
        folder = Path(contender._folder)
    if living().keys() & set(ranks):
        return "ranks left"
    return "a folder left" if folder.exists() or list(scratch().glob("ranks-*")) else said
