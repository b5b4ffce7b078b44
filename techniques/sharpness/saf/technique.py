"""Implements SAF: learn from the labels, and do not move far from what one said of the same example some epochs ago.

Du, Zhou, Feng, Tan & Zhou, "Sharpness-Aware Training for Free" (NeurIPS 2022, arXiv 2205.14083). The trajectory loss
takes the place of SAM's second gradient, from epoch E_start on:

    L = cross-entropy + lambda tau^2 KL(softmax(f_past(x) / tau) || softmax(f(x) / tau))

where f_past are the logits of x that the run itself stored E~ epochs before: N E~ C numbers in host memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from suite.loop.data import Batch
from suite.loop.run import Run
from suite.loop.sites import Act, Site
from suite.loop.technique import Technique
from techniques.sharpness.shared.sharpness import sharpness
from techniques.sharpness.shared.trajectory import check_trajectory, trajectory_losses


class PastOutputs:
    """Holds the latest ``depth`` outputs of every example, float32 in host memory, and how often each was stored.

    Slots are counted by an example's own visits, not by epochs, so that any sampler will do. What is asked for is the
    output of ``depth`` visits ago: the slot that the next one overwrites, so that reading before writing saves a slot.
    """

    def __init__(self, depth: int, examples: int, classes: int) -> None:
        self.outputs = torch.zeros(depth, examples, classes)
        self.visits = torch.zeros(examples, dtype=torch.int64)

    def get(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Returns outputs of ``depth`` visits ago [batch, classes], or the oldest where there are fewer; and where
        there are any at all, bool [batch]: an example without one must not be read as all zeros, a uniform opinion."""
        visits, depth = self.visits[indices], len(self.outputs)
        slots = torch.where(visits >= depth, visits % depth, 0)
        return self.outputs[slots, indices], visits > 0

    def put(self, indices: Tensor, outputs: Tensor) -> None:
        """Stores outputs [batch, classes]; of an example that stands in the batch twice, the last."""
        slots = self.visits[indices] % len(self.outputs)
        self.outputs.numpy()[slots.numpy(), indices.numpy()] = outputs.float().cpu().numpy()  # in order, unlike torch
        self.visits[indices] += 1


@dataclass
class Saf(Technique):
    """``start`` is E_start as a share of the run, by default the authors' 5 of 90 epochs; ``epochs_ago`` is E~.

    ``strength`` is lambda. In a run of few epochs, where an example has fewer than E~ outputs, its oldest one serves.
    ``probe_sharpness`` adds the probes of `sharpness`, which take second derivatives.
    """

    strength: float = 0.3
    temperature: float = 5.0
    epochs_ago: int = 3
    start: float = 5 / 90
    probe_sharpness: bool = False
    past: PastOutputs | None = field(init=False, repr=False, default=None)
    seen: dict[tuple[int, ...], Tensor] = field(init=False, repr=False, default_factory=dict)  # by a batch's indices

    stored: Act = field(init=False, repr=False, default_factory=Act)
    added: Act = field(init=False, repr=False, default_factory=partial(Act, "run"))

    zero_strength: ClassVar[dict[str, Any]] = {"strength": 0.0}

    def __post_init__(self) -> None:
        check_trajectory(self.strength, self.temperature, self.start)
        if self.epochs_ago < 1:
            raise ValueError(
                f"epochs_ago, the age of the outputs to stay near, must be at least 1, not {self.epochs_ago}"
            )

    def loss(self, loss: Tensor, outputs: Any, batch: Batch, run: Run) -> Tensor:
        if not self.strength:
            return loss
        logits: Tensor = outputs.logits
        if logits.ndim != 2 or len(logits) != len(run.indices):
            raise ValueError(
                f"saf keeps one row of class logits for each example; this model gives {list(logits.shape)} for "
                f"{len(run.indices)} examples. For outputs per token use saf_mesa, which keeps weights instead"
            )
        if self.past is None:
            self.past = PastOutputs(self.epochs_ago, len(run.data.train), logits.shape[1])
        # of a batch's passes in a step the first: at the weights themselves, not at perturbed ones
        self.seen.setdefault(tuple(run.indices.tolist()), logits.detach())
        if run.progress < self.start:
            return loss
        before, known = self.past.get(run.indices)
        if not known.any():
            return loss
        divergences = trajectory_losses(logits, before.to(logits.device, non_blocking=True), self.temperature)
        self.added()
        return loss + self.strength * (divergences * known.to(logits.device)).mean()

    def after_step(self, run: Run) -> None:
        for indices, outputs in self.seen.items():
            assert self.past is not None
            self.past.put(torch.tensor(indices), outputs)
            self.stored()
        self.seen.clear()

    def sites(self, run: Run) -> Mapping[str, Site]:
        run.demand_whole("saf remembers the outputs of whole batches")
        return {"stores outputs": self.stored, "adds the trajectory loss": self.added}

    def probes(self, run: Run) -> Mapping[str, float]:
        measured = sharpness(run) if self.probe_sharpness else {}
        if self.past is None:
            return measured
        return measured | {"examples_with_a_past": (self.past.visits > 0).float().mean().item()}

    def state(self) -> dict[str, Any]:
        return {} if self.past is None else {"outputs": self.past.outputs, "visits": self.past.visits}

    def restore(self, state: dict[str, Any], run: Run) -> None:
        self.past = None
        if state:
            self.past = PastOutputs(*state["outputs"].shape)
            self.past.outputs, self.past.visits = state["outputs"].cpu(), state["visits"].cpu()
