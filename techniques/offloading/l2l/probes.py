"""Tells what recorded steps show of L2L: which layer ran when, whose gradients came out, and what crossed the link."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from suite.device.random_state import RandomState, replayed
from suite.loop.run import Run
from suite.meters.storage import unique_bytes
from suite.reading.judged import judged
from suite.reading.recording import Recording
from suite.reading.trace import Trace
from techniques.offloading.l2l.technique import L2L
from techniques.offloading.shared.host_moves import accumulated, changed
from techniques.shared.plain import apart

STEPS = 2  # before the first, AdamW knows of nothing


def records(run: Run, own: L2L) -> bool:
    """Tells whether it is one of the first steps, so that the optimizer's state is known."""
    return run.step < STEPS


@judged(
    "changed_gradients",
    "The layers' gradients are those of micro-batches one after the other, added up in their order, to the bit",
    "An execution algorithm: results do not change",
    id="same_gradients",
)
@judged(
    "roundings",
    "So are the other parameters', but for roundings",
    "An execution algorithm: results do not change",
    id="same_gradients_outside",
    at_most=64.0,  # sums of eight terms in another order
)
@judged("changed", "The host's step is AdamW's, to the bit", "The optimizer runs where the model is", id="same_steps")
@judged("stashed", "The host's stash of activations is empty between steps", id="no_stash_is_left", kind="counted")
def probes(recording: Recording, own: L2L) -> Mapping[str, float]:
    """``changed_gradients`` is of the blocks' parameters, ``roundings`` of all others, whose sums have another order.
    Claims read ``out_of_order``, runs of a block that come elsewhere than layers outside and micro-batches inside have
    them, up and down again; of a step in half precision, ``down``, bytes that came to the device per parameter of the
    blocks, ``down_of_two``, with two micro-batches, ``up``, bytes of gradients that left it per parameter of the model,
    and ``resident``, the most of the blocks' bytes on the device at once, over the largest block's; ``stash_back``,
    bytes of layers' inputs that came back from the host over those that went, 0 where none did."""
    trace = recording.traces[0]
    sums, plain = accumulated(trace), plain_sums(recording, trace, own.micro_batches)
    inside = {name for name in plain if name.startswith(blocks_of(recording.run))}
    outside = plain.keys() - inside
    down, up, resident = traffic(recording.twin("l2l:half=true", steps=STEPS))
    two, _, _ = traffic(recording.twin("l2l:half=true,micro_batches=2", steps=STEPS))
    return {
        "out_of_order": out_of_order(recording.run, trace.ran, own.micro_batches),
        "changed_gradients": sum(int((sums[name] != plain[name]).sum()) for name in inside),
        "roundings": apart({name: sums[name] for name in outside}, {name: plain[name] for name in outside}),
        "changed": changed(recording),
        "down": down,
        "down_of_two": two,
        "up": up,
        "resident": resident,
        "stashed": own.stash.held_bytes,
        "stash_back": own.stash.bytes_in / max(1, own.stash.bytes_out),
    }


def blocks_of(run: Run) -> tuple[str, ...]:
    """Tells how the names of the blocks' parameters begin."""
    return tuple(f"{block.path}." for block in run.anatomy.every_block)


def out_of_order(run: Run, ran: list[str], micro_batches: int) -> int:
    """Counts, of the runs of blocks, read off a linear layer in each, how many are not where they should be."""
    numbers = {block.mlp_linears[0].path: number for number, block in enumerate(run.anatomy.every_block)}
    upwards = [number for number in range(len(numbers)) for _ in range(micro_batches)]
    expected, seen = [*upwards, *reversed(upwards)], [numbers[name] for name in ran if name in numbers]
    return sum(a != b for a, b in zip(seen, expected, strict=False)) + abs(len(seen) - len(expected))


def plain_sums(recording: Recording, trace: Trace, count: int) -> dict[str, Tensor]:
    """Computes the gradients of a recorded batch's micro-batches, each by a pass of the whole model, added up in their
    order."""
    sums: dict[str, Tensor] = {}
    parts = {name: tensor.tensor_split(count) for name, tensor in trace.batch.items()}
    random, examples = trace.random, len(recording.run.indices)
    for number in range(count):
        micro = {name: part[number] for name, part in parts.items()}
        share = len(next(iter(micro.values()))) / examples
        part = replace(trace, batch=micro, random=random)
        for name, gradient in recording.gradients_at(trace.before.parameters, part).items():
            scaled = gradient * share
            sums[name] = sums[name] + scaled if name in sums else scaled
        random = after_a_pass(recording, part)
    return sums


def after_a_pass(recording: Recording, trace: Trace) -> RandomState:
    """Returns the random state after a pass has drawn its noise from a trace's on."""
    run = recording.run
    with replayed(trace.random), torch.no_grad(), run.autocast():
        run.baseline.forward(run.model, trace.batch)
        return RandomState.now(run.device)


def traffic(twin: Recording) -> tuple[float, float, float]:
    """Returns ``down``, ``up`` and ``resident`` of a run's last step."""
    run = twin.run
    run.train(STEPS - 1)
    own = run.technique.member(L2L)
    down, up, on_device = own.weights.bytes_in, own.host.tier.bytes_out, [0]
    parameters = [parameter for block in run.anatomy.every_block for parameter in block.module.parameters()]
    handles = [
        block.mlp_linears[0].module.register_forward_pre_hook(lambda *_: on_device.append(unique_bytes(parameters)))
        for block in run.anatomy.every_block
    ]
    run.train(1)
    for handle in handles:
        handle.remove()
    blocks = [list(block.module.parameters()) for block in run.anatomy.every_block]
    inside = sum(parameter.numel() for parameter in parameters)
    trained = sum(trained_parameter.numel() for trained_parameter in run.trained_parameters().values())
    return (
        (own.weights.bytes_in - down) / inside,
        (own.host.tier.bytes_out - up) / trained,
        max(on_device) / max(sum(parameter.nbytes for parameter in block) for block in blocks),
    )
