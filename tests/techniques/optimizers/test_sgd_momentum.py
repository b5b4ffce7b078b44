"""SGD against torch's to the bit, and the two places of the learning rate."""

import pytest
import torch
from torch import Tensor, nn

from techniques.shared.sgd import SGD, Rate, sgd_step

FUSED = pytest.mark.parametrize("fused", [False, True])


def gradients(count: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(31, 7, generator=generator) for _ in range(count)]


@FUSED
@pytest.mark.parametrize(
    "hyper",
    [
        {"momentum": 0.9},
        {"momentum": 0.9, "dampening": 0.3, "weight_decay": 0.2},
        {"momentum": 0.8, "nesterov": True, "weight_decay": 0.1},
        {"momentum": 0.0, "weight_decay": 0.1},
    ],
)
def test_update_by_update_torch_to_the_bit(fused: bool, hyper: dict[str, float]) -> None:
    parameters = [nn.Parameter(torch.ones(31, 7)) for _ in range(2)]
    ours = SGD([parameters[0]], lr=3e-2, fused=fused, **hyper)  # type: ignore[arg-type]
    theirs = torch.optim.SGD([parameters[1]], lr=3e-2, fused=fused, foreach=False, **hyper)  # type: ignore[arg-type]
    for gradient in gradients(6):
        for parameter, optimizer in zip(parameters, (ours, theirs)):
            parameter.grad = gradient.clone()
            optimizer.step()
        assert torch.equal(*parameters)


@FUSED
def test_a_parameter_whose_gradient_comes_late_starts_undampened(fused: bool) -> None:
    """torch's fused path takes a list of which some have a velocity for one of which all have."""
    early, late = nn.Parameter(torch.ones(31, 7)), nn.Parameter(torch.ones(31, 7))
    optimizer = SGD([early, late], lr=0.1, momentum=0.9, dampening=0.5, fused=fused)
    first, second = gradients(2)
    early.grad = first.clone()
    optimizer.step()
    assert torch.equal(late, torch.ones(31, 7))
    early.grad, late.grad = second.clone(), second.clone()
    optimizer.step()
    torch.testing.assert_close(early.detach(), 1 - 0.1 * first - 0.1 * (0.9 * first + 0.5 * second))
    torch.testing.assert_close(late.detach(), 1 - 0.1 * second)


def path(rates: list[float], rate: Rate, corrected: bool = False) -> list[Tensor]:
    parameter, velocity = torch.ones(31, 7).double(), None
    points, before = [], rates[0]
    for eta, gradient in zip(rates, gradients(len(rates))):
        momentum = 0.9 * eta / before if corrected else 0.9
        velocity = sgd_step(parameter, gradient.double(), velocity, learning_rate=eta, momentum=momentum, rate=rate)
        before = eta
        points.append(parameter.clone())
    return points


def test_goyals_momentum_correction_makes_the_two_forms_one() -> None:
    falling = [0.1] * 4 + [0.01] * 4
    for one, other in zip(path(falling, "outside"), path(falling, "inside", corrected=True)):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
