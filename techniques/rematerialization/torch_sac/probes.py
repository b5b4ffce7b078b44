"""Checks what a recorded step shows of selective checkpointing: how often blocks run, what is alive after the forward
pass.

What full checkpointing of every block keeps is taken off that: the rest is to be the products' outputs, to the byte.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from suite.loop.run import Run
from suite.meters.live import LiveBytes
from suite.model.calls import undisturbed
from suite.reading.judged import judged
from suite.reading.recording import Recording
from techniques.rematerialization.torch_sac.technique import TorchSAC
from techniques.shared.recomputation_probes import changed_gradients, order_of

PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::_scaled_dot_product")


@judged(
    "changed",
    "The step's gradients are those of a plain pass, to the bit",
    "torch.utils.checkpoint.checkpoint",
    id="same_gradients",
)
@judged(
    "changed_with_dropout",
    "Dropout leaves out the same values when a block runs again",
    "torch.utils.checkpoint.checkpoint: preserve_rng_state",
    id="same_dropout",
    note="half of the values are dropped out in one more pass, since the small sizes drop none",
)
def probes(recording: Recording, own: TorchSAC) -> Mapping[str, float]:
    """Claims read ``fewest_runs`` and ``most_runs`` of a block in the step; ``kept``, bytes alive after the forward
    pass, over a plain one's, and ``kept_full``, over those that full checkpointing of each block leaves;
    ``kept_beside_products``, bytes above the latter, less those of the products' outputs inside the blocks."""
    run, trace = recording.run, recording.trace
    runs = [order_of(stack, trace.ran).count(i) for stack in run.anatomy.stacks for i in range(stack.depth)]
    plain = _kept_bytes(recording, nullcontext())
    mine = _kept_bytes(recording, own.around_step(run))
    with _fully_checkpointed(run) as everything:
        full = _kept_bytes(recording, everything)
    return {
        "fewest_runs": min(runs),
        "most_runs": max(runs),
        "kept": mine / plain,
        "kept_full": mine / full,
        "kept_beside_products": mine - full - _product_bytes(recording),
    } | changed_gradients(recording)


def _kept_bytes(recording: Recording, around: AbstractContextManager[Any]) -> int:
    live = LiveBytes()
    run = recording.run
    with undisturbed(run.model), around, live, run.autocast():
        outputs = run.baseline.forward(run.model, recording.trace.batch)
        loss = run.baseline.losses(outputs, recording.trace.batch).mean()
    nbytes = live.live_bytes
    del loss, outputs
    return nbytes


def _fully_checkpointed(run: Run) -> ExitStack:
    stack = ExitStack()
    for blocks in run.anatomy.stacks:
        for i in range(blocks.depth):
            wrapper = partial(checkpoint, use_reentrant=False)
            stack.enter_context(run.anatomy.segmented([(i, i + 1)], wrapper, blocks))
    return stack


class _Products(TorchDispatchMode):
    """Counts bytes of the products' outputs while ``inside`` is true."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.nbytes = False, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if self.inside and func.name().startswith(PRODUCTS):
            outputs = out if isinstance(out, tuple) else (out,)
            self.nbytes += sum(tensor.nbytes for tensor in outputs if isinstance(tensor, torch.Tensor))
        return out


def _product_bytes(recording: Recording) -> int:
    run, products = recording.run, _Products()

    def enter(*_: Any) -> None:
        products.inside = True

    def leave(*_: Any) -> None:
        products.inside = False

    with ExitStack() as hooks:
        for block in run.anatomy.every_block:
            hooks.callback(block.module.register_forward_pre_hook(enter).remove)
            hooks.callback(block.module.register_forward_hook(leave).remove)
        with undisturbed(run.model), torch.no_grad(), run.autocast(), products:
            run.baseline.forward(run.model, recording.trace.batch)
    return products.nbytes
