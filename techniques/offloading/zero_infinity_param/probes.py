"""Tells what recorded steps show of ZeRO-Infinity's parameters: AdamW's steps to the bit, what the device holds when,
what crosses the link, and what tiles compute.

The expected steps are torch's own AdamW's on the recorded gradients. Half precision, files and tiles are other
settings: each is a short run of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from torch import Tensor, nn

from suite.loop.run import Run
from suite.meters.state import gradient_bytes, state_bytes
from suite.meters.storage import unique_bytes
from suite.reading.judged import judged
from suite.reading.recording import Recording
from techniques.offloading.shared.away import Away
from techniques.offloading.shared.host_adam import HostAdamW
from techniques.offloading.shared.host_moves import changed
from techniques.offloading.zero_infinity_param.technique import ZeroInfinityParam
from techniques.offloading.zero_infinity_param.tiled import Tiled

STEPS = 2  # before the first, AdamW knows of nothing
TILES = 4


def records(run: Run, own: ZeroInfinityParam) -> bool:
    """Tells whether it is one of the first steps, so that the optimizer's state is known."""
    return run.step < STEPS


@judged(
    "changed",
    "Each step is AdamW's on the device, to the bit",
    "Section 5",
    id="same_steps",
    note="the first steps, float32",
)
@judged(
    "changed_on_file",
    "So it is where all states are in files",
    "Section 5.2: NVMe",
    id="same_steps_on_file",
    note="the first steps; bfloat16 parameters and gradients, float32 masters",
)
@judged(
    "tiled_outputs",
    "Tiles give what the whole layer gives, to the bit",
    "Section 5.1.3",
    id="tiles_give_the_same_outputs",
    note="the first output of the first tiled layer",
)
def probes(recording: Recording, own: ZeroInfinityParam) -> Mapping[str, float]:
    """Claims read, of a step in half precision, ``at_rest``, bytes of blocks, gradients and state on the device between
    steps; ``loaded`` and ``window``, the most blocks there, and there or on their way, while one runs; ``down``, bytes
    that came per parameter of the blocks, and ``up``, that left per parameter of the model; and with four tiles
    ``tile``, the most weights of a layer on the device while its first tile runs, over its weights."""
    run = recording.twin("zero_infinity_param:half=true", steps=STEPS).run
    run.train(STEPS - 1)  # not recorded, which reads all parameters
    blocks = [block.module for block in run.anatomy.every_block]
    assert isinstance(run.optimizer, HostAdamW)
    tier = run.optimizer.tier
    down, up, seen = tier.bytes_in, tier.bytes_out, [(0, 0)]
    with watched(blocks, seen):
        run.train(1)
    inside = sum(parameter.numel() for block in blocks for parameter in block.parameters())
    outside = sum(
        trained_parameter.nbytes
        for trained_parameter in run.trained_parameters().values()
        if not isinstance(trained_parameter, Away)
    )
    on_file = recording.twin("zero_infinity_param:tier=file,half=true", steps=STEPS)
    on_file.train(STEPS)
    tile, tiled_outputs = tiling(recording)
    return {
        "changed": changed(recording),
        "changed_on_file": changed(on_file),
        "at_rest": unique_bytes(parameter for block in blocks for parameter in block.parameters())
        + gradient_bytes(run.model)
        + state_bytes(run.optimizer),
        "loaded": max(loaded for loaded, _ in seen),
        "window": max(coming for _, coming in seen),
        "down": (tier.bytes_in - down - outside) / inside,
        "up": (tier.bytes_out - up)
        / sum(trained_parameter.numel() for trained_parameter in run.trained_parameters().values()),
        "tile": tile,
        "tiled_outputs": tiled_outputs,
    }


@contextmanager
def watched(blocks: list[nn.Module], seen: list[tuple[int, int]]) -> Iterator[None]:
    """Notes, each time that a layer within a block runs or has its gradient, how many blocks are on the device whole,
    and how many are there or on their way."""

    def note(*_: object) -> None:
        homes = [
            [parameter.home for parameter in block.parameters() if isinstance(parameter, Away)] for block in blocks
        ]
        loaded = [bool(home) and all(piece.here is not None for piece in home) for home in homes]
        taken = [any(piece.here is not None or piece.stored.coming for piece in home) for home in homes]
        seen.append((sum(loaded), sum(taken)))

    layers = [layer for block in blocks for layer in block.modules() if not any(layer.children())]
    hooks = [layer.register_forward_pre_hook(note) for layer in layers]
    hooks += [
        parameter.register_hook(note) for block in blocks for parameter in block.parameters() if parameter.requires_grad
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def tiling(recording: Recording) -> tuple[float, int]:
    """Returns ``tile`` and ``tiled_outputs`` of the first layer that is tiled, in a run's first step."""
    plain = recording.twin("zero_infinity_param", steps=STEPS).run
    tiled = recording.twin(f"zero_infinity_param:tiles={TILES}", steps=STEPS).run
    layers = {name: module for name, module in tiled.model.named_modules() if isinstance(module, Tiled)}
    if not layers:
        return 1.0, 0
    name, layer = next(iter(layers.items()))
    outputs: list[Tensor] = []
    shares: list[float] = []

    def note_share(*_: object) -> None:
        weights = [tile.get_parameter("weight") for tile in layer.tiles]
        held = [weight for weight in weights if not isinstance(weight, Away) or weight.here is not None]
        largest = max(weight.nbytes for weight in weights)  # what its operator fetches
        shares.append(max(largest, unique_bytes(held)) / sum(weight.nbytes for weight in weights))

    for module in (plain.model.get_submodule(name), layer):
        module.register_forward_hook(lambda _, args, output: outputs.append(output.detach().clone()))
    layer.tiles[0].register_forward_pre_hook(note_share)
    plain.train(1)
    tiled.train(1)
    return max(shares), int((outputs[0] != outputs[1]).sum())
