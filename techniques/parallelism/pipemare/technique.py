"""Implements PipeMare (Yang et al., MLSys 2021): a pipeline that never drains and stashes no weights; the training
bears it.

Stage i of P (from 1) is 2 (P - i) + 1 micro-batches ahead, so that its forward passes use weights that are
tau_i = (2 (P - i) + 1) / N updates old when their gradient comes, N being the micro-batches of an update (table 1). The
backward pass uses the weights as they are then: one copy of them. Two things make up for that:

T1, learning-rate rescheduling (section 3.1): early in training a stage's rate is divided by its delay,

    rate_i(k) = rate(k) / tau_i ^ (1 - min(k / K, 1))

T2, discrepancy correction (section 3.2): the backward pass gets an estimate of the weights of the forward pass,

    u = w - (tau_fwd - tau_bkwd) delta         delta <- gamma delta + (1 - gamma) (w_new - w_old)
    gamma = D ^ (1 / (tau_fwd - tau_bkwd))
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from suite.loop.run import Run
from suite.loop.sites import Act, Site
from suite.loop.technique import ParameterGroups
from suite.pipeline.timetable import Kind, PipelineOp, PipelineSchedule, steady
from techniques.parallelism.shared.pipelined import Pipelined


def ahead(stages: int, stage: int) -> int:
    """Counts the micro-batches that a stage (from 0) is ahead of its backward passes: 2 (P - i) + 1."""
    return 2 * (stages - 1 - stage) + 1


def without_stash(stages: int, micro_batches: int) -> PipelineSchedule:
    """Schedules each pass at the newest weights."""

    def version(kind: Kind, stage: int, micro: int, step: int) -> int:
        return step

    return steady(stages, micro_batches, partial(ahead, stages), version)


def rescheduled(tau: float, step: int, over: float) -> float:
    """Computes the factor of a stage's learning rate (T1); 1 for a stage that is late by one update or less."""
    return max(tau, 1.0) ** -(1.0 - min(step / over, 1.0)) if over > 0 else 1.0


def corrected(weight: Tensor, delta: Tensor, tau: float) -> Tensor:
    """Estimates what the weights were in the forward pass (T2)."""
    return weight - tau * delta


def drifted(delta: Tensor, moved: Tensor, tau: float, decay: float) -> Tensor:
    """Computes the next estimate of how far a weight moves in an update (T2)."""
    gamma = decay ** (1.0 / tau)
    return gamma * delta + (1.0 - gamma) * moved


@dataclass
class PipeMare(Pipelined):
    """``reschedule`` is T1, over ``annealed`` of the run's steps (K); ``correct`` is T2, whose ``decay`` is D."""

    micro_batches: int = 1
    reschedule: bool = True
    correct: bool = True
    annealed: float = 0.25
    decay: float = 0.1
    flushes: ClassVar[bool] = False

    deltas: dict[str, Tensor] = field(init=False, repr=False, default_factory=dict)
    slowed: Act = field(init=False, repr=False, default_factory=Act)
    estimated: Act = field(init=False, repr=False, default_factory=Act)

    def __post_init__(self) -> None:
        if self.micro_batches < 1:
            raise ValueError(f"a batch has 1 micro-batch or more, not {self.micro_batches}")
        if not 0 < self.decay < 1:
            raise ValueError(f"decay, the paper's D, lies between 0 and 1, not at {self.decay}")
        if not 0 < self.annealed <= 1:
            raise ValueError(f"annealed is a share of the run's steps above 0, not {self.annealed}")
        super().__post_init__()

    def model(self, model: nn.Module, run: Run) -> nn.Module:
        if run.recipe.precision != "fp32":
            raise ValueError(
                f"pipemare trains in fp32, not in {run.recipe.precision}: autocast keeps a forward pass's weights for "
                "its backward pass; take the recipe classic, and no technique of mixed precision"
            )
        return super().model(model, run)

    def parameters(self, groups: ParameterGroups, run: Run) -> ParameterGroups:
        """Groups parameters by the first stage that has a parameter, whose delay is its rate's: copies of a tied one
        stay equal."""
        names = {id(parameter): name for name, parameter in run.model.named_parameters()}
        stage_groups = []
        for group in groups:
            stages = [self.stages.owners(names[id(parameter)])[0] for parameter in group["params"]]
            for stage in sorted(set(stages)):
                own = [parameter for parameter, at in zip(group["params"], stages, strict=True) if at == stage]
                stage_groups.append({**group, "params": own, "stage": stage})
        return stage_groups

    def schedule(self) -> PipelineSchedule:
        return without_stash(self.ranks, self.micro_batches)

    def tau(self, stage: int) -> float:
        """Computes the updates by which a stage's forward passes are late, on average."""
        return ahead(self.ranks, stage) / self.micro_batches

    @contextmanager
    def weights_of_backward(self, run: Run, op: PipelineOp) -> Iterator[None]:
        if not self.correct:
            yield
            return
        own = dict(run.model.named_parameters())
        newest = {name: value.detach().clone() for name, value in own.items()}
        for name, delta in self.deltas.items():
            own[name].data.copy_(corrected(newest[name], delta, self.tau(op.stage)))
        self.estimated()
        try:
            yield
        finally:
            for name, value in own.items():
                value.data.copy_(newest[name])

    def optimize(self, run: Run) -> None:
        tau = self.tau(run.rank)
        if self.reschedule:
            for group in run.optimizer.param_groups:
                group["lr"] *= rescheduled(self.tau(group["stage"]), run.step, self.annealed * run.recipe.steps)
            self.slowed()
        trained = {name: parameter for name, parameter in run.model.named_parameters() if parameter.requires_grad}
        before = {name: parameter.detach().clone() for name, parameter in trained.items()} if self.correct else {}
        super().optimize(run)
        for name, old in before.items():
            delta = self.deltas.get(name, torch.zeros_like(old))
            self.deltas[name] = drifted(delta, trained[name].detach() - old, tau, self.decay)

    def sites(self, run: Run) -> Mapping[str, Site]:
        acts = {"reschedules the rate": self.slowed} if self.reschedule else {}
        acts |= {"corrects the weights": self.estimated} if self.correct else {}
        return {**super().sites(run), **acts}

    def state(self) -> dict[str, Any]:
        return {**super().state(), "deltas": self.deltas}

    def restore(self, state: dict[str, Any], run: Run) -> None:
        self.deltas = state["deltas"]
        super().restore(state, run)
