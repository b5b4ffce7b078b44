"""Variants of LARS, each against its own public implementation, or its formula in float64 where there is none."""

import math

import pytest
import torch
from timm.optim import Lars as TimmLars
from torch import Tensor, nn

from techniques.large_batch.lars.optimizer import Lars

SHAPES = ((6, 5), (3, 2, 4))
RATES = (0.5, 1.0, 2.0, 0.7)


def randn(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def gradients(step: int, shapes: tuple[tuple[int, ...], ...] = SHAPES) -> list[Tensor]:
    return [randn(*shape, seed=100 * step + number) for number, shape in enumerate(shapes)]


def trajectory(optimizer: torch.optim.Optimizer, rates: tuple[float, ...] = RATES) -> list[Tensor]:
    """Where ``optimizer`` (over a copy of the same start) is after each of the given learning rates, flattened."""
    parameters = optimizer.param_groups[0]["params"]
    places = []
    for step, rate in enumerate(rates):
        optimizer.param_groups[0]["lr"] = rate
        for parameter, gradient in zip(parameters, gradients(step)):
            parameter.grad = gradient
        optimizer.step()
        places.append(nn.utils.parameters_to_vector(parameters).detach())
    return places


def start() -> list[nn.Parameter]:
    return [nn.Parameter(randn(*shape, seed=9 + number)) for number, shape in enumerate(SHAPES)]


def moco(m: float = 0.9, eta: float = 0.01, wd: float = 0.1) -> list[Tensor]:
    """MoCo v3's, tensor by tensor, in float64."""
    weights = [parameter.detach().clone() for parameter in start()]
    velocity = [torch.zeros_like(each) for each in weights]
    places = []
    for step, rate in enumerate(RATES):
        for w, v, g in zip(weights, velocity, gradients(step)):
            u = eta * w.norm() / (g + wd * w).norm() * (g + wd * w)
            v.copy_(m * v + u)
            w -= rate * v
        places.append(nn.utils.parameters_to_vector(weights))
    return places


def test_mocos_update_by_update_while_the_rate_changes() -> None:
    ours = trajectory(Lars(start(), trust_coefficient=0.01, weight_decay=0.1, variant="moco"))
    for mine, expected in zip(ours, moco(), strict=True):
        torch.testing.assert_close(mine, expected)


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize(("decay", "always"), [(0.1, False), (0.0, True), (0.0, False)])
def test_timm_update_by_update(decay: float, always: bool, foreach: bool) -> None:
    """At no decay timm does not adapt, unless told to (a trap: the ratio of 1 makes it 1000 times faster)."""
    hyper = {"momentum": 0.9, "weight_decay": decay, "always_adapt": always}
    theirs = trajectory(TimmLars(start(), trust_coeff=0.01, foreach=foreach, **hyper))
    ours = trajectory(Lars(start(), trust_coefficient=0.01, variant="timm", **hyper))  # type: ignore[arg-type]
    for mine, expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, expected)


def test_optax_update_by_update() -> None:
    import jax
    import optax

    with jax.enable_x64(True):
        weights = [jax.numpy.asarray(parameter.detach().numpy()) for parameter in start()]
        hyper = {"weight_decay": 0.1, "trust_coefficient": 0.01, "momentum": 0.9}
        lars = optax.lars(learning_rate=lambda step: jax.numpy.asarray(RATES)[step], **hyper)
        state, theirs = lars.init(weights), []
        for step in range(len(RATES)):
            given = [jax.numpy.asarray(each.numpy()) for each in gradients(step)]
            updates, state = lars.update(given, state, weights)
            weights = optax.apply_updates(weights, updates)
            theirs.append(torch.cat([torch.tensor(each.tolist(), dtype=torch.float64).flatten() for each in weights]))
    ours = trajectory(Lars(start(), variant="optax", weight_decay=0.1, trust_coefficient=0.01))
    for mine, expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, expected)


def test_all_zero_weights_and_gradients_stay_finite() -> None:
    zero, still = nn.Parameter(torch.zeros(3, 3)), nn.Parameter(torch.ones(3, 3))
    zero.grad, still.grad = torch.ones(3, 3), torch.zeros(3, 3)
    Lars([zero, still], lr=0.1).step()
    torch.testing.assert_close(zero.detach(), torch.full((3, 3), -0.1))  # a ratio of 1
    torch.testing.assert_close(still.detach(), torch.ones(3, 3))


def test_norms_of_long_vectors_do_not_overflow_in_bfloat16() -> None:
    w = nn.Parameter(torch.ones(300, 300, dtype=torch.bfloat16))
    w.grad = torch.ones_like(w)
    Lars([w], lr=1.0, trust_coefficient=0.5).step()
    assert w.float().mean().item() == pytest.approx(0.5)
    assert math.isfinite(w.float().sum().item())
