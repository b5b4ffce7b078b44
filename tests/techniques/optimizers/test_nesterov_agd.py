"""The forms for networks against torch's and the textbook's, and the study."""

import math
from itertools import islice

import pytest
import torch
from torch import Tensor, nn

from suite.loop.recipe import Recipe
from suite.record.job import Setting
from techniques.optimizers.nesterov_agd.probes import theorem
from techniques.optimizers.nesterov_agd.sequence import accelerated
from techniques.optimizers.nesterov_agd.study import condition, convergence, plot
from techniques.optimizers.nesterov_agd.technique import AGD, NesterovAGD
from techniques.optimizers.shared.linear_probe import LinearProbe, linear_probe
from techniques.shared.sgd import SGD


def spectrum(kappa: float, size: int = 50) -> Tensor:
    """Curvatures of a quadratic with its minimum 0 at 0, evenly spread over the orders of magnitude below 1."""
    return torch.logspace(-math.log10(kappa), 0, size, dtype=torch.float64)


def test_one_gradient_a_step() -> None:
    calls = []

    def gradient(x: Tensor) -> Tensor:
        calls.append(1)
        return x

    list(islice(accelerated(gradient, torch.ones(3), 0.1), 20))
    assert len(calls) == 20


def looking(parameter: Tensor) -> Tensor:
    """The gradient of a function that is no quadratic."""
    return parameter.sin() + 0.1 * parameter


@pytest.mark.parametrize("fused", [False, True])
def test_torchs_form_is_the_textbooks_sequence_y(fused: bool) -> None:
    """And x = theta + eta mu v: the change of variables between the two forms, at a constant rate."""
    rate, momentum = 0.1, 0.9
    theta = nn.Parameter(torch.linspace(-2, 2, 40).double())
    optimizer = SGD([theta], lr=rate, momentum=momentum, nesterov=True, fused=fused)
    for x in islice(accelerated(looking, theta.detach().clone(), rate, momentum), 15):
        theta.grad = looking(theta.detach())
        optimizer.step()
        torch.testing.assert_close(theta + rate * momentum * optimizer.state[theta]["velocity"], x)


@pytest.mark.parametrize("momentum", [None, 0.9])
def test_the_optimizer_holds_y_and_keeps_x(momentum: float | None) -> None:
    y = nn.Parameter(torch.linspace(-2, 2, 40).double())
    optimizer = AGD([y], lr=0.1, momentum=momentum)
    for x in islice(accelerated(looking, y.detach().clone(), 0.1, momentum), 15):
        y.grad = looking(y.detach())
        optimizer.step()
        torch.testing.assert_close(optimizer.state[y]["iterate"], x)
    state = optimizer.state[y]
    assert state["iterate"].nbytes == y.nbytes
    assert state.keys() == ({"iterate", "t"} if momentum is None else {"iterate"})


def test_the_check_of_the_bound_knows_the_minimum() -> None:
    recipe, own = Recipe(steps=1, batch_size=1, learning_rate=1e-3), NesterovAGD()
    shown = theorem(spectrum(1e5, 12).diag(), torch.ones(3, 12).double(), recipe, own)
    assert 0 < shown["bound_used"] <= 1 and shown["scheme_roundings"] < 8
    assert 0 < shown["accelerated_over_gradient_descent"] < 0.1
    at_once = theorem(torch.eye(12).double(), torch.ones(3, 12).double(), recipe, own)
    assert at_once["bound_used"] == 0 and "accelerated_over_gradient_descent" not in at_once


# the study ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def probe() -> LinearProbe:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(80, 6, generator=generator, dtype=torch.float64) * torch.logspace(0, -1, 6).double()
    return LinearProbe(features, torch.randint(3, (80,), generator=generator), classes=3, ridge=0.01)


def test_the_problems_gradient_and_constants(probe: LinearProbe) -> None:
    weight = torch.randn(3, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64).requires_grad_()

    def value(weight: Tensor) -> Tensor:
        loss = nn.functional.cross_entropy(probe.features @ weight.T, probe.labels)
        return loss + 0.005 * weight.square().sum()

    (expected,) = torch.autograd.grad(value(weight), weight)
    torch.testing.assert_close(probe.gradient(weight.detach()), expected)
    curvatures = torch.linalg.eigvalsh(torch.autograd.functional.hessian(value, weight.detach()).reshape(18, 18))
    assert curvatures[0] >= 0.01 - 1e-12
    assert curvatures[-1] <= probe.smoothness
    assert probe.gradient(probe.minimiser()).abs().max() < 1e-8


def test_tables_keep_the_bounds_and_show_the_acceleration(probe: LinearProbe) -> None:
    table = convergence(probe, steps=200)
    for _, plain, fast, plain_bound, fast_bound in table.rows:
        assert plain <= plain_bound
        assert fast <= fast_bound
    small, large = condition(probe, (30.0, 300.0)).rows
    assert 1 < small[3] < large[3]
    assert len(plot([table]).axes[0].lines) == 4


def test_a_baseline_without_labels_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="use -b vit"):
        linear_probe(Setting(baseline="gpt", recipe="classic", steps=1))
