"""A timing: lock-step in balanced random order, each side's failure its own, compressed where the cost changes."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from typing import Any

import pytest

from suite.entries.catalogue import UnknownId
from suite.entries.sources import code_of
from suite.judge.known import timed_pair
from suite.loop.data import mixed_seed
from suite.measure.contenders.worker import Session
from suite.measure.timing import LEAST_ROUNDS, STEPS, Protocol, time_together
from suite.record.job import Job, Setting, StackError
from suite.record.schema import FIFTHS, Timed, parse

GPT = Setting(baseline="gpt", size="pico", steps=40)


def timed(stacks: Sequence[str], setting: Setting = GPT, replicate: int = 0, **protocol: Any) -> Timed:
    return time_together(setting, stacks, replicate, Protocol(**{"rounds": 3} | protocol))


@pytest.fixture(scope="module")
def three() -> Timed:
    return timed(("baseline", "baseline", "lion"))


def test_all_pass_through_the_same_rounds_in_random_balanced_order(three: Timed) -> None:
    assert len(three.orders) == 3
    assert all(sorted(order) == [0, 1, 2] for order in three.orders)
    assert sorted(three.spawn_order) == [0, 1, 2]
    for each in three.contenders:
        (window,) = each.windows
        assert (window.progress, window.block_steps, len(window.block_s)) == (0.0, STEPS, 3)
        assert all(seconds > 0 for block in window.block_s for seconds in block)
        assert each.setup_s and each.warmup_s and each.cpu_s and each.memory.process_peak_bytes
        assert (each.status, each.steps, each.warmup_steps) == ("ok", 40, STEPS)


def test_orders_and_spawn_orders_vary_with_the_replicate() -> None:
    stacks = ("baseline", "lion")
    coins = [random.Random(mixed_seed(replicate, *map(ord, "".join(stacks)))) for replicate in range(400)]
    first = sum(coin.sample(range(2), 2)[0] for coin in coins)
    assert 150 < first < 250


def test_it_says_what_was_run_and_survives_storage(three: Timed) -> None:
    conditions = three.conditions
    assert (conditions.baseline, conditions.steps, conditions.threads) == ("gpt", 40, 1)
    assert len(conditions.data_sha256) == 64
    assert [each.code for each in three.contenders] == [code_of(GPT, each.stack) for each in three.contenders]
    assert three.contenders[0].code != three.contenders[2].code
    line = three.model_dump_json()
    assert parse(line) == three
    json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert math.isfinite(timed_pair(three, 2).log_cost)


def test_one_after_the_other_makes_the_same_blocks() -> None:
    alone = timed(("baseline", "lion"), sequential=True)
    assert alone.pairing == "sequential"
    assert [len(each.windows[0].block_s) for each in alone.contenders] == [3, 3]
    assert math.isfinite(timed_pair(alone, 1).log_cost)


def test_a_block_is_as_much_of_each_run_and_short_runs_have_fewer_rounds() -> None:
    short = timed(("baseline", "linear_scaling_warmup:k=2"), GPT.but(steps=12), rounds=40)
    assert [each.steps for each in short.contenders] == [12, 6]
    assert [each.windows[0].block_steps for each in short.contenders] == [2, 1]
    assert {len(each.windows[0].block_s) for each in short.contenders} == {2}


def test_where_the_cost_changes_a_compressed_run_is_timed_in_every_fifth() -> None:
    """Without a learned run: it goes through its whole schedule in as few steps as the rounds take."""
    protocol = Protocol(windows=FIFTHS, rounds=10)
    long = GPT.but(steps=10 * protocol.compressed_steps)
    evidence = timed(("baseline", "progressive_stacking"), long, windows=FIFTHS, rounds=10)
    assert [each.status for each in evidence.contenders] == ["ok", "ok"], evidence.contenders[1].reason
    assert {each.steps for each in evidence.contenders} == {long.steps}, "what it says is of the whole run"
    for each in evidence.contenders:
        assert [window.progress for window in each.windows] == pytest.approx([0, 0.2, 0.4, 0.6, 0.8])
        assert {len(window.block_s) for window in each.windows} == {LEAST_ROUNDS}


def test_a_compressed_run_grows_as_the_whole_one_does() -> None:
    """The one block of two is stacked at 3/10 of the run."""
    job = Job(setting=GPT.but(steps=1000), stack="progressive_stacking")
    session = Session(job, 0, 1, "")
    session.prepare(False)
    assert session.set_up(recorded=False, nudge=0, tallied=False, counted=False)["steps"] == 1000
    depths = [len(session.run.anatomy.blocks)]
    assert session.compress(20)["steps"] == 20
    for _ in range(4):
        session.block(5)
        depths.append(len(session.run.anatomy.blocks))
    assert depths == [1, 1, 2, 2, 2]


def test_a_reference_that_fails_stops_the_others_with_the_reason() -> None:
    evidence = timed(("progressive_stacking+dp_ddp", "lion"))
    assert [each.status for each in evidence.contenders] == ["failed", "failed"]
    assert evidence.contenders[1].reason == "stopped because the reference failed"


@pytest.mark.parametrize(
    ("stack", "error"), [("lionn", UnknownId), ("lion+adamw", StackError), ("lion:x=1", StackError)]
)
def test_what_cannot_be_built_is_no_evidence(stack: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        timed(("baseline", stack))
