"""Profiles the chains of a run's model: its stacks of blocks, profiled on a batch of the run's own size."""

from __future__ import annotations

from torch import Tensor, nn

from suite.chain.chain import Chain
from suite.chain.observe import clocked_stacks, observed_stacks
from suite.loop.data import mixed_seed
from suite.loop.run import Run
from suite.model.calls import undisturbed

FLOPS_PER_S = 1e12  # of a device whose seconds are counted: schedules depend on ratios alone


def blocks_of(run: Run) -> list[list[nn.Module]]:
    """Returns the blocks of each stack, which are its chain."""
    return [[block.module for block in stack.blocks] for stack in run.anatomy.stacks]


def chains_of(run: Run, on_the_clock: bool = False, flops_per_s: float = FLOPS_PER_S) -> list[Chain]:
    """Returns what the blocks of each stack cost. Leaves the run as it was.

    Seconds are FLOPs over ``flops_per_s``, or the clock's. Raises ValueError where no gradient reaches a stack.
    """
    batch, _ = run.data.batch(mixed_seed(run.seed, 2), 0, run.recipe.batch_size)
    batch = {name: tensor.to(run.device) for name, tensor in batch.items()}

    def loss() -> Tensor:
        run.model.zero_grad()  # as before each step: adding to gradients would take time of its own
        with run.autocast():
            outputs = run.baseline.forward(run.model, batch)
        return run.baseline.losses(outputs, batch).mean()

    stacks = blocks_of(run)
    gradients = [(parameter, parameter.grad) for parameter in run.model.parameters()]
    try:
        with undisturbed(run.model), run.unreduced():
            run.model.train()
            chains = observed_stacks(stacks, loss, flops_per_s)
            return list(clocked_stacks(chains, stacks, loss) if on_the_clock else chains)
    finally:
        for parameter, gradient in gradients:
            parameter.grad = gradient
