"""Optimizers that compile their step: the same update, compiled once, whatever the schedule does to the rate."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from techniques.optimizers.acclip.optimizer import ACClip
from techniques.optimizers.lion.technique import Lion

SHAPES = (33, 7), (5,), (1,)


@pytest.mark.parametrize("make", [Lion, ACClip])
def test_a_compiled_step_is_the_plain_one_and_a_new_rate_compiles_nothing(
    make: Callable[..., torch.optim.Optimizer],
) -> None:
    generator = torch.Generator().manual_seed(0)
    begun = [torch.randn(shape, generator=generator) for shape in SHAPES]
    plain, compiled = ([nn.Parameter(each.clone()) for each in begun] for _ in range(2))
    sides = [(plain, make(plain, weight_decay=0.1)), (compiled, make(compiled, weight_decay=0.1, compiled=True))]
    torch._dynamo.utils.counters.clear()
    for step in range(6):
        gradients = [torch.randn(shape, generator=generator) for shape in SHAPES]
        for parameters, optimizer in sides:
            optimizer.param_groups[0]["lr"] = 1e-2 / (1 + step)
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient.clone()
            optimizer.step()
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    torch.testing.assert_close(compiled, plain, rtol=1e-5, atol=1e-6)
