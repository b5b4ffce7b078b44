"""MESA against timm's average of weights in a loop of its own; what the average may touch, and what it costs."""

import math
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from timm.utils import ModelEmaV2
from torch import nn

from suite.entries.installed import baselines
from suite.loop.recipe import Recipe
from suite.loop.run import Run
from suite.loop.stack import Stack
from suite.loop.technique import ParameterGroups, Technique
from techniques.sharpness.saf_mesa.technique import SafMesa, average_in
from tests.runs import new_run


@dataclass
class Sgd(Technique):
    """Adam's first steps are signs, which magnify rounding."""

    def optimizer(self, parameters: ParameterGroups, recipe: Recipe) -> torch.optim.Optimizer:
        return torch.optim.SGD([p for group in parameters for p in group["params"]], lr=recipe.learning_rate)


def new(baseline: str = "vit", steps: int = 12, **techniques: Technique) -> Run:
    return new_run(baseline, Stack({"sgd": Sgd(), **techniques}), recipe="classic", seed=4, steps=steps)


@given(decay=st.floats(0, 0.999), seed=st.integers(0, 100))
@settings(max_examples=20, deadline=None)
def test_the_average_is_timms(decay: float, seed: int) -> None:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).double()
    theirs, ours = ModelEmaV2(model, decay=decay), ModelEmaV2(model, decay=decay).module
    for _ in range(5):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += torch.randn_like(parameter)
        theirs.update(model)
        average_in(ours, model, decay)
    for a, b in zip(ours.parameters(), theirs.module.parameters()):
        torch.testing.assert_close(a, b)
    assert all(torch.equal(a, b) for a, b in zip(ours.buffers(), model.buffers())), "statistics are copied, not mixed"


def test_update_by_update_a_loop_of_its_own() -> None:
    run = new(mesa=SafMesa(strength=0.7, temperature=4.0, decay=0.6, start=0.25))
    model = baselines()["vit"].model("nano", run.data)
    model.load_state_dict(run.model.state_dict())
    named = dict(model.named_parameters())
    average = ModelEmaV2(model, decay=0.6)
    for step in range(8):
        batch, indices = run.next_batch()
        run.train_step(batch, indices)
        out = model(batch["pixel_values"])
        loss = F.cross_entropy(out, batch["labels"])
        if step >= 3:
            with torch.no_grad():
                past = average.module(batch["pixel_values"])
            p, log_q = (past / 4).softmax(-1), (out / 4).log_softmax(-1)
            loss = loss + 0.7 * 16 * (p * (p.log() - log_q)).sum() / len(out)
        assert run.loss.item() == pytest.approx(loss.item(), rel=1e-4)
        gradients = torch.autograd.grad(loss, list(named.values()))
        total = torch.cat([each.flatten() for each in gradients]).norm().item()
        rate = run.recipe.learning_rate_at(step) * min(1.0, run.recipe.gradient_clip / (total + 1e-6))
        with torch.no_grad():
            for parameter, gradient in zip(named.values(), gradients):
                parameter -= rate * gradient
        average.update(model)
        for name, ours in run.model.named_parameters():
            torch.testing.assert_close(ours.detach(), named[name].detach(), rtol=1e-4, atol=1e-6)


def test_the_average_only_teaches() -> None:
    """What is evaluated is what was trained; the script's best checkpoint is that of the average."""
    mesa = SafMesa(decay=0.9, start=0.0)
    run, plain = new(mesa=mesa), new()
    run.train(4)
    plain.model.load_state_dict(run.model.state_dict())
    assert mesa.teacher is not None
    before = [p.clone() for p in mesa.teacher.parameters()]
    assert run.evaluate() == plain.evaluate()
    assert all(torch.equal(a, b) for a, b in zip(before, mesa.teacher.parameters()))
    assert not any(torch.equal(a, b) for a, b in zip(before, run.model.parameters()) if a.ndim >= 2)
    assert not mesa.teacher.training and run.model.training
    assert all(p.grad is None and not p.requires_grad for p in mesa.teacher.parameters())
    trained = {id(p) for group in run.optimizer.param_groups for p in group["params"]}
    assert not trained & {id(p) for p in mesa.teacher.parameters()}
    assert [p.shape for p in mesa.teacher.parameters()] == [p.shape for p in run.model.parameters()], "one copy"


def test_a_model_that_grows_gets_a_new_average() -> None:
    mesa = SafMesa(start=0.0)
    run = new(mesa=mesa)
    run.train(2)
    blocks = [block.module for block in run.anatomy.blocks]
    run.anatomy.set_blocks([*blocks, *(baselines()["vit"].model("nano", run.data).blocks[:1])])  # type: ignore[index]
    run.adopt(run.model)
    assert all(math.isfinite(loss) for loss in run.train(2))
    assert mesa.teacher is not None and len(list(mesa.teacher.parameters())) == len(list(run.model.parameters()))
