"""Mixed precision in float16 with loss scaling (Micikevicius et al., ICLR 2018, arXiv 1710.03740, section 3).

    forward under autocast to float16; weights stay float32 (the master copy, 3.1)
    backward of scale * loss                                                       (3.2)
    gradients /= scale, in float32
    if all are finite: clip, step; after ``interval`` such steps scale *= ``growth``
    else:              leave the step out; scale *= ``backoff``

Products add up in float32 (3.3), which is the hardware's and torch's affair.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from suite.contract.data import Batch
from suite.contract.run import Diverged, Run
from suite.contract.sites import Act, Site
from suite.contract.technique import Technique
from suite.model.calls import lacks_values
from techniques.shared.half_precision import cast, noting


class LossScale(NamedTuple):
    """The scaler's state: the factor of the loss, and finite steps since it changed."""

    scale: float
    good_steps: int = 0


def after_step(
    state: LossScale, finite: bool, growth: float = 2.0, backoff: float = 0.5, interval: int = 2000
) -> LossScale:
    """Section 3.2, dynamic form: the next state, after a step whose gradients were all finite, or were not."""
    if not finite:
        return LossScale(state.scale * backoff)
    if state.good_steps + 1 == interval:
        return LossScale(state.scale * growth)
    return LossScale(state.scale, state.good_steps + 1)


def unscaled(gradients: Iterable[Tensor], scale: float) -> bool:
    """Divides the gradients by ``scale``, in place; whether all are finite. Without values they count as finite."""
    listed = list(gradients)
    if not listed:
        return True
    infinite = torch.zeros((), device=listed[0].device)
    torch._amp_foreach_non_finite_check_and_unscale_(listed, infinite, torch.full_like(infinite, 1 / scale))
    return lacks_values(listed[0]) or not infinite.item()


@dataclass
class AmpFp16(Technique):
    """Autocast to float16, and a dynamic loss scale with torch's defaults.

    A run whose gradients are not finite in ``patience`` steps running ends: no scale helps it.
    """

    scale: float = 65536.0
    growth: float = 2.0
    backoff: float = 0.5
    interval: int = 2000
    patience: int = 10

    scaler: LossScale = field(init=False, repr=False)
    skipped: int = field(init=False, repr=False, default=0)
    skipped_running: int = field(init=False, repr=False, default=0)
    casts: Act = field(init=False, repr=False, default_factory=Act)
    scaled: Act = field(init=False, repr=False, default_factory=Act)

    def __post_init__(self) -> None:
        if not self.scale > 0 or not self.growth >= 1 or not 0 < self.backoff < 1:
            raise ValueError(
                f"scale is above 0, growth 1 or more, backoff between 0 and 1, not {self.scale}, {self.growth} and "
                f"{self.backoff}"
            )
        if self.interval < 1 or self.patience < 1:
            raise ValueError(f"interval and patience are 1 step or more, not {self.interval} and {self.patience}")
        self.scaler = LossScale(self.scale)

    def model(self, model: nn.Module, run: Run) -> nn.Module:
        return cast(model, run, torch.float16)

    def update(self, run: Run, batch: Batch) -> None:
        run.optimizer.zero_grad(set_to_none=True)
        loss = run.forward(batch)
        run.loss = loss.detach()
        run.backward(loss * self.scaler.scale)
        self.scaled()
        weights = (weight for group in run.optimizer.param_groups for weight in group["params"])
        finite = unscaled([weight.grad for weight in weights if weight.grad is not None], self.scaler.scale)
        if finite:
            run.apply_gradients()
        self._note(finite)

    def _note(self, finite: bool) -> None:
        self.skipped += not finite
        self.skipped_running = 0 if finite else self.skipped_running + 1
        if self.skipped_running == self.patience:
            raise Diverged(
                f"gradients were not finite in {self.patience} steps running, down to a loss scale of "
                f"{self.scaler.scale:g}: lower the learning rate, or train in bfloat16 (amp_bf16)"
            )
        self.scaler = after_step(self.scaler, finite, self.growth, self.backoff, self.interval)

    def sites(self, run: Run) -> Mapping[str, Site]:
        return {"products in float16": noting(run, torch.float16, self.casts), "the scaled loss": self.scaled}

    def probes(self, run: Run) -> Mapping[str, float]:
        """``skipped``: steps left out, over all; ``final_scale``."""
        return {"skipped": self.skipped / max(run.step, 1), "final_scale": self.scaler.scale}

    def state(self) -> dict[str, Any]:
        return {"scaler": list(self.scaler), "skipped": self.skipped, "skipped_running": self.skipped_running}

    def restore(self, state: dict[str, Any], run: Run) -> None:
        scale, good_steps = state["scaler"]
        self.scaler = LossScale(float(scale), int(good_steps))
        self.skipped, self.skipped_running = int(state["skipped"]), int(state["skipped_running"])
