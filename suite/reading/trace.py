"""Records one real training step as it happened: what probes read (:mod:`suite.reading.recording`).

A probe that recomputes a formula agrees with itself, whatever the step has done. So the harness records a step::

    before ── forward ─ backward ─ [forward ─ backward ...] ── optimizer step ── after
              at which parameters,  with which gradients       before and after

and a probe says what that shows: how far each weight moved and along what, at which point a gradient was taken, whether
the weights came back to the bit. Recording copies and draws no random number, so the run goes on as it would have.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from suite.device.random_state import RandomState

if TYPE_CHECKING:
    from suite.loop.data import Batch
    from suite.loop.run import Run

Values = Mapping[str, Tensor]
"""Tensors by the name of their parameter."""


@dataclass(frozen=True)
class Pass:
    """Records one pass of the whole model: a forward at these parameters, or a backward that gave these gradients,
    which are of this pass alone."""

    kind: Literal["forward", "backward"]
    parameters: Values
    gradients: Values = field(default_factory=dict)


@dataclass(frozen=True)
class Moment:
    """Holds parameters, their accumulated gradients, the optimizer's tensors and numbers and its group's
    hyper-parameters, all by the parameter's name; and the model's buffers (masks, moving averages) by theirs."""

    parameters: Values
    gradients: Values
    state: Mapping[str, Mapping[str, Any]]
    hyper: Mapping[str, Mapping[str, Any]]
    buffers: Values = field(default_factory=dict)


@dataclass(frozen=True)
class Update:
    """Records one step of the optimizer."""

    before: Moment
    after: Moment

    def moved(self, name: str) -> Tensor:
        """Returns how far a parameter moved, float64."""
        return self.after.parameters[name].double() - self.before.parameters[name].double()


@dataclass
class Trace:
    """Holds a recorded training step.

    Attributes:
        step: finished steps before it.
        batch, indices: what it trained on.
        random: the random state before it; with it a forward pass repeats its dropout.
        before, after: the step, its techniques' after-step methods included.
        passes, updates: in their order.
        ran: the names of the model's modules in the order in which their forwards began; one that is recomputed for
            the backward pass runs again. Empty of a compiled model, whose modules do not run one by one.
    """

    step: int
    batch: Batch
    indices: Tensor
    random: RandomState
    before: Moment
    after: Moment
    passes: list[Pass] = field(default_factory=list)
    updates: list[Update] = field(default_factory=list)
    ran: list[str] = field(default_factory=list)

    def of(self, kind: Literal["forward", "backward"]) -> list[Pass]:
        """Returns the passes of a kind."""
        return [one for one in self.passes if one.kind == kind]

    @property
    def update(self) -> Update:
        """Returns the one update of the step. Raises ValueError where there was none, or more."""
        if len(self.updates) != 1:
            raise ValueError(f"the recorded step had {len(self.updates)} updates, not one")
        return self.updates[0]


@contextmanager
def recorded(run: Run, batch: Batch, indices: Tensor) -> Iterator[Trace]:
    """Records the training step that is made meanwhile; the trace is whole when the context ends."""
    recorder = _Recorder(run.model, run.optimizer)
    before = recorder.moment()
    trace = Trace(run.step, batch, indices, RandomState.now(run.device), before, before)
    passes: dict[int, dict[str, Tensor]] = {}
    # A step may copy modules, whose copies keep these hooks: they are not to keep what was recorded.
    ran, recorder_then, trace_then = trace.ran, weakref.ref(recorder), weakref.ref(trace)

    def begins_forward(*_: Any) -> None:
        now, recorded_now = recorder_then(), trace_then()
        if now is not None and recorded_now is not None:
            recorded_now.passes.append(Pass("forward", now.parameters()))

    def gives(name: str, gradient: Tensor) -> None:
        task = torch._C._current_graph_task_id()
        if task not in passes:
            passes[task] = {}
            trace.passes.append(Pass("backward", recorder.parameters(), passes[task]))
        passes[task][name] = gradient.detach().clone()

    def begins_update(*_: Any) -> None:
        trace.updates.append(Update(moment := recorder.moment(), moment))

    def ends_update(*_: Any) -> None:
        trace.updates[-1] = Update(trace.updates[-1].before, recorder.moment())

    hooks = [
        run.forward_model.register_forward_pre_hook(begins_forward),
        run.optimizer.register_step_pre_hook(begins_update),
        run.optimizer.register_step_post_hook(ends_update),
        *(
            parameter.register_hook(lambda gradient, name=name: gives(name, gradient))
            for name, parameter in run.model.named_parameters()
            if parameter.requires_grad
        ),
        *(
            module.register_forward_pre_hook(lambda *_, name=name: ran.append(name))
            for name, module in run.model.named_modules()
            if not run.recipe.compile
        ),
    ]
    try:
        yield trace
    finally:
        for hook in hooks:
            hook.remove()
    trace.after = _Recorder(run.model, run.optimizer).moment()  # of another model, where the step has grown it


class _Recorder:
    """Copies a run's state; what did not change since the last copy is not copied again."""

    def __init__(self, model: nn.Module, optimizer: Optimizer) -> None:
        self.model, self.optimizer = model, optimizer
        self.names = {parameter: name for name, parameter in model.named_parameters()}
        self.last: dict[str, Tensor] = {}

    def parameters(self) -> dict[str, Tensor]:
        for parameter, name in self.names.items():
            if name not in self.last or not _same_bits(self.last[name], parameter):
                self.last[name] = parameter.detach().clone()
        return dict(self.last)

    def moment(self) -> Moment:
        named = {p: self.names.get(p, "") for group in self.optimizer.param_groups for p in group["params"]}
        return Moment(
            self.parameters(),
            {name: p.grad.detach().clone() for p, name in self.names.items() if p.grad is not None},
            {name: cloned(self.optimizer.state[p]) for p, name in named.items() if p in self.optimizer.state},
            {
                self.names.get(p, ""): {key: value for key, value in group.items() if key != "params"}
                for group in self.optimizer.param_groups
                for p in group["params"]
            },
            {name: buffer.detach().clone() for name, buffer in self.model.named_buffers()},
        )


def _same_bits(copy: Tensor, now: Tensor) -> bool:
    """Tells whether both hold the same: 0 is not -0, and NaN is NaN."""
    return copy.shape == now.shape and torch.equal(_bits(copy), _bits(now.detach()))


def _bits(values: Tensor) -> Tensor:
    return values.contiguous().reshape(-1).view(torch.uint8)  # a scalar alone has no bytes to be seen as


def cloned(state: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a parameter's optimizer state, its tensors copied."""
    return {key: value.detach().clone() if isinstance(value, Tensor) else value for key, value in state.items()}
