"""SNIP: sensitivity against the switches' own derivative, a choice without a trace, and the control."""

import pytest
import torch

from suite.loop.run import Run
from techniques.shared.sparse.masks import masked
from techniques.shared.sparse.topology import check_connected
from techniques.sparse_training.snip.technique import sensitivities
from tests.runs import new_run


def running(settings: str = "", baseline: str = "gpt", steps: int = 8) -> Run:
    return new_run(baseline, f"snip{settings}", size="pico", recipe="classic", steps=steps)


def test_sensitivity_is_the_derivative_by_a_switch_and_adds_up_to_1():
    generator = torch.Generator().manual_seed(0)
    inputs, first, second = (torch.randn(*shape, generator=generator) for shape in ((7, 5), (5, 6), (6, 3)))
    switches = [torch.ones_like(each, requires_grad=True) for each in (first, second)]

    def loss(one: torch.Tensor, two: torch.Tensor) -> torch.Tensor:
        return (inputs @ one).tanh().matmul(two).square().mean()

    expected = torch.autograd.grad(loss(switches[0] * first, switches[1] * second), switches)
    weights = [each.clone().requires_grad_() for each in (first, second)]
    scores = sensitivities(weights, torch.autograd.grad(loss(*weights), weights))
    total = sum(each.abs().sum() for each in expected)
    for score, derivative in zip(scores, expected, strict=True):
        torch.testing.assert_close(score, derivative.abs() / total)
    assert sum(each.sum() for each in scores).item() == pytest.approx(1.0)


def test_a_layer_without_connections_is_refused():
    masks = {"a": torch.tensor([True]), "b": torch.tensor([False]), "c": torch.tensor([False])}
    with pytest.raises(ValueError, match=r"leaves 2 of 3 without a connection \(b is one\).*lower sparsity"):
        check_connected(masks)
    with pytest.raises(ValueError, match="without a connection"):
        running(":sparsity=0.9999")


def test_choosing_leaves_no_trace_but_the_masks():
    """Neither gradients nor the mode, the random state or the order of the examples change."""
    plain, run = new_run("bert", size="pico", recipe="classic", steps=8), running(baseline="bert")
    assert all(each.grad is None for each in run.model.parameters())
    assert all(module.training for module in run.model.modules())
    assert torch.equal(plain.next_batch()[1], run.next_batch()[1])
    own = dict(run.model.named_parameters())
    matrices = {id(weight): mask for weight, mask in masked(run.anatomy)}
    for name, each in plain.model.named_parameters():
        kept = matrices.get(id(own[name]), torch.ones_like(each, dtype=torch.bool))
        assert torch.equal(own[name], each * kept)


def test_the_control_keeps_as_many_connections_in_each_layer():
    own, control = (masked(running(settings).anatomy) for settings in ("", ":shuffled=true"))
    for (_, mask), (_, shuffled) in zip(own, control, strict=True):
        assert int(mask.sum()) == int(shuffled.sum())
        assert not torch.equal(mask, shuffled)
