"""SGD against torch's, its closed form under a constant gradient, and the two places of the learning rate."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from suite.loop.recipe import Recipe
from techniques.optimizers.sgd_momentum.technique import SGDMomentum
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


@given(momentum=st.floats(0, 0.99), steps=st.integers(1, 60), rate=st.sampled_from(["outside", "inside"]))
@settings(max_examples=40, deadline=None)
def test_constant_gradient_closed_form(momentum: float, steps: int, rate: Rate) -> None:
    """v_t = g (1 - mu^t) / (1 - mu): in the long run the learning rate is eta / (1 - mu)."""
    gradient = torch.tensor([2.0, -3.0], dtype=torch.float64)
    parameter, velocity = torch.zeros(2).double(), None
    for _ in range(steps):
        before = parameter.clone()
        velocity = sgd_step(parameter, gradient, velocity, learning_rate=0.1, momentum=momentum, rate=rate)
    expected = gradient * (1 - momentum**steps) / (1 - momentum)
    torch.testing.assert_close(before - parameter, 0.1 * expected, rtol=1e-9, atol=1e-12)


def path(rates: list[float], rate: Rate, corrected: bool = False) -> list[Tensor]:
    parameter, velocity = torch.ones(31, 7).double(), None
    points, before = [], rates[0]
    for eta, gradient in zip(rates, gradients(len(rates))):
        momentum = 0.9 * eta / before if corrected else 0.9
        velocity = sgd_step(parameter, gradient.double(), velocity, learning_rate=eta, momentum=momentum, rate=rate)
        before = eta
        points.append(parameter.clone())
    return points


def test_the_place_of_the_learning_rate_matters_when_it_changes_and_only_then() -> None:
    constant, falling = [0.1] * 8, [0.1] * 4 + [0.01] * 4
    for one, other in zip(path(constant, "outside"), path(constant, "inside")):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
    outside, inside = path(falling, "outside"), path(falling, "inside")
    torch.testing.assert_close(outside[3], inside[3], rtol=1e-12, atol=1e-12)
    assert (outside[4] - inside[4]).abs().max() > 0.1


def test_goyals_momentum_correction_makes_the_two_forms_one() -> None:
    falling = [0.1] * 4 + [0.01] * 4
    for one, other in zip(path(falling, "outside"), path(falling, "inside", corrected=True)):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("rate", ["outside", "inside"])
def test_heavy_ball_in_polyaks_own_two_step_form(rate: Rate) -> None:
    """theta_{t+1} = theta_t - eta g_t + mu (theta_t - theta_{t-1})."""
    points = [torch.ones(31, 7).double()] * 2
    for ours, gradient in zip(path([0.1] * 8, rate), gradients(8)):
        points.append(points[-1] - 0.1 * gradient + 0.9 * (points[-1] - points[-2]))
        torch.testing.assert_close(ours, points[-1])


def test_the_recipe_keeps_what_the_decay_takes_off_the_weights() -> None:
    before = Recipe(steps=10, batch_size=1, learning_rate=1e-3, weight_decay=0.1)
    after = SGDMomentum(factor=50, momentum=0.8).recipe(before)
    assert after.learning_rate == pytest.approx(0.05)
    assert after.learning_rate / (1 - 0.8) * after.weight_decay == pytest.approx(1e-3 * 0.1)


@pytest.mark.parametrize("bad", [{"momentum": 1.0}, {"momentum": 0.0, "nesterov": True}, {"rate": "both"}, {"lr": -1}])
def test_hyper_parameters_out_of_range_are_refused(bad: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"SGD needs|Nesterov|outside or inside"):
        SGD([nn.Parameter(torch.ones(1))], **bad)  # type: ignore[arg-type]
