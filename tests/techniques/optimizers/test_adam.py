"""Adam against torch's to the bit, and BERT's variant in float64."""

import pytest
import torch
from torch import Tensor, nn

from techniques.shared.adam import Adam


def gradients(count: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(31, 7, generator=generator, dtype=dtype) for _ in range(count)]


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
