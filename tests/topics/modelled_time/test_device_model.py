"""Constants of planted devices are found again."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from suite.record.operator_counts import HOST_ONLY, Operator, TracedStep, fields_of
from suite.record.placed import CountPlace
from suite.topics.modelled_time.device_model import CalibratedDevice, OperatorCosts, residuals, sample_errors
from suite.topics.modelled_time.device_samples import OperatorSample, OwnDevice, ReferenceStep, read, write

LAUNCH_S, BYTE_S, FLOP_S = 5e-6, 2e-10, 1e-11
VIEW = Operator("view", HOST_ONLY, kernels=0)
AT = CountPlace("gpt", "nano", "modern", "cpu", "pretrain")


def planted(operator: Operator) -> float:
    return LAUNCH_S + operator.moved_bytes * BYTE_S + operator.flops * FLOP_S


def add(size: int, name: str = "add", kind: str = "pointwise") -> Operator:
    return Operator(name, kind, read_bytes=2 * size, written_bytes=size)


def product(flops: int) -> Operator:
    return Operator("mm", "product", flops=flops, read_bytes=round(flops**0.6))


OPERATORS = [add(4**at) for at in range(4, 11)] + [product(8**at) for at in range(3, 9)]
SAMPLES = [OperatorSample(said=json.dumps(fields_of(each)), seconds=planted(each)) for each in OPERATORS]


def step_of(**counts: int) -> TracedStep:
    parts = {"small": add(1 << 10), "large": add(1 << 18), "mm": product(1 << 22), "view": VIEW}
    return TracedStep(Counter({parts[name]: count for name, count in counts.items()}))


STEPS = {
    "gpt": step_of(small=400, mm=60, view=900),
    "bert": step_of(small=150, large=20, mm=200, view=100),
    "vit": step_of(small=50, large=100, view=20),
    "mae": step_of(small=700, large=5, mm=10, view=2000),
}


def whole_s(step: TracedStep, cache: float = 1.5) -> float:
    """A step of a device whose host takes 3 us an operator and 1 us a view."""
    launched = sum(count for each, count in step if each != VIEW)
    operators = sum(count * planted(each) for each, count in step if each != VIEW)
    return cache * operators + 3e-6 * launched + 1e-6 * step.counts[VIEW]


def references(cache: float = 1.5) -> list[ReferenceStep]:
    return [
        ReferenceStep(place=AT._replace(baseline=name), traced=step.as_json(), step_s=whole_s(step, cache))
        for name, step in STEPS.items()
    ]


KNOWN = OwnDevice(machine="here", samples=SAMPLES, references=references())


def test_an_operator_takes_what_its_samples_say_also_between_and_beyond_them() -> None:
    costs = OperatorCosts(SAMPLES)
    for each in (add(3000), add(1 << 24), product(10**6), product(10**10)):
        assert costs.seconds(each) == pytest.approx(planted(each), rel=1e-6)
    assert max(abs(each) for own in sample_errors(KNOWN).values() for each in own) < 1e-6


def test_one_that_was_not_sampled_takes_what_its_type_or_class_does() -> None:
    costs = OperatorCosts(SAMPLES)
    assert costs.seconds(add(5000, "tanh")) == pytest.approx(planted(add(5000)))
    half = replace(product(1 << 20), dtype="bfloat16")
    assert costs.seconds(half) == pytest.approx(planted(half))
    with pytest.raises(ValueError, match="--calibrate"):
        OperatorCosts([]).seconds(add(1))


def test_whole_steps_give_the_host_and_the_cache_again() -> None:
    device = CalibratedDevice.of(KNOWN)
    assert device.cache == pytest.approx(1.5, rel=1e-3)
    other = step_of(small=90, large=9, mm=30, view=300)
    assert device.step_s(other) == pytest.approx(whole_s(other), rel=1e-3)
    assert device.step_s(other, steps=5) == pytest.approx(whole_s(other) / 5, rel=1e-3)
    with pytest.raises(ValueError, match="no reference step"):
        CalibratedDevice.of(KNOWN.model_copy(update={"references": []}))


def test_a_residual_is_of_a_baseline_that_the_fit_did_not_see() -> None:
    off = [
        each.model_copy(update={"step_s": 2 * each.step_s}) if each.place.baseline == "vit" else each
        for each in KNOWN.references
    ]
    before, after = (
        {each.place.baseline: error for each, error in residuals(known)}
        for known in (KNOWN, KNOWN.model_copy(update={"references": off}))
    )
    assert abs(before["vit"]) < 0.02 and after["vit"] == pytest.approx(before["vit"] - math.log(2))


def test_a_gpu_s_host_runs_beside_it() -> None:
    def both(step: TracedStep, host_s: float) -> ReferenceStep:
        device_s = 1.2 * sum(count * planted(each) for each, count in step if each != VIEW)
        return ReferenceStep(place=AT, traced=step.as_json(), step_s=max(device_s, host_s), host_s=host_s)

    def host_s(step: TracedStep) -> float:
        return 8e-6 * sum(count for each, count in step if each != VIEW)

    device = CalibratedDevice.fitted(
        OperatorCosts(SAMPLES), [both(each, host_s(each)) for each in STEPS.values()], side_by_side=True
    )
    assert device.cache == pytest.approx(1.2)
    tiny, large = step_of(small=100), step_of(large=100)
    assert device.step_s(tiny) == pytest.approx(host_s(tiny), rel=1e-3)
    assert device.step_s(large) == pytest.approx(1.2 * 100 * planted(add(1 << 18)))


def test_what_was_measured_is_kept(tmp_path: Any) -> None:
    write(KNOWN, tmp_path)
    assert read(tmp_path) == KNOWN and not read(tmp_path / "other").samples
    (tmp_path / "operators.json").write_text("{}")
    with pytest.raises(ValueError, match="--calibrate"):
        read(tmp_path)
