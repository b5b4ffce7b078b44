"""SAM against a loop of its own; weights that move and come back; running statistics; steps that are left out."""

import copy
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from suite.entries.spelling import build
from suite.loop.recipe import Recipe
from suite.loop.run import Run
from suite.loop.stack import Stack
from suite.loop.technique import ParameterGroups
from techniques.sharpness.sam.technique import Sam
from techniques.sharpness.shared.ascent import ascend, restore
from tests.runs import Planted, new_run


def parameters(seed: int = 0) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    made = [nn.Parameter(torch.randn(shape, generator=generator) * 0.3) for shape in [(40, 30), (30,), (7, 5, 3)]]
    for parameter in made:
        parameter.grad = torch.randn(parameter.shape, generator=generator) * 3
    return made


def test_weights_come_back_to_the_bit_where_subtraction_would_not() -> None:
    weights = parameters()
    copies, addresses = [p.detach().clone() for p in weights], [p.data_ptr() for p in weights]
    before = ascend(weights, 0.05)
    subtracted = [p.detach() - p.grad for p in weights if p.grad is not None]
    assert all(p.data_ptr() != address for p, address in zip(weights, addresses))
    restore(weights, before)
    assert all(torch.equal(p, copied) for p, copied in zip(weights, copies))
    assert [p.data_ptr() for p in weights] == addresses, "so that optimizers' tables of addresses stay"
    assert not all(torch.equal(s, copied) for s, copied in zip(subtracted, copies))


def flattened(weights: list[nn.Parameter]) -> None:
    flat = torch.cat([p.detach().flatten() for p in weights])
    for p, part in zip(weights, flat.split([p.numel() for p in weights])):
        p.data = part.view(p.shape)


def tied(weights: list[nn.Parameter]) -> None:
    weights.append(nn.Parameter(weights[0].detach()))
    weights[-1].grad = torch.zeros_like(weights[0])


@pytest.mark.parametrize("shared", [flattened, tied])
def test_weights_that_others_read_too_move_in_place(shared: Any) -> None:
    weights, plain = parameters(), parameters()
    shared(weights)
    copies, addresses = [p.detach().clone() for p in weights], [p.data_ptr() for p in weights]
    before, _ = ascend(weights, 0.05), ascend(plain, 0.05)
    assert [p.data_ptr() for p in weights] == addresses
    for p, other in zip(weights, plain):
        torch.testing.assert_close(p.detach(), other.detach())
    restore(weights, before)
    assert all(torch.equal(p, copied) for p, copied in zip(weights, copies))


@pytest.mark.parametrize("way", ["away", "back"])
def test_a_graph_of_other_weights_does_not_go_backward(way: str) -> None:
    weights = parameters()
    loss = weights[0].square().sum()
    before = ascend(weights, 0.05)
    if way == "back":
        loss = weights[0].square().sum()
        restore(weights, before)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_zero_gradient_perturbs_nothing() -> None:
    weights = parameters()
    for each in weights:
        each.grad = torch.zeros_like(each)
    before = ascend(weights, 0.05)
    assert all(torch.equal(p, b) for p, b in zip(weights, before))


@dataclass
class Momentum(Planted):
    """Adam's first steps are signs, which magnify rounding."""

    def optimizer(self, parameters: ParameterGroups, recipe: Recipe) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=recipe.learning_rate, momentum=0.9)


@pytest.mark.parametrize("adaptive", [False, True])
def test_update_by_update_a_loop_of_its_own(adaptive: bool) -> None:
    """With schedule and clipping, from the formulas of SAM and of ASAM."""
    sam: Any = Sam(rho=0.5, adaptive=adaptive)
    run = new_run("vit", Stack({"sam": sam, "momentum": Momentum()}), recipe="classic", seed=2, steps=8)
    model = copy.deepcopy(run.model)
    weights = [p for group in run.default_parameters() for p in group["params"]]
    names = {id(p): name for name, p in run.model.named_parameters()}
    named = dict(model.named_parameters())
    ours = [named[names[id(p)]] for p in weights]
    decays = [0.0 if p.ndim < 2 else run.recipe.weight_decay for p in ours]
    optimizer = Momentum().optimizer([{"params": [p], "weight_decay": d} for p, d in zip(ours, decays)], run.recipe)
    for step in range(5):
        batch, indices = run.next_batch()
        run.train_step(batch, indices)
        gradients = torch.autograd.grad(F.cross_entropy(model(batch["pixel_values"]), batch["labels"]), ours)
        before = [p.detach().clone() for p in ours]
        t = [p.abs() + 0.01 if adaptive and p.ndim >= 2 else torch.ones_like(p) for p in before]
        length = torch.cat([(a * g).flatten() for a, g in zip(t, gradients)]).norm()
        with torch.no_grad():
            for p, a, g in zip(ours, t, gradients):
                p += 0.5 * a * a * g / length
        gradients = torch.autograd.grad(F.cross_entropy(model(batch["pixel_values"]), batch["labels"]), ours)
        total = torch.cat([g.flatten() for g in gradients]).norm().item()
        with torch.no_grad():
            for p, old, g in zip(ours, before, gradients):
                p.copy_(old)
                p.grad = g * min(1.0, run.recipe.gradient_clip / (total + 1e-6))
        for group in optimizer.param_groups:
            group["lr"] = run.recipe.learning_rate_at(step)
        optimizer.step()
        for p, theirs in zip(ours, weights):
            torch.testing.assert_close(p.detach(), theirs.detach(), rtol=1e-4, atol=1e-6)


@dataclass
class BatchNorm(Planted):
    """A norm with running statistics before the head."""

    def model(self, model: nn.Module, run: Run) -> nn.Module:
        model.fc_norm = nn.BatchNorm1d(model.embed_dim)
        return model


@pytest.mark.parametrize("stack", ["sam:rho=5", "esam:rho=5", "saf_mesa:start=0", "sam:rho=5+saf_mesa:start=0"])
def test_running_statistics_are_the_first_passs(stack: str) -> None:
    built = build(stack)
    run = new_run("vit", Stack({"norm": BatchNorm(), **built.techniques}), recipe="classic", steps=4)
    model: Any = copy.deepcopy(run.model)
    batch, indices = run.next_batch()
    model(batch["pixel_values"])
    run.train_step(batch, indices)
    norm: Any = run.model.fc_norm
    assert norm.num_batches_tracked == 1
    assert torch.equal(norm.running_mean, model.fc_norm.running_mean)
    assert torch.equal(norm.running_var, model.fc_norm.running_var)


@pytest.mark.parametrize(
    ("stack", "value"), [("sam", float("nan")), ("sam:adaptive=true", float("inf")), ("esam:beta=1.0", float("inf"))]
)
def test_a_first_gradient_that_is_not_finite_leaves_the_update_out(stack: str, value: float) -> None:
    run = new_run("vit", stack, recipe="classic", steps=8)
    run.train(2)
    weights = copy.deepcopy(run.model.state_dict())
    moments = copy.deepcopy(run.optimizer.state_dict()["state"])
    passes = iter([value])
    handle = next(run.model.parameters()).register_hook(lambda gradient: gradient * next(passes, 1.0))
    run.train(1)
    handle.remove()
    assert next(passes, None) is None, "it was met"
    assert all(torch.equal(weights[name], tensor) for name, tensor in run.model.state_dict().items())
    now = run.optimizer.state_dict()["state"]
    assert all(torch.equal(each, now[key][name]) for key, held in moments.items() for name, each in held.items())
    run.train(1)
    assert not torch.equal(weights["pos_embed"], run.model.state_dict()["pos_embed"]), "and it goes on"


def test_weights_that_are_elsewhere_are_no_activations() -> None:
    counts = [new_run("vit", stack, recipe="classic", steps=4).count_step() for stack in ("baseline", "sam")]
    assert counts[0].saved_activation_bytes == counts[1].saved_activation_bytes
