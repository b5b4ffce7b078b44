"""Variants of LAMB, each against its own public implementation, or its formula in float64 where there is none."""

import math

import pytest
import torch
from timm.optim import Lamb as TimmLamb
from torch import Tensor, nn

from techniques.large_batch.lamb.optimizer import Lamb

SHAPES = ((6, 5), (3, 2, 4), (7,))
RATES = (0.05, 0.1, 0.2, 0.07)
HYPER = {"betas": (0.8, 0.95), "eps": 1e-6}


def randn(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def gradients(step: int) -> list[Tensor]:
    return [(1 + step) * randn(*shape, seed=100 * step + number) for number, shape in enumerate(SHAPES)]


def start() -> list[nn.Parameter]:
    return [nn.Parameter(randn(*shape, seed=9 + number)) for number, shape in enumerate(SHAPES)]


def groups(parameters: list[nn.Parameter], decay: float) -> list[dict[str, object]]:
    """As a run gives them: matrices decay, vectors do not."""
    matrices, vectors = ([p for p in parameters if (p.ndim >= 2) == wanted] for wanted in (True, False))
    return [{"params": matrices, "weight_decay": decay}, {"params": vectors, "weight_decay": 0.0}]


def trajectory(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Where ``optimizer``, over parameters of SHAPES in order, is after each of RATES; flattened."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    places = []
    for step, rate in enumerate(RATES):
        for group in optimizer.param_groups:
            group["lr"] = rate
        for parameter, gradient in zip(parameters, gradients(step)):
            parameter.grad = gradient
        optimizer.step()
        places.append(nn.utils.parameters_to_vector(parameters).detach())
    return places


def formula(corrected: bool, decay: float, phi: tuple[float, float]) -> list[Tensor]:
    """Algorithm 2, tensor by tensor, in float64, with the moments' bias corrected or not."""
    weights = [parameter.detach().clone() for parameter in start()]
    moments = [(torch.zeros_like(each), torch.zeros_like(each)) for each in weights]
    (beta1, beta2), eps = HYPER["betas"], HYPER["eps"]  # type: ignore[misc]
    places = []
    for step, rate in enumerate(RATES, 1):
        for w, (m, v), g in zip(weights, moments, gradients(step - 1)):
            m.copy_(beta1 * m + (1 - beta1) * g)
            v.copy_(beta2 * v + (1 - beta2) * g * g)
            m_hat = m / (1 - beta1**step) if corrected else m
            v_hat = v / (1 - beta2**step) if corrected else v
            wd = decay if w.ndim >= 2 else 0.0
            u = m_hat / (v_hat.sqrt() + eps) + wd * w
            ratio = w.norm().clamp(*phi) / u.norm() if w.ndim >= 2 else 1.0
            w -= rate * ratio * u
        places.append(nn.utils.parameters_to_vector(weights))
    return places


@pytest.mark.parametrize(("variant", "phi"), [("google", (0.0, math.inf)), ("paper", (2.0, 3.0))])
def test_formula_update_by_update(variant: str, phi: tuple[float, float]) -> None:
    ours = trajectory(Lamb(groups(start(), 0.3), variant=variant, phi=phi, **HYPER))  # type: ignore[arg-type]
    for mine, expected in zip(ours, formula(variant == "paper", 0.3, phi), strict=True):
        torch.testing.assert_close(mine, expected)


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("decay", [0.0, 0.3])
@pytest.mark.parametrize(("variant", "always"), [("timm", False), ("nvlamb", True)])
def test_timm_update_by_update(variant: str, always: bool, decay: float, foreach: bool) -> None:
    """timm with always_adapt is NVLAMB."""
    theirs = TimmLamb(groups(start(), decay), always_adapt=always, foreach=foreach, **HYPER)
    ours = Lamb(groups(start(), decay), variant=variant, **HYPER)  # type: ignore[arg-type]
    for mine, expected in zip(trajectory(ours), trajectory(theirs), strict=True):
        torch.testing.assert_close(mine, expected)


def test_optax_update_by_update() -> None:
    """optax adapts every tensor, without clipping: the paper's variant on matrices."""
    import jax
    import optax

    with jax.enable_x64(True):
        weights = [jax.numpy.asarray(parameter.detach().numpy()) for parameter in start()[:2]]
        schedule = lambda step: jax.numpy.asarray(RATES)[step]  # noqa: E731
        lamb = optax.lamb(schedule, b1=0.8, b2=0.95, eps=1e-6, weight_decay=0.3)
        state, theirs = lamb.init(weights), []
        for step in range(len(RATES)):
            given = [jax.numpy.asarray(each.numpy()) for each in gradients(step)[:2]]
            updates, state = lamb.update(given, state, weights)
            weights = optax.apply_updates(weights, updates)
            theirs.append(torch.cat([torch.tensor(each.tolist(), dtype=torch.float64).flatten() for each in weights]))
    ours = trajectory(Lamb(start()[:2], weight_decay=0.3, **HYPER))  # type: ignore[arg-type]
    for mine, expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, expected)


def test_without_a_norm_the_ratio_is_1() -> None:
    zero, still = nn.Parameter(torch.zeros(3, 3)), nn.Parameter(torch.ones(3, 3))
    zero.grad, still.grad = torch.ones(3, 3), torch.zeros(3, 3)
    Lamb([zero, still], lr=0.1, weight_decay=0.0).step()
    torch.testing.assert_close(zero.detach(), torch.full((3, 3), -0.1), rtol=1e-5, atol=0)
    torch.testing.assert_close(still.detach(), torch.ones(3, 3))
