"""Computes FLOPs of a block in a training step, by formula: what incremental techniques save is counted against it.

For probes of ``pld``, ``progressive_resolution``, ``progressive_patch`` and ``autoprog``, which all leave out blocks or
tokens. A block reads B rows of T tokens: 2 B T FLOPs for each entry of its matrices and 4 B T^2 for each channel of its
attention (scores, weighted sum). The backward pass computes each product twice over, for inputs and for weights. That
is eager attention's; a fused one computes the scores once more.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from suite.loop.run import Run
from suite.meters.flops import FlopCounter
from suite.model.anatomy import Block, in_features, out_features
from suite.model.calls import calls
from suite.model.segments import split_hidden
from suite.model.skipping import skipping


def block_step_flops(block: Block, rows: int, tokens: int) -> int:
    """Computes forward and backward FLOPs of a block for ``rows`` examples of ``tokens`` tokens each."""
    assert block.attention_output is not None
    entries = sum(in_features(part.module) * out_features(part.module) for part in block.linears)
    return 3 * rows * (2 * tokens * entries + 4 * tokens**2 * in_features(block.attention_output.module))


def tokens_of_a_block(run: Run) -> int:
    """Counts the tokens of a whole held-out example in a block, class tokens and all."""
    block, model = run.anatomy.blocks[0], run.model
    (call,) = calls(model, [block], lambda: run.baseline.forward(model, run.data.held_out("validation", 2)[0]))
    return int(split_hidden(call.args, dict(call.kwargs))[0].shape[1])


def counted_block_flops(run: Run, starts: Sequence[int]) -> list[int]:
    """Counts what the last block costs in the stages that start after so many steps: by how much their first two steps
    differ, in one of which it does not run. Trains the run, which is at its start, to its end."""
    counted = []
    while run.step < run.recipe.steps:
        if run.step in starts:
            # All must run in a run's first step; none may be skipped where growth may copy it, behind the second.
            last = [run.anatomy.blocks[-1].module]
            first, second = ([], last) if run.step == 0 else (last, [])
            counted.append(abs(_flops(run, first) - _flops(run, second)))
        else:
            run.train(1)
    return counted


def _flops(run: Run, skipped: Sequence[nn.Module]) -> int:
    with FlopCounter() as counter, skipping(skipped):
        run.train(1)
    return counter.total
