"""float16 training: the scaler's states beside torch's, exact scaling, masters, the order of stacks, and refusals."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from suite.loop.run import Diverged, Run
from suite.loop.stack import Stack
from techniques.precision.amp_fp16.technique import (
    PATIENCE,
    LossScale,
    MixedPrecision,
    next_scale,
    unscale,
)
from tests.runs import new_run

VARIANTS = ("autocast", "o2")


def running(variant: str = "autocast", baseline: str = "gpt", stack: str = "{}") -> Run:
    return new_run(baseline, stack.format(f"amp_fp16:variant={variant}"), size="pico", recipe="classic", steps=6)


def technique_of(run: Run) -> MixedPrecision:
    assert isinstance(run.technique, Stack)
    technique = run.technique.techniques["amp_fp16"]
    assert isinstance(technique, MixedPrecision)
    return technique


@given(st.lists(st.booleans(), max_size=40))
@settings(max_examples=30)
def test_the_scale_goes_as_torchs(finite: list[bool]) -> None:
    interval = 3
    scaler = torch.amp.GradScaler("cpu", growth_interval=interval)
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight])
    state = LossScale()
    for each in finite:
        assert scaler.scale(torch.ones(1)).item() == state.scale
        weight.grad = torch.tensor([1.0 if each else math.inf])
        scaler.step(optimizer)
        scaler.update()
        state = next_scale(state, each, interval=interval)
    assert scaler.get_scale() == state.scale


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_what_is_not_finite_is_seen_in_any_gradient(value: float) -> None:
    gradients = [torch.ones(3), torch.ones(5), torch.ones(0)]
    gradients[1][4] = value
    assert unscale(gradients, 2.0).item()
    assert torch.equal(gradients[0], torch.full((3,), 0.5))
    assert not unscale([], 2.0).item()


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_first_step_is_a_float32_runs_within_half_precision(variant: str) -> None:
    run, plain = running(variant), new_run("gpt", size="pico", recipe="classic", steps=6)
    for each in (run, plain):
        each.recipe = each.recipe.__class__(**{**each.recipe.as_dict(), "gradient_clip": 0.0})
        each.train(1)
    for mine, theirs in zip(run.model.parameters(), plain.model.parameters(), strict=True):
        assert mine.grad is not None
        assert theirs.grad is not None
        assert mine.dtype == mine.grad.dtype == torch.float32
        assert (mine.grad - theirs.grad).norm() <= 0.02 * theirs.grad.norm() + 1e-7


def test_a_resumed_run_goes_on_to_the_bit_with_its_scale(tmp_path: Path) -> None:
    whole, half, resumed = (running() for _ in range(3))
    for run in (whole, half):
        technique_of(run).scaling = LossScale(2.0**12, 1998)
    losses = whole.train(4)
    half.train(1)
    half.save(tmp_path / "half.pt")
    resumed.load(tmp_path / "half.pt")
    assert technique_of(resumed).scaling == LossScale(2.0**12, 1999)
    assert resumed.train(3) == losses[1:]
    assert technique_of(resumed).scaling == technique_of(whole).scaling == LossScale(2.0**13, 2)
    for mine, other in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(mine, other)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_scale_that_is_far_too_large_comes_down_and_weights_stay(variant: str) -> None:
    run = running(variant)
    technique_of(run).scaling = LossScale(2.0**40)
    before = [each.detach().clone() for each in run.model.parameters()]
    run.train(2)
    assert technique_of(run).scaling == LossScale(2.0**38, 0, 2)
    assert all(map(torch.equal, before, run.model.parameters()))
    assert not run.optimizer.state


def test_ten_overflows_running_end_with_a_sentence() -> None:
    run = running("o2")
    next(run.model.parameters()).register_hook(lambda gradient: gradient * math.nan)
    run.train(PATIENCE - 1)
    with pytest.raises(Diverged, match=r"not finite in 10 steps running, to step 10, .* train in bfloat16"):
        run.train(1)
    assert {each.dtype for each in run.model.parameters()} == {torch.float32}


def test_losses_are_logged_unscaled_and_evaluation_is_in_float16() -> None:
    run = running()
    assert run.train(1)[0] < 10
    with run.predicting() as predict:
        assert predict(run.next_batch()[0]).logits.dtype == torch.float16


@pytest.mark.parametrize(("stack", "instead"), [("{}+saf", r"saf\+amp_fp16"), ("rigl+{}", r"amp_fp16\+rigl")])
def test_the_order_of_a_stack_is_refused_where_it_matters(stack: str, instead: str) -> None:
    with pytest.raises(ValueError, match=f"write {instead}"):
        running(baseline="vit", stack=stack)


def test_o2_refuses_updates_of_another() -> None:
    with pytest.raises(ValueError, match=r"sam makes updates of its own, .*: use autocast"):
        running("o2", stack="{}+sam")


@pytest.mark.parametrize(
    ("stack", "variant"),
    [("saf+{}", "o2"), ("{}+rigl", "o2"), ("{}+lion", "autocast"), ("{}+sam", "autocast")],
)
def test_the_other_order_trains(stack: str, variant: str) -> None:
    run = running(variant, "vit", stack)
    assert all(map(math.isfinite, run.train(2)))
    assert technique_of(run).scaling.overflows == 0
