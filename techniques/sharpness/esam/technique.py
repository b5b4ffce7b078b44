"""Implements ESAM: SAM that perturbs a random part of the weights and learns from the examples whose loss the
perturbation raises.

Du, Yan, Feng, Zhou, Zhen, Goh & Tan, "Efficient Sharpness-aware Minimization for Improved Training of Neural Networks"
(ICLR 2022, arXiv 2110.03141). Stochastic weight perturbation (SWP) and sharpness-sensitive data selection (SDS):

    e = (rho / beta) m g / ||g||        m ~ Bernoulli(beta) for each tensor, g = grad L_B(w)
    B+ = the gamma |B| examples with the largest l(w + e) - l(w)
    w <- base step along grad L_B+(w + e)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from suite.loop.data import Batch
from suite.loop.run import Run
from suite.loop.sites import Act, Site
from suite.loop.technique import Technique, auxiliary_of
from techniques.sharpness.shared.ascent import Ascent, Noise, ascend, check_radius, finite, restore
from techniques.sharpness.shared.sharpness import sharpness


def drawn(parameters: Sequence[Tensor], beta: float, generator: torch.Generator) -> list[Tensor]:
    """Draws the tensors that this step perturbs: each with probability ``beta``, on its own."""
    mask = (torch.rand(len(parameters), generator=generator) < beta).tolist()
    return [parameter for parameter, keep in zip(parameters, mask, strict=True) if keep]


def sharpest(rise: Tensor, gamma: float) -> Tensor:
    """Returns ascending indices of the ``gamma`` share of examples (one at least) with the largest rise of the loss
    [batch].

    A count, not a comparison with a cut-off value: ``rise > cutoff`` drops the example at the cut-off, all of several
    equal ones, and with them perhaps the whole batch.
    """
    count = max(1, round(gamma * len(rise)))
    return rise.topk(count).indices.sort().values


def sometimes() -> Ascent:
    """Builds an ascent for a step that may perturb no tensor."""
    return Ascent(Act("run"), Act("run"))


@dataclass
class Esam(Technique):
    """Takes ``norm`` over the ``selected`` tensors, as the authors' code has it: the other weight gradients are never
    computed, and ||e|| = rho / beta exactly. Over ``all`` of them, as the formula has it, E[e] is SAM's e, and every
    weight gradient is needed.

    With beta = gamma = 1 it is SAM. ``probe_sharpness`` adds the probes of `sharpness`, which take second derivatives.
    """

    rho: float = 0.05
    beta: float = 0.6
    gamma: float = 0.5
    norm: Literal["selected", "all"] = "selected"
    probe_sharpness: bool = False
    losses: Tensor | None = field(init=False, repr=False, default=None)  # of each example in the latest forward pass

    acts: Ascent = field(init=False, repr=False, default_factory=sometimes)
    selected: Act = field(init=False, repr=False, default_factory=Act)

    zero_strength: ClassVar[dict[str, Any]] = {"rho": 0.0, "gamma": 1.0}

    @property
    def takes_own_gradients(self) -> bool:
        return True

    def __post_init__(self) -> None:
        check_radius(self.rho)
        for name in ("beta", "gamma"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"{name} is a share in (0, 1], not {getattr(self, name)}")

    def loss(self, loss: Tensor, outputs: Any, batch: Batch, run: Run) -> Tensor:
        if self.gamma < 1:
            with torch.no_grad():
                self.losses = run.baseline.losses(outputs, batch)
        return loss

    def update(self, run: Run, batch: Batch) -> None:
        trained = trainable(run)
        chosen = drawn(trained, self.beta, run.generator)
        run.optimizer.zero_grad(set_to_none=True)
        noise = Noise(run)
        with run.unreduced():  # each rank its own perturbation: nothing to reduce
            loss = run.forward(batch)
            run.loss = loss.detach()
            if self.norm == "all":
                run.backward(loss)
            elif chosen:
                loss.backward(inputs=chosen)
        if not finite(run, trained):
            return
        before = self.losses
        moved, weights = self.perturb(trained, chosen)
        if moved:
            self.acts.away()
        run.model.zero_grad(set_to_none=True)
        indices = run.indices
        if self.gamma < 1:
            with noise.replayed(), torch.no_grad():
                run.forward(batch)
            assert before is not None and self.losses is not None
            selection = sharpest(self.losses - before, self.gamma)
            self.selected()
            batch = {name: tensor[selection] for name, tensor in batch.items()}
            run.indices = indices[selection.cpu()]
        with noise.replayed():
            run.backward(run.forward(batch))
        run.indices = indices
        if moved:
            restore(moved, weights)
            self.acts.back()
        run.apply_gradients()

    def perturb(self, trained: Sequence[Tensor], chosen: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Moves those ``chosen`` tensors that have a gradient by (rho / beta) m g / ||g||; returns them and what they
        were."""
        moved = [parameter for parameter in chosen if parameter.grad is not None]
        if not moved:
            return [], []
        radius = self.rho / self.beta
        if self.norm == "all":
            whole = nn.utils.get_total_norm([p.grad for p in trained if p.grad is not None]).item()
            radius *= nn.utils.get_total_norm([p.grad for p in moved if p.grad is not None]).item() / (whole + 1e-12)
        return moved, ascend(moved, radius)

    def sites(self, run: Run) -> Mapping[str, Site]:
        selection = {"selects examples": self.selected} if self.gamma < 1 else {}
        return self.acts.sites(run) | selection

    def probes(self, run: Run) -> Mapping[str, float]:
        return sharpness(run) if self.probe_sharpness else {}


def trainable(run: Run) -> list[Tensor]:
    """Returns the model's own parameters, not those that its optimizer may hold in their place (shards)."""
    beside = auxiliary_of(run.optimizer)
    return [p for group in run.default_parameters() for p in group["params"] if id(p) not in beside]
