"""Implements mixed precision in float16: half-precision passes, float32 master weights, and a scaled loss.

Micikevicius et al., "Mixed Precision Training" (ICLR 2018, arXiv 1710.03740), section 3, with the dynamic scale of
section 3.2 as ``torch.amp.GradScaler`` has it:

    forward and backward of S L in float16        g <- g / S in float32
    g finite:      step;  S <- 2 S after 2000 good steps running
    otherwise:     no step;  S <- S / 2
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensor

from suite.loop.data import Batch
from suite.loop.run import Diverged, Run
from suite.loop.sites import Site
from suite.loop.stack import Stack
from suite.loop.technique import Technique, overrides

Variant = Literal["autocast", "o2"]
PATIENCE = 10  # overflows running, after which a smaller scale will not help


@dataclass(frozen=True)
class LossScale:
    """Holds the scaler's state: S, the steps since it last changed, and the overflows running."""

    scale: float = 2.0**16
    good_steps: int = 0
    overflows: int = 0


def next_scale(
    state: LossScale, finite: bool, *, growth: float = 2.0, backoff: float = 0.5, interval: int = 2000
) -> LossScale:
    """Returns the state after a step whose gradients were all ``finite``, or were not."""
    if not finite:
        return LossScale(state.scale * backoff, 0, state.overflows + 1)
    if state.good_steps + 1 == interval:
        return LossScale(state.scale * growth)
    return LossScale(state.scale, state.good_steps + 1)


class _ScaledGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, loss: Tensor, scale: float) -> Tensor:
        ctx.scale = scale
        return loss.view_as(loss)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0] * ctx.scale, None


def with_scaled_gradient(loss: Tensor, scale: float) -> Tensor:
    """Returns ``loss`` itself, whose backward pass is that of ``scale`` times it."""
    scaled: Tensor = _ScaledGradient.apply(loss, scale)
    return scaled


def unscale(gradients: Iterable[Tensor], scale: float) -> Tensor:
    """Divides float32 ``gradients`` by ``scale``, in place; returns float32 [1], 0 where all are finite."""
    by_device: dict[torch.device, list[Tensor]] = {}
    for gradient in gradients:
        by_device.setdefault(gradient.device, []).append(gradient)
    if not by_device:
        return torch.zeros(1)
    flags = [torch.zeros(1, device=device) for device in by_device]
    for flag, together in zip(flags, by_device.values(), strict=True):
        inverse = torch.full((1,), 1 / scale, device=flag.device)
        torch._amp_foreach_non_finite_check_and_unscale_(together, flag, inverse)
    return torch.stack([flag.to(flags[0].device) for flag in flags]).amax(0)


@dataclass
class MixedPrecision(Technique):
    """Trains under float16 ``autocast`` of float32 weights or, as ``o2``, a float16 model whose float32 masters the
    optimizer moves.

    At rest, between steps, the parameters of ``o2`` are the masters; from the beginning of a step to the end of its
    backward pass they are float16, and so are their gradients. So optimizers, saved states and other techniques see
    float32 alone, and no moment holds more than 16 bytes a parameter: 2 + 2 for the passes and 4 + 4 + 4 for Adam.
    """

    takes: ClassVar[str] = "says in which precision the passes compute"
    variant: Variant = "autocast"
    initial_scale: float = 2.0**16
    growth: float = 2.0
    backoff: float = 0.5
    interval: int = 2000

    scaling: LossScale = field(init=False, repr=False)
    masters: dict[nn.Parameter, Tensor] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        if self.variant not in get_args(Variant):
            raise ValueError(f"variant must be autocast or o2, not {self.variant!r}")
        if not (0 < self.initial_scale < float("inf") and self.growth >= 1 and 0 < self.backoff < 1):
            raise ValueError(
                "amp_fp16 needs a positive initial_scale, growth of 1 or more and backoff between 0 and 1; "
                f"got {self.initial_scale}, {self.growth}, {self.backoff}"
            )
        if self.interval < 1:
            raise ValueError(f"interval is 1 good step or more, not {self.interval}")
        self.scaling = LossScale(self.initial_scale)

    def model(self, model: nn.Module, run: Run) -> nn.Module:
        check_stack(self, run.technique)
        # A recipe's precision is float32 or bfloat16; this is the one place that reads it.
        run.autocast = lambda: torch.autocast(run.device.type, torch.float16)  # type: ignore[method-assign]
        return model

    @contextmanager
    def around_step(self, run: Run) -> Iterator[None]:
        try:
            if self.variant == "o2":
                self._halve(run.model)
            yield
        finally:
            self._restore_masters()

    def loss(self, loss: Tensor, outputs: Any, batch: Batch, run: Run) -> Tensor:
        return with_scaled_gradient(loss, self.scaling.scale)

    def after_backward(self, run: Run) -> bool:
        self._restore_masters()
        found_inf = unscale((p.grad for p in run.model.parameters() if p.grad is not None), self.scaling.scale)
        if run.world_size > 1:  # all leave a step out, or none
            torch.distributed.all_reduce(found_inf, torch.distributed.ReduceOp.MAX, group=run.group)
        finite = isinstance(found_inf, FakeTensor) or not found_inf.item()  # a fake one has no value to ask for
        scale = self.scaling.scale
        self.scaling = next_scale(
            self.scaling, finite, growth=self.growth, backoff=self.backoff, interval=self.interval
        )
        if self.scaling.overflows == PATIENCE:
            raise Diverged(
                f"gradients were not finite in {PATIENCE} steps running, to step {run.step + 1}, down to a loss scale "
                f"of {scale:g}: not the scale but the model or the data overflow float16; lower the learning rate, "
                "look for infinities in the data, or train in bfloat16 (amp_bf16)"
            )
        return not finite

    def sites(self, run: Run) -> Mapping[str, Site]:
        return {part.path: part.module for part in run.anatomy.linears}

    def state(self) -> dict[str, Any]:
        return asdict(self.scaling)

    def restore(self, state: dict[str, Any], run: Run) -> None:
        self.scaling = LossScale(**state)

    def _halve(self, model: nn.Module) -> None:
        """Parameters become float16 copies; their masters wait."""
        for parameter in model.parameters():
            if parameter.dtype == torch.float32:
                parameter.grad = None
                self.masters[parameter] = parameter.data
                parameter.data = parameter.data.half()

    def _restore_masters(self) -> None:
        """Makes parameters their masters again, with their gradients in float32."""
        while self.masters:
            parameter, master = self.masters.popitem()
            gradient, parameter.grad = parameter.grad, None
            parameter.data = master
            parameter.grad = None if gradient is None else gradient.float()


def check_stack(own: MixedPrecision, stack: Technique) -> None:
    """Raises ValueError where a technique of the stack would add to the loss after it is scaled, read gradients before
    they are unscaled, or compute with float16 weights and gradients that it takes for float32 ones."""
    behind = False
    for name, technique in (stack.techniques if isinstance(stack, Stack) else {}).items():
        if technique is own:
            behind = True
        elif behind and overrides(technique, "loss"):
            raise ValueError(f"{name} changes the loss, which amp_fp16 scales when that is done: write {name}+amp_fp16")
        elif not behind and overrides(technique, "after_backward"):
            raise ValueError(f"{name} uses gradients, which amp_fp16 unscales first: write amp_fp16+{name}")
        elif own.variant == "o2" and overrides(technique, "update"):
            raise ValueError(f"{name} makes updates of its own, from gradients that o2 has in float16: use autocast")
