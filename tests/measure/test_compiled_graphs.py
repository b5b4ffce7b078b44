"""The cut of the joint graph against a graph whose cheapest cut is known."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from suite.measure.at_scale.weightless import weightless
from suite.measure.contenders.compiled_graphs import partitioned_graphs
from suite.meters.activations import SavedActivations


class Chain(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.sin().exp().tanh().cos()


def saved(module: nn.Module, x: Tensor) -> int:
    with SavedActivations() as meter:
        module(x).sum().backward()
    return meter.saved_bytes


def test_a_chain_of_elementwise_operators_saves_its_input_alone() -> None:
    with weightless(), partitioned_graphs():
        x = torch.empty(1000, requires_grad=True)
        assert saved(Chain(), x) == 3 * x.nbytes  # sine's input, exponential's output, tangent's output
        assert saved(torch.compile(Chain()), x) == x.nbytes
        assert x.grad is not None and x.grad.shape == x.shape


def test_torch_compile_is_itself_again_and_functions_are_compiled_as_ever() -> None:
    compile = torch.compile
    with partitioned_graphs():
        assert torch.compile is not compile
    assert torch.compile is compile
