"""Samples of this device's operators: each of one signature, each clocked; and a baseline's whole step."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

from suite.cli import app
from suite.topics.modelled_time.own_device import samples
from suite.topics.modelled_time.own_device.operator_calls import LADDERS, calls
from suite.topics.modelled_time.own_device.samples import noted, sampled
from suite.topics.modelled_time.own_device.steps import reference_step, settings_of

SMALL = replace(
    LADDERS["cpu"],
    elements=(256,),
    products=((8, 16, 24),),
    batched=((2, 3, 4, 5),),
    attentions=((1, 2, 8, 4),),
    sizes=("pico",),
)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LADDERS, "cpu", SMALL)  # type: ignore[arg-type]
    monkeypatch.setattr(samples, "BATCHES", {"cpu": 1})
    monkeypatch.setattr(samples, "BATCH_S", 0.0)


@pytest.mark.usefixtures("small")
def test_each_call_runs_one_operator_and_what_a_step_needs_is_among_them() -> None:
    names = [noted(call) for call in calls("cpu", torch.float32)]
    kinds = Counter(each.kind for each in names)
    assert {"product", "attention", "norm", "softmax", "loss", "index", "random", "cast", "transposing copy"} <= set(
        kinds
    )
    product = next(each for each in names if each.name == "addmm")
    assert product.flops == 2 * 8 * 16 * 24 and product.product == (1, 8, 24, 16)
    assert {each.phase for each in names if each.kind == "attention"} == {"forward", "backward"}


@pytest.mark.usefixtures("small")
def test_samples_are_kept_with_why_others_are_none() -> None:
    known, refused = sampled("cpu")
    assert len(known) > 150 and all(each.seconds > 0 and each.host_s == 0 for each in known)
    assert {each.operator.dtype for each in known} >= {"float32", "bfloat16"}
    assert all(refused.values())


def test_a_call_of_several_operators_is_no_sample() -> None:
    x = torch.ones(4)
    with pytest.raises(ValueError, match="2 operators run: add, mul"):
        noted(lambda: (x + x) * x)


@pytest.mark.usefixtures("small")
def test_a_reference_s_step_is_traced_and_clocked() -> None:
    settings = list(settings_of("cpu"))
    assert {(each.size, each.recipe) for each in settings} == {("pico", "classic"), ("pico", "modern")}
    step = reference_step(next(each for each in settings if each.baseline == "gpt"))
    assert step.step_s > 0 and step.host_s == 0 and step.step.flops > 0


def test_the_command_refuses_techniques_beside_a_calibration() -> None:
    done = CliRunner().invoke(app, ["kernels", "lion", "--calibrate"])
    assert done.exit_code == 2 and "leave out techniques" in done.output
