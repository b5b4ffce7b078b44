"""Adam against torch's and Algorithm 1 in float64, the closed forms of its first step and bounds, BERT's variant."""

import math

import pytest
import torch
from torch import Tensor, nn

from suite.loop.recipe import Recipe
from techniques.optimizers.adam.technique import AdamTechnique, Form
from techniques.optimizers.adamw.technique import AdamW
from techniques.shared.adam import Adam, adam_step
from tests.runs import new_run

HYPER = {"learning_rate": 1.0, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8}


def gradients(count: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(31, 7, generator=generator, dtype=dtype) for _ in range(count)]


def trained(optimizer_of: type[torch.optim.Optimizer], scale: float = 1.0, **hyper: object) -> Tensor:
    """Where five steps lead, from fixed weights along fixed gradients."""
    parameter = nn.Parameter(torch.linspace(-1, 1, 31 * 7).reshape(31, 7))
    optimizer = optimizer_of([parameter], lr=1e-2, **hyper)  # type: ignore[call-arg]
    for gradient in gradients(5):
        parameter.grad = gradient * scale
        optimizer.step()
    return parameter.detach()


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_update_by_update_torch_to_the_bit(fused: bool, decay: float) -> None:
    parameters = [nn.Parameter(torch.ones(31, 7)) for _ in range(2)]
    ours = Adam([parameters[0]], lr=3e-3, betas=(0.8, 0.95), weight_decay=decay, fused=fused)
    theirs = torch.optim.Adam(
        [parameters[1]], lr=3e-3, betas=(0.8, 0.95), weight_decay=decay, fused=fused, foreach=False
    )
    for gradient in gradients(6):
        for parameter, optimizer in zip(parameters, (ours, theirs)):
            parameter.grad = gradient.clone()
            optimizer.step()
        assert torch.equal(*parameters)


@pytest.mark.parametrize("fused", [False, True])
def test_without_decay_it_is_adamw_to_the_bit(fused: bool) -> None:
    ends = [
        trained(Adam, fused=fused),
        trained(Adam, fused=fused, decay="decoupled"),
        trained(AdamW, fused=fused, weight_decay=0.0),
    ]
    assert torch.equal(ends[0], ends[1])
    assert torch.equal(ends[0], ends[2])
    assert torch.equal(
        trained(Adam, fused=fused, decay="decoupled", weight_decay=0.1), trained(AdamW, fused=fused, weight_decay=0.1)
    )


def bert_step(p: Tensor, g: Tensor, m: Tensor, v: Tensor, rate: float, decay: float) -> tuple[Tensor, Tensor, Tensor]:
    """What BERT's AdamWeightDecayOptimizer computes: no bias correction, decay added to the update."""
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
    return p - rate * (m / (v.sqrt() + 1e-6) + decay * p), m, v


@pytest.mark.parametrize("fused", [False, True])
def test_without_bias_correction_and_decoupled_it_is_berts_optimizer(fused: bool) -> None:
    parameter = nn.Parameter(torch.linspace(-1, 1, 31 * 7).reshape(31, 7))
    optimizer = Adam(
        [parameter], lr=1e-2, eps=1e-6, weight_decay=0.1, decay="decoupled", bias_correction=False, fused=fused
    )
    p = parameter.detach().double()
    m, v = torch.zeros_like(p), torch.zeros_like(p)
    for gradient in gradients(5):
        parameter.grad = gradient
        optimizer.step()
        p, m, v = bert_step(p, gradient.double(), m, v, 1e-2, 0.1)
        torch.testing.assert_close(parameter.double(), p, rtol=1e-5, atol=1e-6)


def last_step(sequence: Tensor) -> float:
    """The last step, in learning rates, along gradients [steps] of one coordinate."""
    p, m, v = torch.zeros(3, 1, dtype=torch.float64)
    for t, gradient in enumerate(sequence, 1):
        before = p.clone()
        adam_step(p, gradient, m, v, t, **{**HYPER, "eps": 1e-300})
    return (p - before).abs().item()


def test_the_papers_bound_is_met_after_zeros_and_exceeded_by_growing_gradients() -> None:
    """Section 2.1 bounds a step by (1 - b1) / sqrt(1 - b2): right for one gradient after none, not in general."""
    papers = 0.1 / math.sqrt(0.001)
    zeros = torch.zeros(6000, dtype=torch.float64)
    assert last_step(torch.cat([zeros, torch.ones(1).double()])) == pytest.approx(papers, rel=2e-3)
    growing = (0.999 / 0.9) ** torch.arange(60, dtype=torch.float64)
    assert last_step(torch.cat([zeros, growing])) > 2.2 * papers


def test_coupled_decay_without_gradients_moves_by_the_learning_rate_whatever_the_weight() -> None:
    """The trap that AdamW mends: the regulariser's gradient is normalised too."""
    weights = torch.tensor([0.01, 1.0, 100.0], dtype=torch.float64)
    p, m, v = weights.clone(), torch.zeros(3).double(), torch.zeros(3).double()
    adam_step(p, torch.zeros(3).double(), m, v, 1, **{**HYPER, "learning_rate": 1e-3, "eps": 0.0}, weight_decay=0.1)
    torch.testing.assert_close(weights - p, torch.full((3,), 1e-3).double())


@pytest.mark.parametrize(("form", "decay"), [("none", 0.0), ("coupled", 0.07), ("decoupled", 0.07)])
def test_the_recipe_reaches_the_optimizer(form: Form, decay: float) -> None:
    technique = AdamTechnique(decay=form)
    recipe = Recipe(steps=10, batch_size=1, learning_rate=2e-3, beta2=0.95, eps=1e-6, weight_decay=0.07)
    recipe = technique.recipe(recipe)
    groups = [{"params": [nn.Parameter(torch.ones(3))], "weight_decay": recipe.weight_decay}]
    (group,) = technique.optimizer(groups, recipe).param_groups
    assert (group["lr"], group["betas"], group["eps"]) == (2e-3, (0.9, 0.95), 1e-6)
    assert (group["weight_decay"], group["bias_correction"]) == (decay, True)
    assert group["decay"] == ("decoupled" if form == "decoupled" else "coupled")


def test_decay_is_named_where_it_is_wanted() -> None:
    groups = {
        form: new_run("gpt", f"adam:decay={form}", size="pico", steps=2).optimizer.param_groups
        for form in ("none", "coupled", "decoupled")
    }
    assert {group["weight_decay"] for group in groups["none"]} == {0.0}
    assert max(group["weight_decay"] for group in groups["coupled"]) > 0
    assert [group["weight_decay"] for group in groups["coupled"]] == [
        group["weight_decay"] for group in groups["decoupled"]
    ]
    with pytest.raises(ValueError, match="none, coupled or decoupled"):
        AdamTechnique(decay="both")  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", [{"betas": (1.0, 0.9)}, {"lr": -1.0}, {"decay": "both"}])
def test_hyper_parameters_out_of_range_are_refused(bad: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"Adam needs|decay must be"):
        Adam([nn.Parameter(torch.ones(1))], **bad)  # type: ignore[arg-type]
