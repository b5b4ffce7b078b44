"""The speed gate with stub sides: what is timed how often, what is said, and that it tells what it cannot."""

from __future__ import annotations

import math
import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from suite.guard import speed
from suite.guard.gate_worker import waited_s
from suite.guard.regression import exit_code
from suite.guard.speed import TimedSet, finding, time_sets
from suite.guard.trees import TreeWorker
from suite.guard.votes import Rule
from suite.process.child import ContenderFailed
from suite.record.job import Job, Setting

JOB = Job(setting=Setting(baseline="gpt"))
RULE = Rule(slower=0.10)


class Stub:
    """A side whose steps take ``pace_s``, times noise of ``spread``."""

    def __init__(self, pace_s: float, spread: float, noise: random.Random, fails: str = "") -> None:
        self.pace_s, self.spread, self.noise, self.fails, self.alive = pace_s, spread, noise, fails, True
        self.steps = 0

    def ask(self, command: str, **arguments: Any) -> Any:
        if command == self.fails:
            raise ContenderFailed("crashed", "planted")
        if command == "start":
            self.own = math.exp(self.spread * self.noise.gauss(0, 1))  # what one process has for as long as it lives
            return {"steps": arguments["job"]["setting"]["steps"]}
        if command == "pace":
            self.steps = arguments["steps"]
            return arguments["steps"] * self.pace_s * self.own
        return None


def timed(
    new_s: float, spread: float = 0.0, *, jobs: int = 1, again_s: float = 1.0, minutes: float = 1.0, fails: str = ""
) -> tuple[list[TimedSet], list[dict[str, Stub]]]:
    noise, sessions = random.Random(0), list[dict[str, Stub]]()

    @contextmanager
    def fresh() -> Iterator[Any]:
        paces = {"old": 1.0, "again": again_s, "new": new_s}
        sessions.append({name: Stub(each, spread, noise, fails * (name == "new")) for name, each in paces.items()})
        yield sessions[-1]

    return time_sets(fresh, [JOB] * jobs, RULE, minutes=minutes, coin=random.Random(0)), sessions


@pytest.mark.parametrize(
    ("new_s", "verdict", "sets"),
    [(1.0, "equivalent", 6), (1.10, "regressed", 7), (1.5, "regressed", 7), (0.8, "improved", 6)],
)
def test_a_quiet_machine_decides_in_few_sets(new_s: float, verdict: str, sets: int) -> None:
    (item,), sessions = timed(new_s)
    said = finding(item, RULE, 1)
    assert (said.verdict, len(item.d), len(item.e), len(sessions)) == (verdict, sets, sets, 2)
    assert item.d == pytest.approx([math.log(new_s)] * sets) and item.e == [0.0] * sets
    assert f"step time {new_s - 1:+.1%} [{new_s - 1:+.1%}, {new_s - 1:+.1%}] over {sets} sets" in said.why
    assert "the smallest that 160 sets tell from none is 0.0%" in said.why  # there is no noise
    assert f"{sets} runs of the revision against itself such a check raises a false alarm in <0.1%" in said.why
    assert ("not slower by 10%" in said.why) == (verdict != "regressed")


def test_noise_takes_more_sets_and_what_it_hides_is_said_with_a_way_out() -> None:
    (few,), _ = timed(1.10, 0.01)
    (more,), _ = timed(1.10, 0.05)
    assert finding(few, RULE, 1).verdict == finding(more, RULE, 1).verdict == "regressed"
    assert len(few.d) < len(more.d)
    (item,), _ = timed(1.0, 0.4)
    assert len(item.d) == 160
    said = finding(item, RULE, 1)
    assert said.verdict == "inconclusive"
    assert "cannot tell slower by 10% from unchanged; it takes --slower " in said.why


def test_a_machine_that_sides_with_a_process_is_unfit() -> None:
    (item,), _ = timed(1.10, again_s=1.2)
    said = finding(item, RULE, 1)
    assert said.verdict == "unfit" and "the revision came out slower than itself" in said.why
    assert exit_code([said], accept_changes=False) == 4


def test_items_share_sessions_and_the_minutes() -> None:
    items, sessions = timed(1.0, jobs=speed.AT_A_TIME)
    assert len(sessions) == 2 and all(finding(each, RULE, 1).verdict == "equivalent" for each in items)
    items, sessions = timed(1.0, jobs=2, minutes=0.0)
    assert not sessions
    for said in (finding(each, RULE, 0.5) for each in items):
        assert (said.verdict, said.why) == ("inconclusive", "0 sets of processes in 0.5 minutes; allow it more")


def test_a_side_that_fails_is_named_and_the_others_go_on() -> None:
    (first, second), _ = timed(1.0, jobs=2, fails="pace")
    for item in (first, second):
        said = finding(item, RULE, 1)
        assert (said.verdict, said.why) == ("failed", "the working tree crashed: planted")


def test_short_steps_are_timed_several_at_a_time() -> None:
    noise = random.Random(0)
    sides = {name: Stub(0.004, 0.0, noise) for name in ("old", "again", "new")}
    item = TimedSet(JOB)
    item.add(sides, random.Random(0))  # type: ignore[arg-type]
    assert sides["old"].steps == 1
    item.add(sides, random.Random(0))  # type: ignore[arg-type]
    assert sides["old"].steps == 4


def test_waits_for_a_core_are_accounted_for() -> None:
    """As many processes as there are cores, and one more: some of them wait."""
    if not Path(f"/proc/{os.getpid()}/schedstat").exists():
        pytest.skip("this system keeps no account of waits for a core")
    before = waited_s(os.getpid())
    time.sleep(0.01)
    assert before <= waited_s(os.getpid()) < before + 10
    assert waited_s(2**22 + 1) == 0.0, "there is no such process"


def test_workers_with_a_layout_of_their_own_differ(tmp_path: Path) -> None:
    coin = random.Random(0)
    with TreeWorker(tmp_path, coin) as one, TreeWorker(tmp_path, coin) as other:
        environments = [Path(f"/proc/{each._process.pid}/environ").read_bytes() for each in (one, other)]
    assert len(environments[0]) != len(environments[1])
    assert all(b"PYTHONHASHSEED=0\0" not in each for each in environments)
