"""Has the example that ``leantrain new --wraps-optimizer`` writes: gradient centralisation, an optimizer around
another."""

TECHNIQUE = '''\
"""{name}: gradient centralisation (Yong et al., 2020, equation 1), an optimizer around the stack's.

This working example takes from each unit's gradient its mean over the unit's inputs; replace it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from leantrain.technique import Run, Technique, WrappedOptimizer


def centralized(gradient: Tensor) -> Tensor:
    """``gradient`` [units, ...] less the mean over all dimensions but the first; a vector stays as it is."""
    inputs = tuple(range(1, gradient.ndim))
    return gradient - gradient.mean(inputs, keepdim=True) if inputs else gradient


class {cls}Optimizer(WrappedOptimizer):
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        for parameter in self.with_gradient():
            assert parameter.grad is not None
            parameter.grad = centralized(parameter.grad)
        return super().step(closure)


@dataclass
class {cls}(Technique):
    def wrap_optimizer(self, optimizer: Optimizer, run: Run) -> Optimizer:
        return {cls}Optimizer(optimizer)
'''

PROBES = '''\
"""What a recorded step shows of {name}, in float64, without the functions that it judges."""

from collections.abc import Mapping

import torch
from torch import Tensor

from leantrain.technique import Recording, judged
from {package}.{category}.{id}.technique import {cls}


@judged(
    "roundings",
    "Each matrix's gradient loses its mean over a unit's inputs, to roundings; a vector's stays.",
    "equation 1",
    id="less_its_means",
    at_most=2.0,  # of the mean, and of the difference
)
@judged(
    "mean_in_moment",
    "The optimizer gets the centralised gradients: its first moment has no mean over a unit's inputs.",
    "algorithm 1",
    id="before_the_step",
    at_most=1e-6,  # 8 roundings of float32
)
def probes(recording: Recording, own: {cls}) -> Mapping[str, float]:
    """``mean_in_moment`` is AdamW's, relative to the moment's largest number; both are the largest of all units."""
    update = recording.trace.update
    roundings = mean_in_moment = 0.0
    for name, gradient in update.before.gradients.items():
        expected = gradient.double()
        if gradient.ndim > 1:
            rows = expected.flatten(1)
            expected = (rows - rows.mean(1, keepdim=True)).view_as(gradient)
            moment = update.after.state[name]["exp_avg"].double().flatten(1)
            mean_in_moment = max(mean_in_moment, _largest(moment.mean(1) / moment.abs().amax()))
        unit = torch.finfo(gradient.dtype).eps * gradient.double().abs().amax()
        roundings = max(roundings, _largest((update.after.gradients[name].double() - expected) / unit))
    return {{"roundings": roundings, "mean_in_moment": mean_in_moment}}


def _largest(values: Tensor) -> float:
    return values.abs().nan_to_num().max().item()  # of 0, 0: nothing is off
'''

MUTANTS = """\
# The technique as a careless implementer would write it: a claim or a property must notice each of these.

[[mutant]]
name = "wrong sign"
old = "gradient - gradient.mean"
new = "gradient + gradient.mean"

[[mutant]]
name = "one mean for all units"
old = "range(1, gradient.ndim)"
new = "range(gradient.ndim)"

[[mutant]]
name = "means over units"
old = "range(1, gradient.ndim)"
new = "range(gradient.ndim - 1)"

[[mutant]]
name = "vectors, too"
old = "if inputs else gradient"
new = "if inputs else gradient - gradient.mean()"

[[mutant]]
name = "after the step"
old = "        for parameter in self.with_gradient():"
new = "        self.optimizer.step()\\n        for parameter in self.with_gradient():"
"""

TEST = '''\
"""{name} against its formula, by hand."""

import torch

from {package}.{category}.{id}.technique import centralized


def test_each_unit_s_gradient_loses_its_mean() -> None:
    assert centralized(torch.tensor([[1.0, 3.0], [2.0, -4.0]])).tolist() == [[-1.0, 1.0], [3.0, -3.0]]
    assert centralized(torch.tensor([[[1.0], [3.0]]])).tolist() == [[[-1.0], [1.0]]]


def test_a_vector_stays() -> None:
    assert centralized(torch.tensor([5.0, 6.0])).tolist() == [5.0, 6.0]
'''
