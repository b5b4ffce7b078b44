"""Checks what a recorded step shows of ActNN: that the forward pass is exact and gradients are so on average, in how
many bytes activations are saved, and who gets how many bits.

Gradients are unbiased where they are linear in what is saved, so that is where it is asked: of level L1, which packs
the operands of products and nothing else, over repeated roundings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from suite.reading.judged import judged
from suite.reading.recording import Recording
from techniques.activation_compression.actnn.technique import ActNN
from techniques.activation_compression.shared import packed_probes
from techniques.activation_compression.shared.packed_probes import GROUP, AtLayer

OF_ITS_BASELINES = True  # whose losses alone are cross-entropies
DRAWS = 16


@judged("outputs_changed", "The forward pass is that of full precision, to the bit", "Section 3", id="exact_forward")
@judged(
    "bias",
    "Gradients are right on average: the mean of 16 is as far from the exact one as 16 unbiased draws leave it",
    "Theorem 1",
    id="unbiased",
    at_most=1.0,
    tolerance=1.0,
    note=(
        "level L1 with 2 bits: gradients that are linear in what is packed; the squared distance over its "
        "expectation, which is 1, give or take 0.2 where gradients vary in few directions (58 of MAE's)"
    ),
)
@judged(
    "variance_ratio",
    "The variance of the gradient goes as 1 / (2^b - 1)^2: 25 times less in 4 bits than in 2",
    "Section 4.2",
    id="variance_by_bits",
    equals=25.0,
    tolerance=0.4,
    note="level L1; 16 draws of each; numbers evenly spread over their steps",
)
@judged(
    "others_packed",
    "Parameters, statistics of norms and whatever else has no gradient stay as they are",
    "Section 3: the context of an operator is its activations",
    id="activations_alone",
)
@judged(
    "out_of_order",
    "Within a layer, no sample with wider groups gets fewer bits",
    "Section 4.2, per-sample allocation",
    id="wider_samples_get_more",
)
@judged(
    "layers_off",
    "Layers get the bits that make the bound of the gradient's variance least",
    "Section 4.2, per-layer allocation; calc_precision.cc",
    id="least_variance",
)
@judged(
    "gradient_off",
    "A layer's bound has the squared norm of the gradient of its own output",
    "Section 4.2; set_scale in the code",
    id="own_gradient",
    at_most=1e-5,
    note="the last MLP's output layer",
)
@judged(
    "spread_off",
    "A sample's bound is G ||R_n||^2 / (4 I) times that norm",
    "compute_quantization_bits in the code",
    id="own_range",
    at_most=1e-5,
    note="the last MLP's output layer",
)
def probes(recording: Recording, own: ActNN) -> Mapping[str, float]:
    """``bias`` is the squared distance of the mean of DRAWS gradients from the exact one, over what unbiased ones leave
    on average; ``layers_off`` the largest distance of a layer's mean bits from the allocation that a multiplier finds.
    ``out_of_order`` counts pairs of samples. ``bytes_over_budget``, for a claim, is the saved bytes over those of the
    mean bits for each number, and 8 for each of the loss's."""
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
    """Computes the probes of a pass, at the last MLP's output layer: its input is saved by it alone."""
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
    """Computes how far the layers' mean bits are off in the last step, whose layers and gradients the technique has
    noted."""
    layers = {key: layer for key, layer in own.layers.items() if key in own.squares}
    costs = [
        torch.tensor(layer.spreads, dtype=torch.float64) * (own.squares[key].item() / len(layer.spreads))
        for key, layer in layers.items()
    ]
    lengths = [torch.full((len(layer.spreads),), float(layer.length)) for layer in layers.values()]
    chosen = packed_probes.least_variance(torch.cat(costs), torch.cat(lengths).double(), own.mean_bits, 8)
    means = [tensor.double().mean().item() for tensor in chosen.split([len(cost) for cost in costs])]
    return max(abs(mean - own.averages[key]) for key, mean in zip(layers, means, strict=True))
