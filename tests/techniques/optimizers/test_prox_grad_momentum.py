"""APGnc: proximal maps, scikit-learn's Lasso, the step for networks."""

import copy
from itertools import islice

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import Lasso
from torch import Tensor, nn

from suite.entries.spelling import build
from techniques.optimizers.prox_grad_momentum.iterations import (
    Penalty,
    apgnc,
    group_threshold,
    penalty,
    proximal,
    soft_threshold,
)
from techniques.optimizers.prox_grad_momentum.optimizer import APGnc
from techniques.optimizers.prox_grad_momentum.study import plot, tables
from techniques.optimizers.shared.linear_probe import LinearProbe
from tests.runs import new_run


def regression(rows: int = 60, columns: int = 30) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, columns, generator=generator, dtype=torch.float64)
    truth = torch.zeros(columns).double()
    truth[:4] = torch.tensor([3.0, -2.0, 1.5, 1.0])
    return x, x @ truth + 0.1 * torch.randn(rows, generator=generator, dtype=torch.float64)


# proximal maps ------------------------------------------------------------------------------------------------------


@given(threshold=st.floats(0, 3), seed=st.integers(0, 1000), kind=st.sampled_from(["l1", "group"]))
@settings(max_examples=40, deadline=None)
def test_the_map_minimises_what_defines_it(threshold: float, seed: int, kind: Penalty) -> None:
    """prox(x) = argmin of ||z - x||^2 / 2 + threshold g(z): no near point is lower."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(6, 4, generator=generator, dtype=torch.float64)
    found = proximal(x, threshold, kind)

    def value(z: Tensor) -> float:
        return (0.5 * (z - x).square().sum() + threshold * penalty(z, kind)).item()

    for scale in (1e-1, 1e-3):
        for _ in range(10):
            other = found + scale * torch.randn(6, 4, generator=generator, dtype=torch.float64)
            assert value(found) <= value(other) + 1e-12


def test_closed_forms_and_exact_zeros() -> None:
    x = torch.tensor([[3.0, -0.5], [-4.0, 0.0]])
    assert torch.equal(soft_threshold(x, 1.0), torch.tensor([[2.0, 0.0], [-3.0, 0.0]]))
    groups = group_threshold(torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]]), 1.0)
    torch.testing.assert_close(groups, torch.tensor([[2.4, 3.2], [0.0, 0.0], [0.0, 0.0]]))
    assert torch.equal(groups[1:], torch.zeros(2, 2))
    torch.testing.assert_close(group_threshold(x.T, 1.0, units=1), group_threshold(x, 1.0).T)
    assert torch.equal(soft_threshold(x, 0.0), x)


@pytest.mark.parametrize("momentum", [True, False])
def test_scikit_learns_lasso(momentum: bool) -> None:
    x, target = regression()
    expected = Lasso(alpha=0.1, fit_intercept=False, tol=1e-12, max_iter=100_000).fit(x.numpy(), target.numpy()).coef_
    rate = 0.99 / torch.linalg.eigvalsh(x.T @ x / 60)[-1].item()
    points = apgnc(
        lambda w: ((x @ w - target).square().mean() / 2 + 0.1 * w.abs().sum()).item(),
        lambda w: x.T @ (x @ w - target) / 60,
        lambda w, eta: soft_threshold(w, eta * 0.1),
        torch.zeros(30).double(),
        rate,
        momentum=momentum,
    )
    found = next(islice(points, 1500, None)).x
    torch.testing.assert_close(found, torch.from_numpy(expected), rtol=1e-6, atol=1e-8)
    assert torch.equal(found == 0, torch.from_numpy(expected == 0))


# the optimizer ------------------------------------------------------------------------------------------------------


def test_the_optimizer_follows_the_algorithm() -> None:
    x, target = regression()
    strength, rate = 0.1, 0.99 / torch.linalg.eigvalsh(x.T @ x / 60)[-1].item()
    w = nn.Parameter(torch.zeros(30).double())
    optimizer = APGnc([w], lr=rate, strength=strength)
    evaluations = []

    def closure() -> Tensor:
        evaluations.append(1)
        return (x @ w - target).square().mean() / 2

    steps = apgnc(
        lambda w: ((x @ w - target).square().mean() / 2 + strength * w.abs().sum()).item(),
        lambda w: x.T @ (x @ w - target) / 60,
        lambda w, eta: soft_threshold(w, eta * strength),
        torch.zeros(30).double(),
        rate,
    )
    memory = w.data_ptr()
    for each in islice(steps, 80):
        optimizer.step(closure)
        torch.testing.assert_close(w.detach(), each.x, rtol=1e-9, atol=1e-12)
        assert torch.equal(w == 0, each.x == 0)
        assert w.data_ptr() == memory
    assert len(evaluations) == 2 * 80 - 1, "one further evaluation a step; in the first both points are one"
    assert {name: tensor.nbytes for name, tensor in optimizer.state[w].items()} == {"previous": w.nbytes}


def test_the_better_point_is_trained_on_whichever_was_evaluated_last() -> None:
    """The gradient must be that of the chosen point, through layers that keep their weights for the backward pass."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 1)).double()
    optimizer = APGnc(model.parameters(), lr=0.3)
    seen = set()
    for seed in range(12):
        x = torch.randn(16, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        optimizer.zero_grad()
        loss = optimizer.choose(lambda x=x: (model(x) - x.sum(1, keepdim=True)).square().mean())
        twin = copy.deepcopy(model)
        expected = torch.autograd.grad((twin(x) - x.sum(1, keepdim=True)).square().mean(), list(twin.parameters()))
        loss.backward()
        seen.add(optimizer.extrapolated)
        for parameter, gradient in zip(model.parameters(), expected):
            torch.testing.assert_close(parameter.grad, gradient)
        optimizer.step()
    assert seen == {True, False}


# on the baselines ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("baseline", ["gpt", "vit"])  # GPT-2's layers are transposed
def test_a_large_group_penalty_switches_whole_units_off(baseline: str) -> None:
    stack = build("prox_grad_momentum:penalty=group,strength=100,factor=10")
    run = new_run(baseline, stack, recipe="classic", steps=3)
    run.train(3)
    technique = stack.techniques["prox_grad_momentum"]  # type: ignore[attr-defined]
    assert technique.probes(run)["zero_units_share"] > 0.9
    for block in run.anatomy.blocks:
        incoming = next(part for part in block.mlp_linears if part != block.mlp_output)
        x = torch.randn(2, run.anatomy.width, generator=torch.Generator().manual_seed(0))
        off = (incoming.module(x) - incoming.module(torch.zeros_like(x))).abs().amax(0) == 0
        assert off.float().mean() > 0.9, "the units that are off ignore their input"


# the study ----------------------------------------------------------------------------------------------------------


def test_tables_of_the_study() -> None:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(80, 6, generator=generator, dtype=torch.float64) * torch.logspace(0, -1, 6).double()
    probe = LinearProbe(features, features[:, :3].argmax(1), classes=3)
    descent, zeros = tables(probe, steps=60)
    plain, fast = ([row[column] for row in descent.rows] for column in (1, 2))
    assert fast == sorted(fast, reverse=True)
    assert fast[-1] <= plain[-1]
    assert [row[0] for row in zeros.rows] == ["apgnc", "subgradient descent"]
    assert zeros.rows[0][2] > 0 == zeros.rows[1][2]
    assert len(plot([descent, zeros]).axes) == 2
