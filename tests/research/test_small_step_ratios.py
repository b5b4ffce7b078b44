"""Ratios of steps on a planted device: both sides are modelled where both are traced, and agreement is by hand."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from research.small_steps.small_step_ratios import SmallStep, agreement, small_steps
from research.small_steps.small_step_traces import traced
from suite.record.job import Setting
from suite.record.operator_counts import Operator, TracedStep, fields_of
from suite.record.placed import CountPlace
from suite.topics.modelled_time.device_samples import OperatorSample, OwnDevice, ReferenceStep
from suite.topics.modelled_time.own_device.steps import reference_step
from suite.topics.modelled_time.step_traces import KeptTrace

AT = CountPlace("gpt", "nano", "modern", "cpu", "pretrain")
ADDS = [Operator("add", "pointwise", read_bytes=2 * size, written_bytes=size) for size in (1000, 4000, 16000, 64000)]
STEP = TracedStep(Counter({ADDS[0]: 400, ADDS[2]: 60}))
KNOWN = OwnDevice(
    machine="here",
    samples=[OperatorSample(said=json.dumps(fields_of(add)), seconds=5e-6 + 2e-10 * add.moved_bytes) for add in ADDS],
    references=[ReferenceStep(place=AT, traced=STEP.as_json(), step_s=0.01)],
)


def test_a_step_in_each_fifth_of_a_run_is_traced() -> None:
    setting = Setting(baseline="gpt", size="pico", recipe="modern")
    step, steps = traced("baseline", setting)
    once = reference_step(setting).step
    assert steps == 5 and step.flops == 5 * once.flops


def row(stack: str, ratio: float, machine: str = "here", **conditions: Any) -> Any:
    at = {"baseline": "gpt", "size": "nano", "recipe": "modern", "task": "pretrain", "device": "cpu", "model": None}
    value = SimpleNamespace(kind="measured", control=False, number=ratio)
    return SimpleNamespace(
        stack=stack,
        reference="baseline",
        conditions=SimpleNamespace(**(at | conditions)),
        split_over=1,
        machine=SimpleNamespace(name=machine),
        value=lambda name: value,
        unverified=(),
        newer_version=None,
    )


def test_rows_are_modelled_where_both_sides_are_traced() -> None:
    twice = TracedStep(Counter({each: 2 * count for each, count in STEP}))
    traces = {
        (AT, "baseline"): KeptTrace("c", STEP),
        (AT, "twice"): KeptTrace("c", twice),
        (AT, "five"): KeptTrace("c", twice, steps=2),
        (AT, "ranks"): KeptTrace("c", unavailable="it shares"),
    }
    rows = [
        row("twice", 1.9),
        row("five", 1.1, "there"),
        row("ranks", 3.0),
        row("other", 2.0),
        row("twice", 5.0, size="micro"),
        row("twice", 5.0, device="cuda"),
    ]
    found = small_steps(rows, traces, KNOWN)
    assert [(each.stack, each.measured, pytest.approx(each.modelled)) for each in found.steps] == [
        ("twice", 1.9, 2.0),
        ("five", 1.1, 1.0),
    ]
    assert [each.stack for each in found.own] == ["twice"] and found.why_not == {"it shares": 1, "not traced": 1}


def test_agreement_by_hand() -> None:
    pairs = [(0.5, 0.6), (1.0, 1.1), (2.0, 1.4), (4.0, 3.9)]
    steps = [SmallStep(AT, "here", str(at), "baseline", *pair, True) for at, pair in enumerate(pairs)]
    of = agreement(steps)
    assert of.spearman == 1.0 and of.count == of.techniques == 4 and of.direction == 1.0 and of.within == 0.75
    assert of.error == pytest.approx((math.log(1.1) + math.log(1.2)) / 2)
    backwards = [replace(each, modelled=1 / each.modelled) for each in steps]
    assert agreement(backwards).spearman == -1.0 and agreement(backwards).direction == 0.0
    with pytest.raises(ValueError, match="no rank correlation"):
        agreement(steps[:2])
