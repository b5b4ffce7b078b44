"""Checks what a recorded step shows of recomputation: how often each block ran, whether gradients changed, its peak."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from suite.meters.live import LiveBytes
from suite.model.anatomy import BlockStack
from suite.model.calls import undisturbed
from suite.reading.recording import Recording
from suite.reading.trace import Values
from techniques.shared.scheduled import Scheduled

DROPPED = 0.5  # the baselines drop nothing out at the small sizes


def scheduled_probes(recording: Recording, own: Scheduled) -> dict[str, float]:
    """Computes the probes of a technique that plans. ``changed`` and ``changed_with_dropout``: as
    :func:`changed_gradients`; ``runs_beside_plan``: forward passes of blocks in the step, more or fewer than planned;
    ``extra_forwards``: over the blocks there are; ``peak_over_predicted``: most bytes of activations, their gradients
    and those of the weights that are alive at once in a pass, over the simulation's, which counts a value until its
    transfer ends (on a CPU it is there at once); and ``peak_over_budget``."""
    run, plan = recording.run, own.plan(recording.run)
    orders = [order_of(stack, recording.trace.ran) for stack in run.anatomy.stacks]
    beside = sum(
        abs(order.count(block) - schedule.runs(block))
        for order, schedule in zip(orders, plan.schedules, strict=True)
        for block in range(schedule.depth)
    )
    depth = sum(schedule.depth for schedule in plan.schedules)
    peak_bytes = pass_peak_bytes(recording, own)
    return changed_gradients(recording) | {
        "runs_beside_plan": beside,
        "extra_forwards": sum(map(len, orders)) / depth - 1,
        "peak_over_predicted": peak_bytes / plan.peak_bytes,
        "peak_over_budget": peak_bytes / own.budget_bytes(own.chains),
    }


def changed_gradients(recording: Recording) -> dict[str, float]:
    """Computes ``changed``: gradients that are another than a plain pass's by a bit; ``changed_with_dropout``: where
    dropout happens."""
    run, trace = recording.run, recording.trace
    parameters = trace.before.parameters
    ours = {
        name: gradient for one in trace.of("backward") for name, gradient in one.gradients.items()
    }  # a block's are its own
    with dropping(run.model):
        dropped = recording.gradients_at(parameters)
        with recording.at(parameters), run.technique.around_step(run):
            recomputed = pass_of(recording)[0]
    return {
        "changed": changed(ours, recording.gradients_at(parameters)),
        "changed_with_dropout": changed(recomputed, dropped),
    }


def pass_peak_bytes(recording: Recording, own: Scheduled) -> int:
    """Counts the most bytes alive in a forward and a backward pass of the recorded batch; weights, state and batch left
    out."""
    with own.around_step(recording.run):
        return pass_of(recording)[1]


def pass_of(recording: Recording) -> tuple[dict[str, Tensor], int]:
    """Runs a forward and a backward pass of the recorded batch, with its dropout: what accumulates as gradients, which
    ``torch.autograd.grad`` does not see of blocks that go back by themselves; and most bytes alive in it."""
    run, live = recording.run, LiveBytes()
    gradients = [(parameter, parameter.grad) for parameter in run.model.parameters()]
    for parameter, _ in gradients:
        parameter.grad = None
    with undisturbed(run.model), live:
        recording.trace.random.restore()
        with run.autocast():
            outputs = run.baseline.forward(run.model, recording.trace.batch)
        loss = run.baseline.losses(outputs, recording.trace.batch).mean()
        del outputs
        loss.backward()
    seen = {name: parameter.grad for name, parameter in run.model.named_parameters() if parameter.grad is not None}
    for parameter, gradient in gradients:
        parameter.grad = gradient
    return seen, live.high_bytes


def order_of(stack: BlockStack, ran: list[str]) -> list[int]:
    """Lists the blocks by number, as they ran; hooks on a block itself would see no more than its segment's ends."""
    numbers = {(block.mlp_linears or block.linears)[0].path: number for number, block in enumerate(stack.blocks)}
    return [numbers[name] for name in ran if name in numbers]


def changed(ours: Values, plain: Values) -> int:
    """Counts values that differ, or names that only one side has."""
    if ours.keys() != plain.keys():
        return len(ours.keys() ^ plain.keys())
    return sum(int((ours[name] != value).sum()) for name, value in plain.items())


@contextmanager
def dropping(model: nn.Module) -> Iterator[None]:
    """While active, half of what dropout sees is dropped."""
    dropouts = [module for module in model.modules() if isinstance(module, nn.Dropout)]
    rates = [module.p for module in dropouts]
    for module in dropouts:
        module.p = DROPPED
    try:
        yield
    finally:
        for module, rate in zip(dropouts, rates, strict=True):
            module.p = rate
