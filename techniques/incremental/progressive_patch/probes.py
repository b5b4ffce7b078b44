"""Tells what the steps of a short run show of progressive patch size: the patches that came, the first kernel beside
the baseline's, and what each change of the patch made of kernel, positions, all else and the optimizer's state.

What should have happened is computed by matrices in float64: of resizing a whole patch, pixel by pixel, and of cubic
convolution between positions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from suite.device.random_state import unchanged_randomness
from suite.loop.run import Run
from suite.reading.judged import judged
from suite.reading.recording import Recording
from suite.reading.trace import Trace, Values
from techniques.incremental.progressive_patch.technique import ProgressivePatch
from techniques.incremental.shared.grids import resampling, triangles
from techniques.incremental.shared.states import same_state
from techniques.shared.block_flops import block_step_flops, counted_block_flops, tokens_of_a_block
from techniques.shared.plain import apart, filled, gradients_of, plain_model

OF_ITS_BASELINES = True  # whose models can be made for any size of patches
EPS = torch.finfo(torch.float32).eps


def records(run: Run, own: ProgressivePatch) -> bool:
    """Records all steps: their patches."""
    return own.stages > 1


@judged(
    "off_schedule",
    "The patch is halved from stage to stage, each of equally many steps, down to the baseline's.",
    "Zhuang et al. (arXiv 2302.01107), progressive learning: smaller patches as training goes on",
    id="schedule",
)
@judged(
    "products_off",
    "PI-resized to larger patches, the kernel makes the same tokens of resized patches: <x, w> = <B x, w*>.",
    "Section 3.4",
    id="same_products",
    at_most=4.0,  # roundings of a kernel, in float32
)
@judged(
    "kernel_off",
    "From stage to stage the kernel becomes (B^T)^+ w, the one whose products with resized patches are nearest on "
    "average.",
    "Section 3.4",
    id="pi_resize",
    at_most=4.0,  # roundings of a kernel, in float32
)
@judged(
    "positions_off",
    "Positions are interpolated for the new grid.",
    "Section 3",
    id="resampled_positions",
    at_most=32.0,  # roundings of float32: sums of sixteen terms
    note="bicubic",
)
@judged(
    "changed",
    "A change of the patch changes no other weight.",
    "Section 3: all other weights are shared by all patch sizes",
    id="rest_stays",
)
@judged(
    "off_state",
    "The optimizer's state of all weights that keep their shape stays; that of the others begins anew.",
    "this entry's choice",
    id="optimizer_goes_on",
)
@judged(
    "untrained",
    "After a change of the patch all weights are trained, the new ones too.",
    "follows from the schedule",
    id="all_train",
)
@judged(
    "gradient_roundings",
    "A stage trains the model that is made for its patches: the gradients are equal.",
    "Section 3",
    id="a_model_of_that_patch",
    at_most=1000.0,  # sums of up to a million terms, in roundings of a tensor's norm
)
@judged(
    "last_otherwise",
    "The last stage is plain training of the baseline's model.",
    "follows from the schedule",
    id="ends_whole",
)
@judged(
    "relative_block_flops",
    "The blocks cost 0.62 of training with small patches: half of the steps with 4 tokens, half with 16.",
    "follows from the schedule at the digits' size",
    id="fewer_block_flops",
    equals=0.62,
    tolerance=0.01,
    kind="counted",
    scope="end_to_end",
    sizes=["pico", "nano", "micro"],
    note="8 x 8 pixels in patches of 4, then 2; no class token",
)
def probes(recording: Recording, own: ProgressivePatch) -> Mapping[str, float]:
    """``products_off``, ``kernel_off`` and ``positions_off`` are in roundings of the largest number or norm. For a
    claim, ``flops_over_formula`` is of a block in all stages, over the formula's for (side / patch)^2 patches."""
    if own.stages == 1:
        return {}
    run, traces = recording.run, recording.traces
    patch = run.data.shape.patch  # type: ignore[attr-defined]
    planned = [patch * 2 ** (own.stages - 1 - _stage(own, trace.step, run.recipe.steps)) for trace in traces]
    first = {size: trace for trace, size in reversed(list(zip(traces, planned, strict=True)))}
    changes = [pair for pair in pairwise(traces) if _patch(pair[0].before) != _patch(pair[1].before)]
    counts = [_change(trace) for trace, _ in changes]
    return {
        "off_schedule": sum(_patch(trace.before) != size for trace, size in zip(traces, planned, strict=True)),
        "products_off": _products_off(recording),
        **{name: max([count[name] for count in counts], default=math.nan) for name in ("kernel_off", "positions_off")},
        **{name: sum(count[name] for count in counts) for name in ("changed", "off_state")},
        "untrained": sum(_untrained(after) for _, after in changes),
        "gradient_roundings": max(_gradient_roundings(recording, first[size]) for size in sorted(first)),
        "last_otherwise": _last_otherwise(recording),
        **_flops(recording, own),
    }


def _stage(own: ProgressivePatch, step: int, steps: int) -> int:
    return min(own.stages - 1, math.floor(own.stages * step / steps))


def _kernel(values: Values) -> str:
    """Returns the name of the patches' kernel, the one parameter with four dimensions."""
    (name,) = (name for name, value in values.items() if value.ndim == 4)
    return name


def _patch(moment: Any) -> int:
    return int(moment.parameters[_kernel(moment.parameters)].shape[-1])


def pi_resized(kernel: Tensor, patch: int) -> Tensor:
    """Computes w* = (B^T)^+ w with B of whole patches [p* p*, p p], equation 3; float64."""
    old = kernel.shape[-1]
    matrix = torch.kron(triangles(old, patch), triangles(old, patch))
    return (kernel.double().flatten(2) @ torch.linalg.pinv(matrix)).reshape(*kernel.shape[:2], patch, patch)


def _products_off(recording: Recording) -> float:
    """Measures the error of products of random patches x at the baseline's size, and B x at the first stage's."""
    ours = recording.traces[0].before.parameters
    own = dict(plain_model(recording).named_parameters())[_kernel(ours)].detach().double()
    first, random = ours[_kernel(ours)].double(), torch.Generator().manual_seed(0)
    x = torch.randn(64, *own.shape[1:], generator=random, dtype=torch.float64)
    matrix = triangles(own.shape[-1], first.shape[-1])
    off = torch.einsum("nchw,dchw->nd", matrix @ x @ matrix.T, first) - torch.einsum("nchw,dchw->nd", x, own)
    return (off.norm() / torch.einsum("nchw,dchw->nd", x, own).norm()).item() / EPS


def _change(trace: Trace) -> dict[str, float]:
    """Returns what followed the update of a step in which the patch changed."""
    before, after = trace.update.after, trace.after
    kernel = _kernel(after.parameters)
    counts = {"kernel_off": math.inf, "positions_off": 0.0, "changed": 0.0, "off_state": 0.0}
    for name, now in after.parameters.items():
        then = before.parameters[name]
        if then.shape == now.shape:
            counts["changed"] += not torch.equal(then, now)
            counts["off_state"] += not same_state(before.state.get(name, {}), after.state.get(name, {}))
            continue
        counts["off_state"] += bool(after.state.get(name))
        if name == kernel:
            expected, what = pi_resized(then, now.shape[-1]), "kernel_off"
        else:
            expected, what = resampling(then.shape[1], now.shape[1]) @ then.double(), "positions_off"
        counts[what] = ((now.double() - expected).norm() / expected.norm()).item() / EPS
    return counts


def _untrained(trace: Trace) -> int:
    update, gradients = trace.update, trace.of("backward")[0].gradients
    return sum(not (name in update.before.hyper and update.moved(name).any()) for name in gradients)


def _gradient_roundings(recording: Recording, trace: Trace) -> float:
    run, patch = recording.run, _patch(trace.before)
    data: Any = replace(run.data, shape=run.data.shape._replace(patch=patch))  # type: ignore[attr-defined,call-arg]
    with unchanged_randomness(run.device):
        model = run.baseline.model(run.job.setting.size, data).to(run.device).train()
    return apart(
        trace.of("backward")[0].gradients, gradients_of(recording, trace, filled(model, trace.before.parameters))
    )


def _last_otherwise(recording: Recording) -> int:
    trace = recording.trace
    if _patch(trace.before) != recording.run.data.shape.patch:  # type: ignore[attr-defined]
        return sum(parameter.numel() for parameter in trace.before.parameters.values())
    gradients = gradients_of(recording, trace, filled(plain_model(recording), trace.before.parameters))
    ours = trace.of("backward")[0].gradients
    return sum(int((gradient.double() != gradients[name]).sum()) for name, gradient in ours.items())


def _flops(recording: Recording, own: ProgressivePatch) -> dict[str, float]:
    run = recording.twin().run
    steps, rows, block = run.recipe.steps, run.recipe.batch_size, run.anatomy.blocks[-1]
    side, patch = run.data.shape.side, run.data.shape.patch  # type: ignore[attr-defined]
    extra = tokens_of_a_block(recording.twin("baseline").run) - (side // patch) ** 2
    starts = [math.ceil(stage * steps / own.stages) for stage in range(own.stages)]
    lengths = [end - start for start, end in pairwise([*starts, steps])]
    grids = [side // (patch * 2 ** (own.stages - 1 - stage)) for stage in range(own.stages)]
    wanted = [block_step_flops(block, rows, extra + grid**2) for grid in grids]
    counted = sum(length * flops for length, flops in zip(lengths, counted_block_flops(run, starts), strict=True))
    formula = sum(length * flops for length, flops in zip(lengths, wanted, strict=True))
    return {"flops_over_formula": counted / formula, "relative_block_flops": counted / (steps * wanted[-1])}
