"""A modelled energy is a ratio of its own kind, and is refused for processors without a model."""

from __future__ import annotations

import math

import pytest

from suite.judge.power_model import joules, watts_of
from tests.factories import MACHINE, evidence, row, rows


def test_the_model_by_hand() -> None:
    watts = watts_of("AMD EPYC 7R13 Processor")
    assert joules(watts, wall_s=10, processor_s=5, threads=2) == pytest.approx(0.474 * 20 + (1.693 - 0.474) * 5)
    with pytest.raises(ValueError, match="no power model of the processor Z80"):
        watts_of("Z80")


def test_a_run_of_half_the_time_on_one_thread_takes_half_the_energy() -> None:
    value = row("lion", pace_s=0.01).value("modelled_energy")
    assert value.kind == "modelled" and "EPYC" in value.note
    assert value.number == pytest.approx(row("lion", pace_s=0.01).value("training_time").number, rel=0.02)
    assert value.interval is not None and value.interval.low < value.number < value.interval.high


def test_without_a_model_it_is_unavailable_with_the_reason() -> None:
    other = MACHINE.model_copy(update={"facts": {"cpu": "Z80", "cores": 1}})
    lines = [
        line.model_copy(update={"machine": other}) if hasattr(line, "machine") else line for line in evidence("lion")
    ]
    value = next(each for each in rows(lines) if each.stack == "lion").value("modelled_energy")
    assert (value.kind, value.reason) == ("unavailable", "no power model of the processor Z80")
    assert math.isnan(value.number)
