"""A learned run: its seed decides it to the bit, alone or beside others; a run that fails is evidence, too."""

from __future__ import annotations

import json
import os
import threading
import time

import pytest

from suite.entries.catalogue import UnknownId
from suite.measure.contenders.contender import Limits
from suite.measure.learning import EVALUATIONS, LOSSES, Cores, learn, learn_all
from suite.process.child import CHILDREN
from suite.record.job import Job, Setting, StackError
from suite.record.numerics import PORTABLE_ENVIRONMENT
from suite.record.schema import Learned, parse
from tests.runs import new_run

ROUNDING = 0.0 if PORTABLE_ENVIRONMENT.items() <= os.environ.items() else 2e-3
"""By which a run in this process may differ from one that is learned, whose arithmetic is the portable one: Lion's
signs make whole steps of what is a rounding where a moment is near zero."""

GPT = Setting(baseline="gpt", size="pico", steps=20)


@pytest.fixture(scope="module")
def lion() -> Learned:
    return learn(Job(setting=GPT, stack="lion"))


def test_it_is_the_run_that_anybody_trains(lion: Learned) -> None:
    """The same losses as of a run in this process: evaluations and blocks on the way change nothing."""
    run = new_run("gpt", "lion", size="pico", steps=20)
    losses = run.train(20)
    assert lion.train_loss == pytest.approx(losses, rel=max(ROUNDING, 1e-5))
    ends = [run.evaluate(part)["loss"] for part in ("validation", "test")]
    assert lion.final and lion.final.step == 20
    assert [lion.curve[-1].loss, lion.final.loss] == pytest.approx(ends, rel=ROUNDING, abs=0)


def test_a_record_has_its_curve_and_reads_back(lion: Learned) -> None:
    steps = [each.step for each in lion.curve]
    assert steps == [20 * number // EVALUATIONS for number in range(EVALUATIONS + 1)]
    assert len(lion.train_loss) <= LOSSES
    assert lion.cpu_s and lion.cpu_s > 0
    assert parse(lion.model_dump_json()) == lion
    json.loads(lion.model_dump_json(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def test_a_seed_decides_a_run_to_the_bit_and_another_seed_another() -> None:
    """Side by side, in any order."""
    jobs = [Job(setting=GPT, seed=seed) for seed in (0, 1, 0)]
    runs = [learned for _, learned in learn_all(jobs, at_once=3)]
    hashes = {each.seed: {other.trajectory_sha256 for other in runs if other.seed == each.seed} for each in runs}
    assert len(runs) == 3 and all(len(each) == 1 for each in hashes.values())
    assert hashes[0] != hashes[1]


def test_a_run_of_two_steps_is_learned() -> None:
    short = learn(Job(setting=GPT.but(steps=2)))
    assert (short.status, [each.step for each in short.curve]) == ("ok", [0, 1, 2])


def test_a_failed_run_keeps_its_place_and_the_others_go_on() -> None:
    jobs = [Job(setting=GPT, stack="progressive_stacking+dp_ddp"), Job(setting=GPT)]
    ended = {job.stack: learned for job, learned in learn_all(jobs)}
    assert (ended["progressive_stacking+dp_ddp"].status, ended["baseline"].status) == ("failed", "ok")
    assert ended["progressive_stacking+dp_ddp"].reason and ended["progressive_stacking+dp_ddp"].final is None


def test_a_limit_ends_a_run() -> None:
    ended = learn(Job(setting=GPT), limits=Limits(train_s=1e-6))
    assert (ended.status, ended.cpu_s) == ("timeout", None)


@pytest.mark.parametrize(
    ("stack", "error"), [("lionn", UnknownId), ("lion+adamw", StackError), ("lion:x=1", StackError)]
)
def test_what_cannot_be_built_is_no_evidence(stack: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        learn(Job(setting=GPT, stack=stack))


def test_no_run_begins_after_time_is_up() -> None:
    started: list[int] = []

    def stop() -> bool:
        started.append(1)
        return len(started) > 2

    runs = list(learn_all([Job(setting=GPT.but(steps=2), seed=seed) for seed in range(5)], at_once=1, stop=stop))
    assert len(runs) == 2


def test_leaving_early_ends_what_still_trains() -> None:
    jobs = [Job(setting=GPT.but(steps=steps)) for steps in (2, 10**6)]
    runs = learn_all(jobs, at_once=2)
    next(runs)
    begin_s = time.monotonic()
    runs.close()  # type: ignore[attr-defined]
    assert time.monotonic() - begin_s < 60
    assert not CHILDREN


def test_no_more_cores_are_taken_than_there_are() -> None:
    free, most, taken, gate = Cores(3), 0, 0, threading.Lock()

    def work(wanted: int) -> None:
        nonlocal most, taken
        with free.taking(wanted):
            with gate:
                taken += min(wanted, 3)
                most = max(most, taken)
            time.sleep(0.01)
            with gate:
                taken -= min(wanted, 3)

    threads = [threading.Thread(target=work, args=(wanted,)) for wanted in (1, 2, 3, 1, 9, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert (most, taken) == (3, 0)
