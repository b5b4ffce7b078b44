"""One rank of two that dies, raises or hangs: the row names it, soon, and nothing is left."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from suite.measure.contenders.contender import Contender, Limits
from suite.process.child import ContenderFailed
from suite.process.processes import living
from suite.record.job import Job, Setting

JOB = Job(setting=Setting(baseline="gpt", size="pico", steps=1000), stack="dp_ddp")


@pytest.mark.parametrize(
    ("how", "status", "words"),
    [
        (signal.SIGKILL, ("crashed", "out_of_memory"), "rank 1: killed"),
        (signal.SIGSTOP, ("hung",), "rank 1: no answer"),
    ],
)
def test_a_rank_that_dies_or_hangs_is_named_within_thirty_seconds(how: Any, status: Any, words: str) -> None:
    with Contender(JOB, Limits()) as run:
        run.prepare()
        run.set_up()
        run.block(1)
        ranks, folder = [child.pid for child in run._ranks], Path(run._folder)
        os.kill(ranks[1], how)
        begun = time.monotonic()
        with pytest.raises(ContenderFailed, match=words) as caught:
            run.block(5)
        waited_s = time.monotonic() - begun
    assert caught.value.status in status
    assert waited_s < 30
    assert not living().keys() & set(ranks) and not folder.exists()


class Said:
    """A rank's child with an answer at hand, or none."""

    def __init__(self, reply: tuple[str, Any] | None) -> None:
        self.said = reply
        self.output = SimpleNamespace(tail=lambda: "what it printed")
        self.ours, self.theirs = os.pipe()
        if reply is not None:
            os.write(self.theirs, b".")

    @property
    def handles(self) -> list[Any]:
        return [self.ours]

    def ask(self, *_: object) -> None:
        pass

    def reply(self, number: int) -> tuple[str, Any] | None:
        return self.said


GAVE_UP = ("failed", ("failed", "RuntimeError: [gloo/transport] Timed out waiting 20000ms", ""))
OWN = ("failed", ("failed", "ValueError: a shape", "trace"))


@pytest.mark.parametrize(
    ("replies", "status", "words"),
    [
        ([GAVE_UP, OWN], "failed", "rank 1: ValueError: a shape"),
        ([OWN, OWN], "failed", "^ValueError: a shape"),
        ([OWN, None], "failed", "rank 0: ValueError: a shape"),
        ([GAVE_UP, None, GAVE_UP], "hung", "rank 1: no answer to 'block' .* after ranks 0, 2 gave it up: .*Timed out"),
        ([("done", 1), None, None], "hung", "ranks 1, 2: no answer to 'block'"),
        ([("failed", ("diverged", "the loss", "")), None], "diverged", "^the loss"),
    ],
)
def test_whose_failure_it_is(replies: Any, status: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("suite.measure.contenders.contender.RANKS_APART_S", 0.05)
    monkeypatch.setattr("suite.measure.contenders.contender.STRAGGLING_S", 0.05)
    run = Contender(JOB.model_copy(update={"stack": "baseline"}))
    run._ranks = [Said(each) for each in replies]  # type: ignore[misc]
    with pytest.raises(ContenderFailed, match=words) as caught:
        run._call("block", 1)
    assert caught.value.status == status and "what it printed" in caught.value.details
