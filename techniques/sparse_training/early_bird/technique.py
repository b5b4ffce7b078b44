"""Early-bird tickets: the network to keep is drawn as soon as the mask that training points at stops changing.

You et al., "Drawing Early-Bird Tickets: Toward More Efficient Training of Deep Networks" (ICLR 2020, arXiv 1909.11957),
algorithm 1: after every epoch the smallest scaling factors, which are under L1, give a mask; when it is within a
normalised Hamming distance of 0.1 of each of the four before it, pruning is real, and training goes on with the rest.

The paper prunes channels by the scales of batch norms, which a Transformer lacks. Here coefficients on attention heads
and on the neurons of MLPs stand in for them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from suite.loop.data import Batch
from suite.loop.run import Run
from suite.loop.sites import Act, Site
from suite.loop.technique import Technique
from techniques.sparse_training.shared.gates import Gates

EPOCHS = 160  # of the paper's training on CIFAR


def distance(one: Tensor, other: Tensor) -> float:
    """Computes the share of the entries in which two masks, bool [units], differ: the normalised Hamming distance."""
    return one.ne(other).double().mean().item()


def emerged(masks: Sequence[Tensor], memory: int, threshold: float) -> bool:
    """Tells whether the last of ``memory`` masks is within ``threshold`` of each of those before it."""
    return len(masks) == memory and all(distance(masks[-1], mask) <= threshold for mask in list(masks)[:-1])


@dataclass
class EarlyBird(Technique):
    """``share`` of each layer's heads and of all neurons goes, once ``memory`` masks, one every ``interval`` steps, are
    within ``threshold``. Until then the loss has ``penalty`` times the sum of |c|.

    ``interval`` 0 is an epoch of the paper's 160, of this run's steps, and no less than one step.
    """

    share: float = 0.3
    threshold: float = 0.1
    memory: int = 5
    penalty: float = 1e-4
    interval: int = 0
    zero_strength: ClassVar[Mapping[str, Any]] = {"share": 0.0}

    removed: Act = field(init=False, repr=False, default_factory=lambda: Act(due="run"))
    gates: Gates | None = field(init=False, repr=False, default=None)
    masks: deque[Tensor] = field(init=False, repr=False)
    ticket: list[list[int]] = field(init=False, repr=False, default_factory=list)  # empty until the ticket is drawn
    drawn_at: float = field(init=False, repr=False, default=1.0)  # progress

    def __post_init__(self) -> None:
        if not 0 <= self.share < 1:
            raise ValueError(f"share is the share of the units that go, in [0, 1), not {self.share}")
        if not 0 <= self.threshold < 1:
            raise ValueError(f"threshold is a share of a mask's entries, in [0, 1), not {self.threshold}")
        if self.memory < 2:
            raise ValueError(f"memory is a number of masks to compare, 2 or more, not {self.memory}")
        if self.interval < 0 or self.penalty < 0:
            raise ValueError(f"interval and penalty are 0 or more, not {self.interval} and {self.penalty}")
        self.masks = deque(maxlen=self.memory)

    def model(self, model: nn.Module, run: Run) -> nn.Module:
        if not self.share:
            return model
        if run.mesh is not None:
            raise ValueError("early_bird changes the model while it trains: use it in a single process")
        self.gates = Gates.on(model, run, self.share, self.share)
        return model

    def loss(self, loss: Tensor, outputs: Any, batch: Batch, run: Run) -> Tensor:
        if self.gates is None or self.ticket:
            return loss
        return loss + self.penalty * self.gates.penalty(run.model)

    def after_step(self, run: Run) -> None:
        if not self.gates or self.ticket or run.step % self.steps_between(run.recipe.steps):
            return
        masks = self.gates.masks(run.model, self.share, self.share)
        self.masks.append(torch.cat(masks))
        if emerged(self.masks, self.memory, self.threshold):
            self.draw(run, [mask.nonzero()[:, 0].tolist() for mask in masks], run.progress)

    def steps_between(self, steps: int) -> int:
        return self.interval or max(1, round(steps / EPOCHS))

    def draw(self, run: Run, ticket: list[list[int]], progress: float) -> None:
        """Removes all units but those of ``ticket``. Weights stay, with their coefficients multiplied in; the optimizer
        starts anew, and the learning rate goes on."""
        assert self.gates
        self.gates.fold(run.model)
        self.gates.prune(run.model, ticket)
        self.ticket, self.drawn_at = ticket, progress
        self.masks.clear()
        self.removed()
        run.adopt(run.model)

    def sites(self, run: Run) -> Mapping[str, Site]:
        gates = self.gates.at(run.model) if self.gates else {}
        coefficients = {f"{path}.coefficients": gate.coefficients for path, gate in gates.items()}
        return {"draws the ticket": self.removed, **coefficients}

    def probes(self, run: Run) -> Mapping[str, float]:
        """Computes ``drawn_at``: the share of the steps after which the ticket was drawn."""
        return {"drawn_at": self.drawn_at} if self.ticket else {}

    def state(self) -> dict[str, Any]:
        return {"kept": self.ticket, "drawn_at": self.drawn_at, "masks": list(self.masks)}

    def restore(self, state: dict[str, Any], run: Run) -> None:
        if state["kept"]:
            self.draw(run, state["kept"], state["drawn_at"])
        self.masks = deque(state["masks"], maxlen=self.memory)
