"""Measures one training step under all exact counters at once."""

import gc
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from suite.meters.activations import SavedActivations
from suite.meters.flops import FlopCounter
from suite.meters.holders import Held, held
from suite.meters.state import parameter_count, state_bytes
from suite.meters.tensors import TensorBytes
from suite.record.schema import Counters


def count_step(
    step: Callable[[], None],
    model: nn.Module,
    optimizer: Any,
    batch: Any,
    *,
    compiled: bool = False,
) -> Counters:
    """Runs ``step`` once and counts it.

    Take a step or two before: optimizers make their state in the first. ``step`` must be a whole optimisation step, and
    ``batch`` the nest of tensors it reads. What is held between steps and no operator touches counts where somebody
    took stock before the run (:mod:`suite.meters.holders`).

    Exceptions of ``step`` pass through. Cyclic garbage is collected before and not during, since collections come at
    unpredictable moments: a technique that leaves cycles pays for them.
    """
    flop_counter, saved, tensors = FlopCounter(), SavedActivations(model), TensorBytes()
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        between_steps = held(_device(model))
        tensors.seed(model, optimizer, batch, (between_steps or Held()).tensors)
        host_bytes = between_steps.host_bytes if between_steps else None
        del between_steps  # the step frees some of it
        # TensorBytes innermost: it sees operators as the program issues them, before the FLOP counter decomposes any.
        with flop_counter, saved, tensors:
            step()
    finally:
        if collecting:
            gc.enable()
    return Counters(
        flops=flop_counter.total,
        uncounted_operators=flop_counter.uncounted,
        peak_tensor_bytes=tensors.peak_bytes,
        peak_by_kind=tensors.peak_by_kind,
        saved_activation_bytes=saved.saved_bytes,
        optimizer_state_bytes=state_bytes(optimizer),
        parameter_count=parameter_count(model),
        trainable_parameter_count=parameter_count(model, trainable=True),
        operators=tensors.operators,
        host_bytes=host_bytes,
        compiled=compiled,
    )


def _device(model: nn.Module) -> torch.device:
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
