"""Layer-wise trust: the identity ||dw|| = eta phi(||w||) at every granularity, and its cases against other code."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from techniques.large_batch.lamb.optimizer import Lamb
from techniques.large_batch.layerwise_trust.optimizer import LayerwiseTrust
from techniques.large_batch.shared.trust import layer_norms, trust_ratio


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("shape", [(6, 5), (3, 4, 2), (7, 1)])
def test_norms_of_layers(shape: tuple[int, ...]) -> None:
    x = randn(*shape)
    (whole,), (rows,), (blocks,) = (layer_norms([x], g, block=4) for g in ("tensor", "row", "block"))  # type: ignore[arg-type]
    assert whole.item() == pytest.approx(x.square().sum().sqrt().item())
    for index in range(shape[0]):
        assert rows[index].item() == pytest.approx(x[index].norm().item())
    for number, value in enumerate(blocks.flatten().tolist()):
        start = number // 4 * 4
        assert value == pytest.approx(x.flatten()[start : start + 4].norm().item())


def test_norms_of_bfloat16_are_taken_in_float32() -> None:
    x = torch.ones(5000, 3, dtype=torch.bfloat16)
    for granularity, expected in (("tensor", math.sqrt(15000)), ("row", math.sqrt(3)), ("block", 16.0)):
        (norm,) = layer_norms([x], granularity, block=256)  # type: ignore[arg-type]
        assert norm.dtype == torch.float32
        assert norm.flatten()[0].item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(("w", "u"), [(0.0, 2.0), (2.0, 0.0), (0.0, 0.0), (2.0, math.nan)])
def test_without_a_norm_the_ratio_is_1(w: float, u: float) -> None:
    assert trust_ratio(torch.tensor(w), torch.tensor(u), coefficient=7.0, low=0.1).item() == 1.0


@given(
    base=st.sampled_from(["momentum", "adam", "sign"]),
    granularity=st.sampled_from(["tensor", "row", "block"]),
    rate=st.floats(1e-4, 0.5),
    low=st.floats(0, 2),
    width=st.floats(0, 20),
    decay=st.floats(0, 0.5),
    seed=st.integers(0, 1000),
)
@settings(max_examples=40, deadline=None)
def test_every_layers_step_is_as_long_as_the_rate_times_phi(
    base: str, granularity: str, rate: float, low: float, width: float, decay: float, seed: int
) -> None:
    parameter = nn.Parameter(randn(6, 10, seed=seed))
    phi = (low, low + width)
    hyper = {"granularity": granularity, "block": 7, "weight_decay": decay, "phi": phi}
    optimizer = LayerwiseTrust([parameter], lr=rate, base=base, **hyper)  # type: ignore[arg-type]
    for number in range(2):
        before = parameter.detach().clone()
        parameter.grad = randn(6, 10, seed=seed + number + 1)
        optimizer.step()
        moved, norms = layer_norms([parameter.detach() - before, before], granularity, 7)  # type: ignore[arg-type]
        torch.testing.assert_close(moved, rate * norms.clamp(*phi), rtol=1e-8, atol=1e-14)


def test_with_adams_direction_it_is_lamb_update_by_update() -> None:
    start = [randn(6, 5), randn(3, 4, 2, seed=1), randn(5, seed=2)]
    ours, theirs = ([nn.Parameter(each.clone()) for each in start] for _ in range(2))
    # in a group of its own the vector does not decay, as in a run
    groups = [[{"params": side[:2], "weight_decay": 0.1}, {"params": side[2:]}] for side in (ours, theirs)]
    hyper = {"lr": 0.05, "betas": (0.9, 0.99), "eps": 1e-6, "phi": (0.5, 3.0)}
    trust = LayerwiseTrust(groups[0], base="adam", **hyper)  # type: ignore[arg-type]
    lamb = Lamb(groups[1], weight_decay=0.0, variant="paper", **hyper)  # type: ignore[arg-type]
    for step in range(6):
        for number, (one, other) in enumerate(zip(ours, theirs)):
            one.grad = other.grad = randn(*one.shape, seed=10 * step + number)
        trust.step()
        lamb.step()
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("base", ["momentum", "sign"])
def test_momentum_and_sign_are_optaxs_trust_ratio_update_by_update(base: str) -> None:
    import jax
    import optax

    own = nn.Parameter(randn(6, 5))
    optimizer = LayerwiseTrust([own], lr=0.05, base=base, betas=(0.9, 0.99), weight_decay=0.1)  # type: ignore[arg-type]
    with jax.enable_x64(True):
        direction = {"momentum": optax.ema(0.9, debias=False), "sign": optax.scale_by_lion(0.9, 0.99)}[base]
        steps = direction, optax.add_decayed_weights(0.1), optax.scale_by_trust_ratio(), optax.scale(-0.05)
        theirs = optax.chain(*steps)
        weights = jax.numpy.asarray(own.detach().numpy().copy())
        state = theirs.init(weights)
        for step in range(6):
            own.grad = randn(6, 5, seed=step + 1)
            optimizer.step()
            updates, state = theirs.update(jax.numpy.asarray(own.grad.numpy()), state, weights)
            weights = optax.apply_updates(weights, updates)
            torch.testing.assert_close(own.detach(), torch.tensor(weights.tolist(), dtype=torch.float64))
