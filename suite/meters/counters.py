"""One training step under all exact counters at once."""

import gc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from suite.meters.activations import SavedActivations
from suite.meters.flops import FlopCounter
from suite.meters.state import parameter_count, state_bytes
from suite.meters.tensors import TensorBytes


@dataclass(frozen=True)
class Counters:
    """What one step costs, exactly: equal code gives equal numbers.

    Attributes:
        flops: floating-point operations of matrix products, convolutions and attention; a multiply-add is two.
        flops_by_operator: the same by operator.
        uncounted_operators: calls of operators that may compute and have no FLOP formula; if any, ``flops`` is a
            lower bound.
        peak_tensor_bytes: most tensor bytes alive at once.
        peak_by_kind: that moment's bytes by kind.
        saved_activation_bytes: bytes that the forward pass saved for the backward pass.
        optimizer_state_bytes: bytes that the optimizer keeps between steps.
        parameter_count: scalars in the model, tied ones once.
        trainable_parameter_count: those that require a gradient.
        operators: operators that computed something: a launch count.
        semantics: "eager": what the eager operators do. Measured on a compiled model too, since the dispatcher cannot
            see compiled code, so then it is no evidence about the compiler's work.
        compiled: whether the step was compiled.
    """

    flops: int
    flops_by_operator: dict[str, int]
    uncounted_operators: dict[str, int]
    peak_tensor_bytes: int
    peak_by_kind: dict[str, int]
    saved_activation_bytes: int
    optimizer_state_bytes: int
    parameter_count: int
    trainable_parameter_count: int
    operators: int
    semantics: Literal["eager"]
    compiled: bool


def count_step(
    step: Callable[[], None],
    model: nn.Module,
    optimizer: Any,
    batch: Any,
    *,
    compiled: bool = False,
    device: str | torch.device | None = None,
) -> Counters:
    """Runs ``step`` once and counts it.

    Take a step or two before: optimizers make their state in the first. ``step`` must be a whole optimisation step, and
    ``batch`` the nest of tensors it reads. ``device``: count only the bytes on devices of this type; all by default.
    Exceptions of ``step`` pass through. Cyclic garbage is collected before and not during, since collections come at
    unpredictable moments: a technique that leaves cycles pays for them.
    """
    flop_counter, saved, tensors = FlopCounter(), SavedActivations(model, device), TensorBytes(device)
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        tensors.seed(model, optimizer, batch)
        # TensorBytes innermost: it sees operators as the program issues them, before the FLOP counter decomposes any.
        with flop_counter, saved, tensors:
            step()
    finally:
        if collecting:
            gc.enable()
    return Counters(
        flops=flop_counter.total,
        flops_by_operator=flop_counter.by_operator,
        uncounted_operators=flop_counter.uncounted,
        peak_tensor_bytes=tensors.peak_bytes,
        peak_by_kind=tensors.peak_by_kind,
        saved_activation_bytes=saved.saved_bytes,
        optimizer_state_bytes=state_bytes(optimizer),
        parameter_count=parameter_count(model),
        trainable_parameter_count=parameter_count(model, trainable=True),
        operators=tensors.operators,
        semantics="eager",
        compiled=compiled,
    )
