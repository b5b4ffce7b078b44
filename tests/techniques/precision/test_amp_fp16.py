"""Mixed precision: the loss scale step by step, torch's scaler as oracle, resumption, runs that no scale helps."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from suite.contract.run import Diverged
from techniques.precision.amp_fp16.technique import AmpFp16, LossScale, after_step, unscaled
from tests.runs import new_run


@given(st.lists(st.booleans(), max_size=30), st.integers(1, 4))
def test_the_scale_is_torchs(finite: list[bool], interval: int) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=interval)
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    state = LossScale(1024.0)
    for each in finite:
        scaler.scale((weight * (1.0 if each else math.inf)).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        state = after_step(state, each, interval=interval)
        assert state.scale == scaler.get_scale() and state.good_steps == scaler._get_growth_tracker()


def test_unscaling_divides_in_place_and_tells_the_infinite() -> None:
    gradients = [torch.tensor([2.0, 4.0]), torch.tensor([8.0])]
    assert unscaled(gradients, 2.0)
    assert [each.tolist() for each in gradients] == [[1.0, 2.0], [4.0]]
    assert not unscaled([torch.tensor([1.0, math.nan])], 2.0)
    assert unscaled([], 2.0)


def test_a_run_is_autocast_with_torchs_scaler() -> None:
    run = new_run("gpt", "amp_fp16:scale=1024", size="pico", recipe="classic", steps=6)
    plain = new_run("gpt", size="pico", recipe="classic", steps=6)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for _ in range(4):
        batch, _ = plain.next_batch()
        plain.optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            outputs = plain.baseline.forward(plain.model, batch)
        loss = plain.baseline.losses(outputs, batch).mean()
        scaler.scale(loss).backward()
        scaler.unscale_(plain.optimizer)
        plain._set_learning_rate()
        plain.clip_gradients(plain.recipe.gradient_clip)
        scaler.step(plain.optimizer)
        scaler.update()
        plain.position += plain.recipe.batch_size
        plain.step += 1
        run.train(1)
        assert run.loss == loss.detach()
    for ours, theirs in zip(run.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("name", ["amp_fp16:interval=2", "amp_bf16"])
def test_a_resumed_run_goes_on_to_the_bit(name: str, tmp_path: Path) -> None:
    run, other = (new_run("bert", name, size="pico", recipe="classic", steps=6) for _ in range(2))
    run.train(3)
    run.save(tmp_path / "run.pt")
    other.load(tmp_path / "run.pt")
    assert run.train(3) == other.train(3)


@pytest.mark.parametrize("name", ["amp_fp16", "amp_bf16"])
@pytest.mark.parametrize("baseline", ["vit", "mae"])
def test_a_run_stays_near_the_one_in_float32(name: str, baseline: str) -> None:
    plain, ours = (
        new_run(baseline, each, size="pico", recipe="classic", steps=10).train(10) for each in ("baseline", name)
    )
    assert ours != plain and all(math.isclose(a, b, rel_tol=0.02) for a, b in zip(ours, plain, strict=True))


def test_gradients_that_stay_infinite_end_the_run() -> None:
    run = new_run("gpt", AmpFp16(patience=3), size="pico", recipe="classic", steps=9)
    before = [each.detach().clone() for each in run.model.parameters()]
    next(run.model.parameters()).register_hook(lambda gradient: gradient * math.inf)
    with pytest.raises(Diverged, match="not finite in 3 steps running, down to a loss scale of 16384"):
        run.train(9)
    assert all(map(torch.equal, run.model.parameters(), before))


@pytest.mark.parametrize(
    "settings", [{"scale": 0}, {"backoff": 1.0}, {"growth": 0.5}, {"interval": 0}, {"patience": 0}]
)
def test_bad_settings_say_what_fits(settings: Any) -> None:
    with pytest.raises(ValueError, match=r"is above 0|are 1 step or more"):
        AmpFp16(**settings)
