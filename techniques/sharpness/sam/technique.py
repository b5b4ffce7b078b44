"""SAM: descend along the gradient taken at the worst point of a small ball around the weights.

Foret, Kleiner, Mobahi & Neyshabur, "Sharpness-Aware Minimization for Efficiently Improving Generalization" (ICLR 2021,
arXiv 2010.01412), Algorithm 1 with p = 2:

    e = rho grad L_B(w) / ||grad L_B(w)||_2          w <- base step along grad L_B(w + e)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from suite.data import Batch
from suite.optimizer import launchable
from suite.run import Run
from suite.technique import Technique


@torch.no_grad()
def ascend(parameters: Sequence[Tensor], rho: float, launch: dict[str, Any] | None = None) -> list[Tensor]:
    """Moves ``parameters`` by rho along their joint normalised gradient; returns copies of what they were.

    The norm is over all of them together. Their gradients may be overwritten with the step. Copies, because subtracting
    the step again gives back the weights only up to rounding. On a GPU this is two launches; a dictionary ``launch``,
    empty at first, keeps their tables between calls for the same parameters.
    """
    steps = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if launchable([*parameters, *steps]):
        from techniques.sharpness.sam import kernel

        return kernel.ascend(parameters, steps, rho, _tables(launch, "ascend"))
    copies = [parameter.clone() for parameter in parameters]
    norm = nn.utils.get_total_norm(steps)
    torch._foreach_mul_(steps, rho / (norm + 1e-12))  # the guard of the authors' code for a zero gradient
    torch._foreach_add_(list(parameters), steps)
    return copies


@torch.no_grad()
def restore(parameters: Sequence[Tensor], copies: Sequence[Tensor], launch: dict[str, Any] | None = None) -> None:
    """The inverse of :func:`ascend`, to the bit."""
    if launchable([*parameters, *copies]):
        from techniques.sharpness.sam import kernel

        kernel.restore(parameters, copies, _tables(launch, "restore"))
    else:
        torch._foreach_copy_(list(parameters), list(copies))


def _tables(launch: dict[str, Any] | None, way: str) -> Any:
    from techniques.sharpness.sam import kernel

    launch = {} if launch is None else launch
    if way not in launch:
        launch[way] = kernel.launch_tables()
    return launch[way]


class Noise:
    """The state of every random generator that a forward pass draws from, so that a second pass sees the same masks."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.cpu = torch.get_rng_state()
        self.cuda = torch.cuda.get_rng_state(run.device) if run.device.type == "cuda" else None
        self.own = run.generator.get_state()

    def replay(self) -> None:
        torch.set_rng_state(self.cpu)
        if self.cuda is not None:
            torch.cuda.set_rng_state(self.cuda, self.run.device)
        self.run.generator.set_state(self.own)


@dataclass
class Sam(Technique):
    """Two forward and two backward passes a step; the second gradient is clipped and given to the optimizer."""

    rho: float = 0.05
    launch: dict[str, Any] = field(init=False, repr=False, compare=False, default_factory=dict)

    zero_strength: ClassVar[dict[str, Any]] = {"rho": 0.0}

    def __post_init__(self) -> None:
        if not self.rho >= 0:
            raise ValueError(f"rho, the radius of the ball, must be 0 or more, not {self.rho}")

    def update(self, run: Run, batch: Batch) -> None:
        run.optimizer.zero_grad(set_to_none=True)
        noise = Noise(run)
        with getattr(run.model, "no_sync", nullcontext)():  # of several ranks, each ascends on its own examples
            loss = run.forward(batch)
            run.backward(loss)
        run.loss = loss.detach()
        trained = with_gradient(run)
        copies = ascend(trained, self.rho, self.launch)
        run.model.zero_grad(set_to_none=True)
        noise.replay()
        run.backward(run.forward(batch))
        restore(trained, copies, self.launch)
        run.apply_gradients()

    def probes(self, run: Run) -> Mapping[str, float]:
        """How exactly the ball's radius is met, by one more ascent along the last gradient."""
        trained = with_gradient(run)
        if not trained or not self.rho:
            return {}
        copies = ascend(trained, self.rho, self.launch)
        moved = nn.utils.get_total_norm(torch._foreach_sub([p.detach() for p in trained], copies))
        restore(trained, copies, self.launch)
        return {"radius_relative_error": abs(moved.item() / self.rho - 1)}


def with_gradient(run: Run) -> list[Tensor]:
    """The weights that the ball is around: all that train, whole, also where the optimizer holds shards of them."""
    return [p for group in run.default_parameters() for p in group["params"] if p.grad is not None]
