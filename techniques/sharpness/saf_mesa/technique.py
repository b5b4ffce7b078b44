"""Implements MESA: the trajectory loss of SAF against an average of the weights, where past outputs would not fit into
memory.

Du, Zhou, Feng, Tan & Zhou, "Sharpness-Aware Training for Free" (NeurIPS 2022, arXiv 2205.14083), the memory-efficient
variant: v <- decay v + (1 - decay) w after every step, and from E_start on

    L = cross-entropy + lambda tau^2 KL(softmax(f_v(x) / tau) || softmax(f_w(x) / tau))

for one more forward pass, at v, and one more copy of the weights.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from suite.loop.data import Batch
from suite.loop.run import Run
from suite.loop.sites import Act, Site
from suite.loop.technique import Technique
from techniques.sharpness.shared.sharpness import sharpness
from techniques.sharpness.shared.trajectory import check_trajectory, trajectory_losses

HORIZON = 5000 / (90 * 1251)  # 1 / (1 - 0.9998) steps of the authors' run: 90 epochs of 1,251 batches of 1,024
IGNORED = -100  # torch's label of a position without a target


@torch.no_grad()
def average_in(average: nn.Module, model: nn.Module, decay: float) -> None:
    """Computes v <- decay v + (1 - decay) w over the parameters of two models of one shape; buffers are copied."""
    torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), 1 - decay)
    for mine, theirs in zip(average.buffers(), model.buffers(), strict=True):
        mine.copy_(theirs)


def rows(logits: Tensor, batch: Batch) -> Tensor:
    """Returns logits [..., classes] as [rows, classes], without positions that have a label to say that they have no
    target."""
    labels = batch.get("labels")
    if logits.ndim == 2 or labels is None or labels.shape != logits.shape[:-1]:
        return logits.flatten(0, -2)
    return logits[labels != IGNORED]


@dataclass
class SafMesa(Technique):
    """``start`` is E_start as a share of the run, by default the authors' 5 of 90 epochs; ``strength`` is lambda.

    ``decay`` None keeps the average's memory the share of the run that it has in the authors' script, HORIZON. What is
    trained and evaluated is w; the average only teaches. ``probe_sharpness`` adds the probes of `sharpness`, which take
    second derivatives.
    """

    strength: float = 0.8
    temperature: float = 5.0
    decay: float | None = None
    start: float = 5 / 90
    probe_sharpness: bool = False
    teacher: nn.Module | None = field(init=False, repr=False, default=None)

    averaged: Act = field(init=False, repr=False, default_factory=Act)
    added: Act = field(init=False, repr=False, default_factory=partial(Act, "run"))

    zero_strength: ClassVar[dict[str, Any]] = {"strength": 0.0}

    def __post_init__(self) -> None:
        check_trajectory(self.strength, self.temperature, self.start)
        if self.decay is not None and not 0 <= self.decay < 1:
            raise ValueError(f"decay of the average lies in [0, 1), not {self.decay}")

    def decay_over(self, steps: int) -> float:
        """Returns the decay in a run of ``steps``."""
        return max(0.0, 1 - 1 / (HORIZON * steps)) if self.decay is None else self.decay

    def loss(self, loss: Tensor, outputs: Any, batch: Batch, run: Run) -> Tensor:
        if not self.strength:
            return loss
        if self.teacher is None or shapes(self.teacher) != shapes(run.model):  # at the start, or the model has grown
            self.teacher = frozen(run.model)
        if run.progress < self.start:
            return loss
        with torch.no_grad(), run.autocast():
            taught = run.baseline.forward(self.teacher, batch).logits
        divergences = trajectory_losses(rows(outputs.logits, batch), rows(taught, batch), self.temperature)
        self.added()
        return loss + self.strength * divergences.mean()

    def after_step(self, run: Run) -> None:
        if self.teacher is not None and shapes(self.teacher) == shapes(run.model):
            average_in(self.teacher, run.model, self.decay_over(run.recipe.steps))
            self.averaged()

    def sites(self, run: Run) -> Mapping[str, Site]:
        run.demand_whole("saf_mesa learns from a copy of the whole model")
        return {"averages the weights": self.averaged, "adds the trajectory loss": self.added}

    def probes(self, run: Run) -> Mapping[str, float]:
        return sharpness(run) if self.probe_sharpness else {}

    def state(self) -> dict[str, Any]:
        return {} if self.teacher is None else {"teacher": self.teacher.state_dict()}

    def restore(self, state: dict[str, Any], run: Run) -> None:
        self.teacher = None
        if state:
            self.teacher = frozen(run.model)
            self.teacher.load_state_dict(state["teacher"])


def frozen(model: nn.Module) -> nn.Module:
    """Makes a copy that neither learns nor drops out."""
    return copy.deepcopy(model).eval().requires_grad_(False)


def shapes(model: nn.Module) -> list[torch.Size]:
    return [parameter.shape for parameter in model.parameters()]
