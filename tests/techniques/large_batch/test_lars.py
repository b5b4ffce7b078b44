"""Four LARS, each against its own public implementation or formula in float64; where they agree, and where not."""

import math
from itertools import combinations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from timm.optim import Lars as TimmLars
from torch import Tensor, nn

from techniques.large_batch.lars.optimizer import Lars
from techniques.large_batch.lars.variants import INSIDE, SEPARATE

VARIANTS = ("paper", "timm", "moco", "optax")
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


def formula(variant: str, rates: tuple[float, ...] = RATES, m: float = 0.9, eta: float = 0.01, wd: float = 0.1) -> list:
    """The module's table, tensor by tensor, in float64."""
    weights = [parameter.detach().clone() for parameter in start()]
    velocity = [torch.zeros_like(each) for each in weights]
    places = []
    for step, rate in enumerate(rates):
        for w, v, g in zip(weights, velocity, gradients(step)):
            denominator = g.norm() + wd * w.norm() if variant in ("paper", "timm") else (g + wd * w).norm()
            if variant == "timm":
                denominator += 1e-8
            u = eta * w.norm() / denominator * (g + wd * w)
            if variant in ("paper", "optax"):
                v.copy_(m * v + rate * u)
                w -= v
            else:
                v.copy_(m * v + u)
                w -= rate * v
        places.append(nn.utils.parameters_to_vector(weights))
    return places


@pytest.mark.parametrize("variant", VARIANTS)
def test_formula_update_by_update_while_the_rate_changes(variant: str) -> None:
    ours = trajectory(Lars(start(), trust_coefficient=0.01, weight_decay=0.1, variant=variant))  # type: ignore[arg-type]
    for mine, expected in zip(ours, formula(variant), strict=True):
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


@given(decay=st.sampled_from([0.0, 0.1]), constant=st.booleans())
@settings(max_examples=8, deadline=None)
def test_variants_coincide_if_and_only_if_nothing_decays_and_the_rate_is_constant(decay: float, constant: bool) -> None:
    rates = (0.5,) * 4 if constant else RATES
    ends = {
        variant: trajectory(
            Lars(start(), trust_coefficient=0.1, weight_decay=decay, variant=variant, always_adapt=True),  # type: ignore[arg-type]
            rates,
        )[-1]
        for variant in VARIANTS
    }
    for one, other in combinations(VARIANTS, 2):
        same_denominator = decay == 0 or (one in SEPARATE) == (other in SEPARATE)
        same_place = constant or (one in INSIDE) == (other in INSIDE)
        distance = (ends[one] - ends[other]).norm() / ends[one].norm()
        assert (distance < 1e-7) == (same_denominator and same_place), (
            one,
            other,
            distance,
        )  # timm's eps: 1e-8 / ||g||


@given(decay=st.floats(0, 10), scale=st.floats(1e-3, 1e3), variant=st.sampled_from(VARIANTS))
@settings(max_examples=30, deadline=None)
def test_the_first_step_is_at_most_the_rate_times_the_coefficient_times_the_weights(
    decay: float, scale: float, variant: str
) -> None:
    """Equal to it where the denominator is the norm of the decayed gradient itself (moco, optax)."""
    w = nn.Parameter(randn(6, 5, seed=3))
    before, w.grad = w.detach().clone(), scale * randn(6, 5, seed=4)
    Lars([w], lr=0.5, trust_coefficient=0.01, weight_decay=decay, variant=variant, always_adapt=True).step()  # type: ignore[arg-type]
    share = ((w.detach() - before).norm() / (0.5 * 0.01 * before.norm())).item()
    direction = w.grad + decay * before
    apart = direction.norm() / (w.grad.norm() + decay * before.norm())
    assert share == pytest.approx(apart.item() if variant in SEPARATE else 1.0, rel=1e-5)
    assert share <= 1 + 1e-6


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
