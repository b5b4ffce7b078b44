"""What a recorded step shows of ActNN: that the forward pass is exact and gradients are so on average, in how many
bytes activations are saved, and who gets how many bits.

Gradients are unbiased where they are linear in what is saved, so that is where it is asked: of level L1, which packs
the operands of products and nothing else, over repeated roundings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from suite.reading.recording import Recording
from techniques.activation_compression.actnn.technique import ActNN
from techniques.activation_compression.shared import packed_probes
from techniques.activation_compression.shared.packed_probes import GROUP, AtLayer

OF_ITS_BASELINES = True  # whose losses alone are cross-entropies
DRAWS = 16


def probes(recording: Recording, own: ActNN) -> Mapping[str, float]:
    """``outputs_changed``: numbers of the forward pass that packing changes; ``bias``: squared distance of the mean of
    DRAWS gradients of level L1 from the exact one, over what unbiased ones leave on average; ``variance_ratio``: of the
    gradients of that level in 2 and in 4 bits; ``bytes_over_budget``: saved bytes, over those of the mean bits for each
    number, and 8 for each of the loss's; ``others_packed``: saved tensors that are no activations and come back as
    others; ``out_of_order``: pairs of samples of a layer of which the one with the wider
    groups gets fewer bits; ``gradient_off`` and ``spread_off``: relative errors of E||grad||^2 and of C_n over it, of
    the last MLP's output layer; ``layers_off``: the largest distance of a layer's mean bits from the allocation that a
    multiplier finds."""
    run = recording.run
    layers_off = _layers_off(own)
    saved = packed_probes.watched(recording, lambda: own.around_step(run))
    budget = packed_probes.budget_bytes(recording, own.mean_bits, 8, len(recording.trace.indices))
    exact = packed_probes.flat(packed_probes.gradients(recording, nullcontext))
    drawn = {bits: packed_probes.drawn(recording, at_level_one(recording, own, bits), DRAWS) for bits in (2, 4)}
    return {
        "outputs_changed": packed_probes.outputs_changed(recording, nullcontext, lambda: own.around_step(run)),
        "bias": packed_probes.bias(exact, drawn[2]),
        "variance_ratio": (drawn[2].var(0).sum() / drawn[4].var(0).sum()).item(),
        "bytes_over_budget": saved.saved_bytes / budget,
        "others_packed": saved.others_packed,
        **_of_a_layer(recording, own),
        "layers_off": layers_off,
    }


def at_level_one(recording: Recording, own: ActNN, bits: int) -> packed_probes.Around:
    level_one = type(own)(level="L1", bits=bits)

    def around() -> AbstractContextManager[Any]:
        return level_one.around_step(recording.run)

    return around


def _of_a_layer(recording: Recording, own: ActNN) -> dict[str, float]:
    """Of a pass, at the last MLP's output layer: its input is saved by it alone."""
    layer = recording.run.anatomy.blocks[-1].mlp_output
    assert layer is not None
    keys: dict[int, str] = {}  # by address
    bits: dict[str, list[int]] = {}
    plain: Any = own.keep

    def keep(saved: Any, *others: Any) -> Any:
        packed = plain(saved, *others)
        keys[saved.numbers.data_ptr()] = saved.key
        of_row = {row: part.bits for part, rows in zip(packed.parts, packed.places) for row in rows}
        bits[saved.key] = [of_row[row] for row in sorted(of_row)]
        return packed

    own.keep = keep  # type: ignore[assignment,method-assign]
    try:
        with AtLayer(layer) as at:
            packed_probes.gradients(recording, lambda: own.around_step(recording.run))
    finally:
        del own.keep  # the method comes back
    (x,), (gradient,) = at.inputs, at.gradients
    key = keys[x.data_ptr()]
    rows = x.double().reshape(len(recording.trace.indices), -1)
    missing = -rows.shape[1] % GROUP
    groups = torch.cat([rows, rows[:, -1:].expand(-1, missing)], 1).view(len(rows), -1, GROUP)
    wide = (groups.amax(-1) - groups.amin(-1)).square().sum(1)
    expected = GROUP * x.shape[-1] / (4 * rows.shape[1]) * wide
    spreads = x.new_tensor(own.layers[key].spreads if key in own.layers else [0.0], dtype=torch.float64)
    return {
        "gradient_off": abs(own.squares[key].item() / gradient.double().square().sum().item() - 1),
        "spread_off": (spreads / expected - 1).abs().max().item(),
        "out_of_order": sum(_out_of_order(layer.spreads, bits[name]) for name, layer in own.layers.items()),
    }


def _out_of_order(spreads: Sequence[float], bits: Sequence[int]) -> int:
    spread, width = torch.tensor(spreads), torch.tensor(bits)
    return int(((spread[:, None] > spread) & (width[:, None] < width)).sum())


def _layers_off(own: ActNN) -> float:
    """Of the last step, whose layers and gradients the technique has noted."""
    layers = {key: layer for key, layer in own.layers.items() if key in own.squares}
    costs = [
        torch.tensor(layer.spreads, dtype=torch.float64) * (own.squares[key].item() / len(layer.spreads))
        for key, layer in layers.items()
    ]
    lengths = [torch.full((len(layer.spreads),), float(layer.length)) for layer in layers.values()]
    chosen = packed_probes.least_variance(torch.cat(costs), torch.cat(lengths).double(), own.mean_bits, 8)
    means = [tensor.double().mean().item() for tensor in chosen.split([len(cost) for cost in costs])]
    return max(abs(mean - own.averages[key]) for key, mean in zip(layers, means, strict=True))
