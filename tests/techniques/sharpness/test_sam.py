"""SAM against its closed form on a quadratic, and the identities of the ascent."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from suite.baseline import baselines
from suite.catalogue import build
from suite.comparison import Comparison, replicate
from suite.run import Run
from techniques.sharpness.sam.technique import Sam, ascend, restore


def parameters(seed: int = 0) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    made = [nn.Parameter(torch.randn(shape, generator=generator) * 0.3) for shape in [(40, 30), (30,), (7, 5, 3)]]
    for parameter in made:
        parameter.grad = torch.randn(parameter.shape, generator=generator) * 3
    return made


def test_ascent_has_norm_rho_along_the_joint_gradient() -> None:
    weights = parameters()
    flat = torch.cat([p.grad.flatten() for p in weights if p.grad is not None]).double()
    copies = ascend(weights, 0.05)
    moved = torch.cat([(p.detach().double() - c.double()).flatten() for p, c in zip(weights, copies)])
    torch.testing.assert_close(moved.norm().item(), 0.05, rtol=1e-6, atol=0)
    torch.testing.assert_close(moved, 0.05 * flat / flat.norm(), rtol=1e-4, atol=1e-7)


def test_weights_come_back_to_the_bit_where_subtraction_would_not() -> None:
    weights = parameters()
    before = [p.detach().clone() for p in weights]
    copies = ascend(weights, 0.05)
    subtracted = [p.detach() - p.grad for p in weights if p.grad is not None]
    restore(weights, copies)
    assert all(torch.equal(p, b) for p, b in zip(weights, before))
    assert not all(torch.equal(s, b) for s, b in zip(subtracted, before))


def test_a_zero_gradient_perturbs_nothing() -> None:
    weights = parameters()
    for each in weights:
        each.grad = torch.zeros_like(each)
    copies = ascend(weights, 0.05)
    assert all(torch.equal(p, c) for p, c in zip(weights, copies))


class Quadratic:
    """What Sam.update needs of a run: loss theta' A theta / 2 with dropout-like noise that must repeat."""

    def __init__(self, clip: float = 0.0) -> None:
        root = torch.randn(6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        self.matrix = root @ root.T
        self.theta = nn.Parameter(torch.arange(1.0, 7.0, dtype=torch.float64))
        self.model = nn.ParameterList([self.theta])
        self.optimizer = torch.optim.SGD(self.default_parameters(), lr=0.1)
        self.device, self.generator = torch.device("cpu"), torch.Generator().manual_seed(5)
        self.noise: list[tuple[float, float]] = []
        self.given: Tensor | None = None

    def default_parameters(self) -> list[dict[str, Any]]:
        return [{"params": [self.theta]}]

    def forward(self, batch: Any) -> Tensor:
        self.noise.append((torch.rand(()).item(), torch.rand((), generator=self.generator).item()))
        return self.theta @ self.matrix @ self.theta / 2

    def backward(self, loss: Tensor) -> None:
        loss.backward()

    def apply_gradients(self) -> None:
        assert self.theta.grad is not None
        self.given, self.at = self.theta.grad.clone(), self.theta.detach().clone()


def test_gradient_on_a_quadratic_and_replayed_noise() -> None:
    run = Quadratic()
    theta = run.theta.detach().clone()
    Sam(rho=0.3).update(run, {})  # type: ignore[arg-type]
    gradient = run.matrix @ theta
    torch.testing.assert_close(run.given, run.matrix @ (theta + 0.3 * gradient / gradient.norm()))
    assert torch.equal(run.at, theta), "the step is taken from the unperturbed weights"
    assert len(run.noise) == 2
    assert run.noise[0] == run.noise[1]


def test_only_the_second_gradient_is_reduced_and_clipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice forward and backward, once apply_gradients (reduction, clipping, step)."""
    calls = SimpleNamespace(forward=0, backward=0, apply_gradients=0)
    run = Run(baselines()["vit"], build("sam"), steps=4)
    for name in vars(calls):
        original = getattr(run, name)

        def counted(*arguments: Any, name: str = name, original: Any = original) -> Any:
            setattr(calls, name, getattr(calls, name) + 1)
            return original(*arguments)

        monkeypatch.setattr(run, name, counted)
    run.train(1)
    assert vars(calls) == {"forward": 2, "backward": 2, "apply_gradients": 1}


@pytest.mark.parametrize("reference", ["dp_ddp", "zero1"])
def test_each_of_several_ranks_ascends_on_its_own_gradient(reference: str) -> None:
    """The first gradient is not reduced, so a step sends what the reference's does (section 4.1: m-sharpness)."""
    comparison = Comparison((reference, f"sam+{reference}"), "vit", steps=4, rounds=1)
    record = replicate(comparison, 0, equal_time=False)
    assert [each.status for each in record.contenders] == ["ok", "ok"], [each.reason for each in record.contenders]
    alone, with_sam = (each.counters.communication_bytes for each in record.contenders if each.counters)
    assert alone and with_sam == alone
