"""A replicate of a comparison: lock-step in balanced random order, one seed for all, the same result in any pairing."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

import pytest
from suite.measure.comparison import Comparison, Procedure, silent, train_in_lock_step

from suite.contract.catalogue import UnknownId
from suite.contract.data import mixed_seed
from suite.record.job import Setting, StackError, canonical
from suite.record.schema import Record, parse

STEPS, ROUNDS = 12, 3


def compared(stacks: Sequence[str], seed: int = 0, **changes: Any) -> Record:
    progress, rounds = changes.pop("progress", silent), changes.pop("rounds", ROUNDS)
    procedure = {name: changes.pop(name, False) for name in ("sequential", "finish", "equal_time")}
    setting = Setting(**{"baseline": "gpt", "recipe": "classic", "steps": STEPS} | changes)
    return train_in_lock_step(Comparison(setting, tuple(stacks), rounds), seed, Procedure(**procedure), progress)


@pytest.fixture(scope="module")
def record() -> Record:
    return compared(("baseline", "baseline", "lion"), finish=True)


def test_all_pass_through_the_same_rounds_in_random_balanced_order(record: Record) -> None:
    assert len(record.orders) == ROUNDS
    assert all(sorted(order) == [0, 1, 2] for order in record.orders)
    assert sorted(record.spawn_order) == [0, 1, 2]
    for each in record.contenders:
        assert len(each.block_s) == len(each.block_steps) == ROUNDS
        assert all(seconds > 0 for block in each.block_s for seconds in block)
        assert sum(map(sum, each.block_steps)) == each.steps == len(each.train_loss) == STEPS


def test_orders_and_spawn_orders_vary_with_the_seed() -> None:
    stacks = ("baseline", "lion")
    coins = [random.Random(mixed_seed(seed, *map(ord, "".join(stacks)))) for seed in range(400)]
    first = sum(coin.sample(range(2), 2)[0] for coin in coins)
    assert 150 < first < 250


def test_a_comparison_with_itself_is_equal_to_the_bit(record: Record) -> None:
    one, two, other = record.contenders
    assert one.train_loss == two.train_loss != other.train_loss
    assert one.curve == two.curve
    assert one.counters == two.counters
    assert one.counters != other.counters


def test_evaluations_lie_between_the_rounds_from_start_to_end(record: Record) -> None:
    for each in record.contenders:
        steps = [point.step for point in each.curve]
        assert steps[0] == 0
        assert steps[-1] == STEPS
        assert steps == sorted(set(steps))


def test_the_record_says_what_was_run_and_survives_storage(record: Record) -> None:
    conditions = record.conditions
    assert (conditions.baseline, conditions.steps, conditions.threads) == ("gpt", STEPS, 1)
    assert len(conditions.data_sha256) == 64
    assert [set(each.sources) for each in record.contenders] == [set(), set(), {"lion"}]
    assert all(each.recipe["steps"] == STEPS for each in record.contenders)
    assert 0 < record.harness_s < record.duration_s
    line = record.model_dump_json()
    assert parse(line) == record
    json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def test_pairing_decides_times_and_nothing_else(record: Record) -> None:
    alone = compared(("baseline", "lion"), sequential=True, finish=True)
    assert (alone.pairing, record.pairing) == ("sequential", "interleaved")
    for each in alone.contenders:
        twin = next(other for other in record.contenders if other.stack == each.stack)
        assert (each.train_loss, each.curve, each.counters) == (twin.train_loss, twin.curve, twin.counters)


def test_fewer_steps_make_fewer_rounds() -> None:
    short = compared(("baseline", "lion"), steps=5, rounds=40)
    assert len(short.orders) == 2
    assert [sum(map(sum, each.block_steps)) for each in short.contenders] == [5, 5]


def test_progress_never_goes_back() -> None:
    shares: list[float] = []
    compared(("baseline", "baseline"), steps=4, progress=lambda share, what: shares.append(share))
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


@pytest.mark.parametrize(
    ("stack", "error"), [("lionn", UnknownId), ("lion+adamw", StackError), ("lion:x=1", StackError)]
)
def test_what_cannot_be_built_is_no_replicate(stack: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        compared(("baseline", stack))


def test_a_reference_that_fails_stops_the_others_with_the_reason() -> None:
    record = compared(("baseline", "lion"), data="/no/such/folder")
    assert [each.status for each in record.contenders] == ["failed", "failed"]
    assert all("/no/such/folder" in each.reason or "reference" in each.reason for each in record.contenders)


def test_equal_stacks_have_one_spelling() -> None:
    assert canonical("lion:beta2=0.9,beta1=0.8 + sam") == canonical("lion: beta1=0.8, beta2=0.9+sam")
    assert canonical("") == canonical("baseline") == "baseline"
