"""Counts are exact: twice the same, equal to those of a real run, once for each fifth where the cost changes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suite.entries.sources import code_of
from suite.measure.contenders.stock import data_of
from suite.measure.counting import STEPS, count, counted_steps
from suite.meters.holders import Living
from suite.record.job import Setting
from suite.record.schema import FIFTHS, parse
from tests.runs import new_run

GPT = Setting(baseline="gpt", size="pico")


def test_a_steady_run_has_one_count_and_it_is_that_of_a_real_step() -> None:
    evidence = count(GPT, "lion")
    (point,) = evidence.points
    before = Living()
    run = new_run("gpt", "lion", size="pico", steps=STEPS)
    run.train(5)
    with before.left_out(*data_of(run)):
        assert point.counters == run.count_step()
    assert evidence.code == code_of(GPT, "lion")
    assert evidence.conditions.steps != STEPS, "counts are of the whole run's conditions"
    assert parse(evidence.model_dump_json()) == evidence
    probes = evidence.probes
    assert probes["lion.against"] == 0 and probes["lion.rate"] == pytest.approx(0.1)


def test_what_recorded_steps_show_is_counted_of_a_technique_alone() -> None:
    both = count(GPT, "lion+rigl")
    assert both.status == "ok" and both.points and both.probes == {}


def test_a_run_that_grows_has_a_count_for_each_fifth() -> None:
    points = count(GPT, "progressive_stacking").points
    assert [each.progress for each in points] == [0.1, 0.3, 0.5, 0.7, 0.9]
    flops = [each.counters.flops for each in points]
    assert flops == sorted(flops) and flops[0] < flops[-1]


def test_ranks_say_what_they_send() -> None:
    (point,) = count(GPT, "dp_ddp").points
    gradients = 4 * point.counters.trainable_parameter_count
    assert point.counters.communication_bytes is not None
    assert gradients <= point.counters.communication_bytes <= 1.1 * gradients
    assert point.counters.ranks == 2
    (alone,) = count(GPT, "baseline").points
    assert alone.counters.ranks == 1 and alone.counters.flops == 2 * point.counters.flops


def test_what_fails_is_evidence() -> None:
    evidence = count(GPT, "progressive_stacking+dp_ddp")
    assert (evidence.status, evidence.points) == ("failed", [])
    assert evidence.reason


@given(st.integers(2, 10_000))
def test_each_fifth_is_counted_once_and_never_the_first_step(steps: int) -> None:
    numbers = counted_steps(steps)
    assert numbers == sorted(set(numbers))
    assert numbers[0] >= 1 and numbers[-1] < steps
    if steps >= 2 * FIFTHS:
        assert [number * FIFTHS // steps for number in numbers] == list(range(FIFTHS))


def test_the_counts_do_not_depend_on_the_seed_of_the_process() -> None:
    bert = Setting(baseline="bert", size="pico")
    assert count(bert, "baseline").points == count(bert, "baseline").points
