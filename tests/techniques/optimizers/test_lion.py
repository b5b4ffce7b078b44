"""Lion against lion-pytorch and timm, and the identities of a sign update."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lion_pytorch import Lion as LionPytorch
from timm.optim import Lion as TimmLion
from torch import Tensor, nn

from suite.loop.recipe import Recipe
from techniques.optimizers.lion.technique import Lion, LionTechnique, lion_step


def random_gradients(count: int, shape: tuple[int, ...] = (64, 33)) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator) for _ in range(count)]


@pytest.mark.parametrize("other", [LionPytorch, TimmLion])
def test_update_by_update_other_implementations(other: type[torch.optim.Optimizer]) -> None:
    ours, theirs = nn.Parameter(torch.ones(64, 33)), nn.Parameter(torch.ones(64, 33))
    settings = {"lr": 1e-3, "betas": (0.95, 0.98), "weight_decay": 0.3}
    optimizers = Lion([ours], **settings), other([theirs], **settings)
    momentum = torch.zeros(64, 33, dtype=torch.float64)
    decided = torch.ones(64, 33, dtype=torch.bool)  # signs are compared where they do not hang on rounding
    for gradient in random_gradients(10):
        decided &= (0.95 * momentum + 0.05 * gradient).abs() > 1e-6
        momentum = 0.98 * momentum + 0.02 * gradient
        for parameter, optimizer in zip((ours, theirs), optimizers):
            parameter.grad = gradient.clone()
            optimizer.step()
        torch.testing.assert_close(ours[decided], theirs[decided], rtol=1e-6, atol=1e-7)
    assert decided.float().mean() > 0.999


def test_the_direction_uses_the_old_momentum() -> None:
    """Not the sign of one moving average: here the updated momentum would give the opposite sign."""
    parameter, momentum = torch.zeros(1), torch.full((1,), 0.1)
    lion_step(parameter, torch.full((1,), -0.5), momentum, learning_rate=1.0, beta1=0.9, beta2=0.1, weight_decay=0.0)
    assert parameter.item() == -1.0
    assert momentum.item() < 0


def test_sign_of_zero_is_zero() -> None:
    parameter = torch.ones(3)
    lion_step(parameter, torch.zeros(3), torch.zeros(3), learning_rate=0.1, beta1=0.9, beta2=0.99, weight_decay=0.0)
    assert torch.equal(parameter, torch.ones(3))


@given(rate=st.floats(1e-5, 1e-1), decay=st.floats(0, 5), seed=st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_apart_from_decay_every_coordinate_moves_by_the_learning_rate(rate: float, decay: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    before, gradient, momentum = (torch.randn(50, generator=generator, dtype=torch.float64) for _ in range(3))
    after = before.clone()
    lion_step(after, gradient, momentum, learning_rate=rate, beta1=0.9, beta2=0.99, weight_decay=decay)
    moved = after - before + rate * decay * before
    torch.testing.assert_close(moved.abs(), torch.full((50,), rate, dtype=torch.float64), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(moved.norm().item(), rate * 50**0.5, rtol=1e-9, atol=0)


def test_the_scale_of_the_gradients_does_not_matter() -> None:
    ends = []
    for factor in (1.0, 2.0**12, 2.0**-12):  # powers of two: exact in floating point
        parameter = nn.Parameter(torch.ones(64, 33))
        optimizer = Lion([parameter], lr=1e-3, weight_decay=0.1)
        for gradient in random_gradients(5):
            parameter.grad = gradient * factor
            optimizer.step()
        ends.append(parameter.detach())
    assert torch.equal(ends[0], ends[1])
    assert torch.equal(ends[0], ends[2])


def test_state_is_one_buffer_of_the_parameters_size() -> None:
    parameter = nn.Parameter(torch.ones(64, 33))
    parameter.grad = random_gradients(1)[0]
    optimizer = Lion([parameter])
    optimizer.step()
    assert {name: tensor.nbytes for name, tensor in optimizer.state[parameter].items()} == {
        "momentum": parameter.nbytes
    }


def test_recipe_keeps_the_strength_of_the_decay() -> None:
    before = Recipe(steps=10, batch_size=1, learning_rate=1e-3, weight_decay=0.1)
    after = LionTechnique(factor=5.0).recipe(before)
    assert after.learning_rate * after.weight_decay == pytest.approx(before.learning_rate * before.weight_decay)
    assert (after.learning_rate, after.beta1, after.beta2) == (pytest.approx(2e-4), 0.9, 0.99)
