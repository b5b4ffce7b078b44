"""Lion update by update against lion-pytorch and timm."""

import pytest
import torch
from lion_pytorch import Lion as LionPytorch
from timm.optim import Lion as TimmLion
from torch import Tensor, nn

from techniques.optimizers.lion.technique import Lion


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
