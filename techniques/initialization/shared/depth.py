"""Builds baselines of other depths, and tells what one step does to them: for ``rezero``, ``fixup``, ``skipinit``,
``tfixup`` and ``layerscale``.

A step's effect is the theory behind these (Fixup, section 2; T-Fixup, section 3.2): a first update that moves the
outputs more the deeper the network is, at one learning rate, is what diverges. The theory is of steps along the
gradient; how far Adam goes does not follow from how large the gradient is.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import linear_regression

import torch
from torch import Tensor, nn

from suite.device.random_state import unchanged_randomness
from suite.entries.installed import baseline_of
from suite.entries.jobs import run_of
from suite.loop.baseline import Baseline
from suite.loop.data import Batch, Data
from suite.loop.run import Run
from suite.loop.sites import Act, Site
from suite.loop.stack import Stack
from suite.loop.technique import Technique
from suite.model.anatomy import anatomy
from suite.record.job import Job, Setting, Size
from techniques.shared.residual import remove_norms

SMALL = 1e-3  # a rate at which outputs follow parameters nearly in proportion


def deep(whole: Baseline, depth: int) -> Baseline:
    """Returns the baseline with ``depth`` blocks in its main stack: its own ones, and as random ones after them."""

    def model(size: Size, data: Data, override: str | None = None) -> nn.Module:
        built = whole.model(size, data, override)
        parts = anatomy(built)
        own = [block.module for block in parts.blocks]
        parts.set_blocks([own[i] if i < len(own) else redrawn(own[i % len(own)]) for i in range(depth)])
        return built

    other = copy.copy(whole)
    other.model = model  # type: ignore[method-assign]
    return other


@torch.no_grad()
def redrawn(block: nn.Module) -> nn.Module:
    """Returns a copy of a fresh block whose matrices have their numbers in another order: as random as the block is."""
    other = copy.deepcopy(block)
    for parameter in other.parameters():
        if parameter.ndim >= 2:
            parameter.copy_(parameter.flatten()[torch.randperm(parameter.numel())].view_as(parameter))
    return other


def deep_run(setting: Setting, stack: Stack, depth: int, seed: int = 0, baseline: Baseline | None = None) -> Run:
    """Starts a run of a stack on the baseline with ``depth`` blocks."""
    whole = baseline or baseline_of(setting)
    return run_of(Job(setting=setting, seed=seed), technique=stack, baseline=deep(whole, depth))


@dataclass
class WithoutNorms(Technique):
    """Removes all norms of the residual streams, and puts nothing in their place."""

    removal: Act = field(init=False, repr=False, default_factory=Act)

    def model(self, model: nn.Module, run: Run) -> nn.Module:
        remove_norms(anatomy(model))
        self.removal()
        return model

    def sites(self, run: Run) -> Mapping[str, Site]:
        return {"removes norms": self.removal}


def first_step(run: Run) -> float:
    """Measures how far a run's first step moves its outputs for the batch that it trains on, root mean square."""
    batch, indices = run.next_batch()
    before = _outputs(run, batch)
    run.train_step(batch, indices)
    return _distance(before, _outputs(run, batch))


def gradient_step(run: Run) -> float:
    """Measures the same of a small step along the gradient, in units of its rate: what theory says that a step does.
    The run's parameters move."""
    batch, _ = run.next_batch()
    before = _outputs(run, batch)
    parameters = [parameter for parameter in run.model.parameters() if parameter.requires_grad]
    with run.autocast():
        loss = run.baseline.losses(run.baseline.forward(run.model, batch), batch).mean()
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
    with torch.no_grad():
        for parameter, gradient in zip(parameters, gradients, strict=True):
            if gradient is not None:
                parameter.sub_(SMALL * gradient)
    return _distance(before, _outputs(run, batch)) / SMALL


def _outputs(run: Run, batch: Batch) -> Tensor:
    with unchanged_randomness(run.device), torch.no_grad(), run.autocast():
        logits: Tensor = run.baseline.forward(run.model, batch).logits
    return logits.double()


def _distance(before: Tensor, after: Tensor) -> float:
    return (after - before).square().mean().sqrt().item()


def slope(depths: Sequence[int], changes: Sequence[float]) -> float:
    """Fits the slope of the logarithm of the changes over that of the depths, by least squares; infinite where one is
    not finite."""
    if not all(0 < change < math.inf for change in changes):
        return math.inf
    return linear_regression([math.log(depth) for depth in depths], [math.log(change) for change in changes]).slope
