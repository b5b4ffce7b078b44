"""Checks what recorded steps show of GACT: the first, in which sensitivities are measured, and the middle one, which is
packed by them.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from suite.loop.run import Run
from suite.reading.judged import judged
from suite.reading.recording import Recording
from techniques.activation_compression.gact.technique import GACT
from techniques.activation_compression.shared import packed_probes
from techniques.activation_compression.shared.packed_probes import GROUP, AtLayer
from techniques.activation_compression.shared.saved_tensors import Packing, Saved

OF_ITS_BASELINES = True  # whose last MLP ends in a linear layer that alone saves its input
DRAWS = 8


def records(run: Run, own: GACT) -> bool:
    """Tells whether it is the step that measures, or the middle one."""
    return run.step in (0, run.recipe.steps // 2)


@judged("outputs_changed", "The forward pass is that of full precision, to the bit", "Section 3", id="exact_forward")
@judged(
    "others_packed",
    "Parameters, statistics and whatever else has no gradient stay as they are",
    "Section 5; check_quantize in the code",
    id="activations_alone",
)
@judged(
    "sensitivity_ratio",
    "A tensor's sensitivity is the squared distance of two gradients with it in 1 bit: twice the variance",
    "Section 4.3; autoprec.py",
    id="sensitivity",
    equals=1.0,
    tolerance=0.2,
    note="the last MLP's output layer, of which the variance is known; two draws, and the largest of three distances",
)
@judged(
    "bits_off",
    "Bits are those that make the sum of the sensitivities over (2^b - 1)^2 least",
    "Section 4.3; calc_precision.cc",
    id="least_variance",
)
@judged(
    "variance_ratio",
    "In the step that measures, the gradient's variance is within what the sensitivities predict",
    "Section 4.2; the debug output of autoprec.py compares the two in the step that adapts the bits",
    id="variance_bounded",
    at_most=1.0,
    note="sum C / 4^(b - 1), as there; half of the sum that is made least is less, and no bound: limitations",
)
def probes(recording: Recording, own: GACT) -> Mapping[str, float]:
    """Computes ``outputs_changed``: numbers of the forward pass that packing changes; ``others_packed``: saved tensors
    that are no activations and come back as others; ``bytes_over_budget``: saved bytes, over those of the mean bits for
    each number; ``passes_off``: forward passes of the first step, less one and three for each tensor;
    ``measured_again``: more forward passes than one of the middle step; ``sensitivity_ratio``: that of the last MLP's
    output layer, over twice the variance of its gradient in 1 bit by the formula; ``variance_ratio``: of the first
    step's gradient in the bits that it was given, over sum C / 4^(b - 1); ``bits_off``: tensors whose bits are other
    than a multiplier finds."""
    run, first = recording.run, recording.traces[0]

    def packing() -> AbstractContextManager[Any]:
        return own.around_step(run)

    saved = packed_probes.watched(recording, packing)
    exact = packed_probes.flat(packed_probes.gradients(recording, nullcontext, trace=first))
    drawn = packed_probes.drawn(recording, packing, DRAWS, first)
    names = list(own.widths)
    costs = torch.tensor([own.sensitivities[name] for name in names], dtype=torch.float64)
    sizes = torch.tensor([own.sizes[name] for name in names], dtype=torch.float64)
    bits = torch.tensor([own.widths[name] for name in names])
    predicted = (costs * torch.where(bits < 32, 0.25 ** (bits - 1.0).double(), 0.0)).sum().item()
    return {
        "outputs_changed": packed_probes.outputs_changed(recording, nullcontext, packing),
        "others_packed": saved.others_packed,
        "bytes_over_budget": saved.saved_bytes / packed_probes.budget_bytes(recording, own.bits, own.bits, 1),
        "passes_off": len(first.of("forward")) - 1 - 3 * packed_probes.activations(recording),
        "measured_again": len(recording.trace.of("forward")) - 1,
        "sensitivity_ratio": _sensitivity_ratio(recording, own),
        "variance_ratio": (drawn - exact).square().sum(1).mean().item() / predicted,
        "bits_off": int((packed_probes.least_variance(costs, sizes, own.bits, 32) != bits).sum()),
    }


def _sensitivity_ratio(recording: Recording, own: GACT) -> float:
    """Computes the ratio of sensitivities, where E ||g0 - g1||^2 is twice the variance: of each number x of the layer's
    input share (1 - share) step^2, times the squares of the gradients that it meets."""
    layer = recording.run.anatomy.blocks[-1].mlp_output
    assert layer is not None
    names: dict[int, str] = {}  # by address

    def look(saved: Saved) -> None:
        names[saved.numbers.data_ptr()] = saved.key

    with AtLayer(layer) as at:
        packed_probes.gradients(recording, lambda: Packing(recording.run.model, look), trace=recording.traces[0])
    (x,), (gradient,) = at.inputs, at.gradients
    flat = x.double().flatten()
    groups = torch.cat([flat, flat[-1:].expand(-len(flat) % GROUP)]).view(-1, GROUP)
    low, step = groups.amin(1, keepdim=True), groups.amax(1, keepdim=True) - groups.amin(1, keepdim=True)
    share = (groups - low) / step.clamp(min=1e-30)
    variance = (share * (1 - share) * step**2).flatten()[: len(flat)].view(-1, x.shape[-1])
    met = gradient.double().view(len(variance), -1).square().sum(1)
    expected = 2 * (met[:, None] * variance).sum().item()
    return own.sensitivities[names[x.data_ptr()]] / expected
