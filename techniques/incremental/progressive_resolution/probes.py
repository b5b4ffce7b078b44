"""Tells what the steps of a short run show of progressive resolution: the sizes that came, how they were made of the
whole examples, and the gradients of a model made for that size whose positions are resampled by matrices in float64.

Resampling is linear, so the gradient in the model's own table is the transposed matrix times that in the small one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from suite.device.random_state import unchanged_randomness
from suite.loop.data import Batch, mixed_seed
from suite.loop.run import Run
from suite.reading.judged import judged
from suite.reading.recording import Recording
from suite.reading.trace import Trace
from techniques.incremental.progressive_resolution.technique import ProgressiveResolution
from techniques.incremental.shared.grids import resampling, triangles
from techniques.shared.block_flops import block_step_flops, counted_block_flops, tokens_of_a_block
from techniques.shared.plain import apart, filled, gradients_of, plain_model

OF_ITS_BASELINES = True  # whose models can be made for any size of pictures
IGNORED = -100
TOLERANCE = 64 * torch.finfo(torch.float32).eps  # of pixels in [-1, 1]: sums of a few, weights rounded


def records(run: Run, own: ProgressiveResolution) -> bool:
    """Records all steps: their sizes."""
    return own.stages > 1


@judged(
    "off_schedule",
    "Stage i of M, each of equally many steps, has pictures of side S_0 + (S_e - S_0) i / (M - 1), the last one whole "
    "ones.",
    "Section 4.2, algorithm 1",
    id="schedule",
    note="rounded to whole patches, or tokens",
)
@judged(
    "off_examples",
    "The data pipeline gives each stage its whole examples, resized.",
    "Section 4.2",
    id="resized_examples",
    note="of text: the first tokens of each row",
)
@judged(
    "gradient_roundings",
    "Positions are interpolated bicubically between the patches: the step's gradients are those of a model made for "
    "small pictures, with resampled positions.",
    "Li et al. (arXiv 2203.14509): interpolate_pos_encoding of their models/volo.py",
    id="resampled_positions",
    at_most=1000.0,  # sums of up to a million terms, in roundings of a tensor's norm
    note="each stage's first step; of text: the plain model on short rows",
)
@judged(
    "last_otherwise",
    "The last stage is plain training: resampling to the same grid changes nothing.",
    "Section 4.2, algorithm 1: the last stage has the target size",
    id="ends_whole",
)
@judged(
    "flops_over_formula",
    "A stage costs what (side / patch)^2 tokens cost: FLOPs linear in them for matrices, quadratic for attention.",
    "follows from section 4.2",
    id="flops_of_the_tokens",
    equals=1.0,
    tolerance=1e-9,
    kind="counted",
    recipes=["classic"],  # the backward pass of fused attention multiplies once more
    note="a block's, forward and backward, counted in a step of each stage",
)
@judged(
    "relative_block_flops",
    "The blocks cost less than 0.594 of training at the whole size: stages of 4, 9, 9 and 16 patches, 9.5 of 16 in "
    "the mean, and attention saves more.",
    "follows from section 4.2 at the digits' size",
    id="fewer_block_flops",
    below=0.59375,
    kind="counted",
    scope="end_to_end",
    baselines=["vit"],
    sizes=["pico", "nano", "micro"],
    setting={"architecture": "EfficientNetV2 and ResNets at up to 380 pixels"},
    note=(
        "8 x 8 pixels in patches of 2; no class token; how much more depends on the width, and flops_of_the_tokens "
        "has it"
    ),
)
def probes(recording: Recording, own: ProgressiveResolution) -> Mapping[str, float]:
    """Steps and numbers that are off are counted; roundings are those of each stage's first gradients."""
    if own.stages == 1:
        return {}
    run, traces = recording.run, recording.traces
    full, unit = _full_size(run), _unit(run)
    planned = [_planned(own, trace.step, run.recipe.steps, full, unit) for trace in traces]
    first = {size: trace for trace, size in reversed(list(zip(traces, planned, strict=True)))}
    return {
        "off_schedule": sum(_size(trace.batch) != size for trace, size in zip(traces, planned, strict=True)),
        "off_examples": sum(_off_examples(run, trace, unit) for trace in traces),
        "gradient_roundings": max(_gradient_roundings(recording, first[size]) for size in sorted(first)),
        "last_otherwise": _last_otherwise(recording),
        **_flops(recording, own, full, unit),
    }


def _planned(own: ProgressiveResolution, step: int, steps: int, full: int, unit: int) -> int:
    """Computes S_i = S_0 + (S_e - S_0) i / (M - 1) in whole patches, i the number of the step's of M equal stages."""
    stage = min(own.stages - 1, math.floor(own.stages * step / steps))
    size = full * (own.smallest + (1 - own.smallest) * stage / (own.stages - 1))
    return math.floor(size / unit + 0.5) * unit


def _pictures(batch: Batch) -> Tensor | None:
    return next((tensor for tensor in batch.values() if tensor.ndim == 4), None)


def _size(batch: Batch) -> int:
    pictures = _pictures(batch)
    return (pictures if pictures is not None else batch["input_ids"]).shape[-1]


def _whole(run: Run, trace: Trace) -> Batch:
    """Returns the recorded step's examples as the baseline makes a batch of them."""
    setting = run.job.setting
    data = run.baseline.data(setting.size, setting.task, setting.data)
    return data.batch(mixed_seed(run.seed, 2), trace.step * run.recipe.batch_size, run.recipe.batch_size)[0]


def _full_size(run: Run) -> int:
    setting = run.job.setting
    return _size(run.baseline.data(setting.size, setting.task, setting.data).held_out("validation", 1)[0])


def _unit(run: Run) -> int:
    shape = getattr(run.data, "shape", None)
    return shape.patch if shape is not None else 1


def _off_examples(run: Run, trace: Trace, unit: int) -> int:
    batch, whole, size = trace.batch, _whole(run, trace), _size(trace.batch)
    if _pictures(batch) is None:
        rows = run.data.train[trace.indices]["input_ids"].long()[:, :size]
        tokens, labels = batch["input_ids"], batch.get("labels")
        if labels is None:
            return int((tokens != rows).sum())
        return int((torch.where(labels == IGNORED, tokens, labels) != rows).sum())
    off = 0
    for name, tensor in batch.items():
        if tensor.ndim == 4:
            shrink = triangles(whole[name].shape[-1], size)
            expected = shrink @ whole[name].double() @ shrink.T
            off += int(((tensor.double() - expected).abs() > TOLERANCE).sum())
        else:
            expected = whole[name][:, : (size // unit) ** 2] if tensor.ndim == 2 else whole[name]
            off += tensor.numel() if tensor.shape != expected.shape else int((tensor != expected).sum())
    return off


def _of_size(recording: Recording, side: int) -> nn.Module:
    """Builds the baseline's model, made for pictures of ``side``."""
    run = recording.run
    if not hasattr(run.data, "shape"):
        return plain_model(recording)
    setting = run.job.setting
    smaller: Any = replace(run.data, shape=run.data.shape._replace(side=side))  # type: ignore[call-arg]
    with unchanged_randomness(run.device):
        model = run.baseline.model(setting.size, smaller).to(run.device)
    return model.train()


def _gradient_roundings(recording: Recording, trace: Trace) -> float:
    model = _of_size(recording, _size(trace.batch))
    own = dict(model.named_parameters())
    tables = {}
    values = dict(trace.before.parameters)
    for name, parameter in own.items():
        if parameter.shape != values[name].shape:
            tables[name] = resampling(values[name].shape[1], parameter.shape[1])
            values[name] = (tables[name] @ values[name].double()).to(parameter.dtype)
    gradients = gradients_of(recording, trace, filled(model, values))
    for name, matrix in tables.items():
        gradients[name] = matrix.T @ gradients[name]
    trained = {name for name, parameter in recording.run.model.named_parameters() if parameter.requires_grad}
    return apart(trace.of("backward")[0].gradients, {name: gradients[name] for name in trained})


def _last_otherwise(recording: Recording) -> int:
    trace = recording.trace
    gradients = gradients_of(recording, trace, filled(plain_model(recording), trace.before.parameters))
    ours = trace.of("backward")[0].gradients
    return sum(int((gradient.double() != gradients[name]).sum()) for name, gradient in ours.items())


def _flops(recording: Recording, own: ProgressiveResolution, full: int, unit: int) -> dict[str, float]:
    run = recording.twin().run
    share = 1 - getattr(getattr(run.model, "config", None), "mask_ratio", 0.0)  # of the patches, in a block
    extra = tokens_of_a_block(run) - _tokens(full, unit, share)
    steps, rows, block = run.recipe.steps, run.recipe.batch_size, run.anatomy.blocks[-1]
    starts = [math.ceil(stage * steps / own.stages) for stage in range(own.stages)]
    lengths = [end - start for start, end in pairwise([*starts, steps])]
    sizes = [_planned(own, start, steps, full, unit) for start in starts]
    wanted = [block_step_flops(block, rows, extra + _tokens(size, unit, share)) for size in sizes]
    counted = sum(length * flops for length, flops in zip(lengths, counted_block_flops(run, starts), strict=True))
    formula = sum(length * flops for length, flops in zip(lengths, wanted, strict=True))
    return {"flops_over_formula": counted / formula, "relative_block_flops": counted / (steps * wanted[-1])}


def _tokens(size: int, unit: int, share: float) -> int:
    """Counts the tokens of a row, or of the patches of a picture that are not masked."""
    return int((size // unit) ** 2 * share) if unit > 1 else size
