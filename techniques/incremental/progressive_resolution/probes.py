"""What the steps of a short run show of progressive resolution: the sizes that came, how they were made of the whole
examples, and the gradients of a model made for that size whose positions are resampled by matrices in float64.

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
    """All steps: their sizes."""
    return own.stages > 1


def probes(recording: Recording, own: ProgressiveResolution) -> Mapping[str, float]:
    """``off_schedule``: steps whose examples have another size than section 4.2 says; ``off_examples``: numbers of a
    batch that are not those of the whole examples made smaller; ``gradient_roundings``: how far each stage's first
    gradients are from those of a model made for its size; ``last_otherwise``: numbers of the last step's gradients that
    are not the plain model's to the bit; ``flops_over_formula``: FLOPs of a block in all stages, over the formula's for
    (side / patch)^2 patches; ``relative_block_flops``: those FLOPs over the whole size's, weighted by steps."""
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
    """S_i = S_0 + (S_e - S_0) i / (M - 1) in whole patches, i the number of the step's of M equal stages."""
    stage = min(own.stages - 1, math.floor(own.stages * step / steps))
    size = full * (own.smallest + (1 - own.smallest) * stage / (own.stages - 1))
    return math.floor(size / unit + 0.5) * unit


def _pictures(batch: Batch) -> Tensor | None:
    return next((tensor for tensor in batch.values() if tensor.ndim == 4), None)


def _size(batch: Batch) -> int:
    pictures = _pictures(batch)
    return (pictures if pictures is not None else batch["input_ids"]).shape[-1]


def _whole(run: Run, trace: Trace) -> Batch:
    """The recorded step's examples as the baseline makes a batch of them."""
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
    """The baseline's model, made for pictures of ``side``."""
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
    """Of a row, or of the patches of a picture that are not masked."""
    return int((size // unit) ** 2 * share) if unit > 1 else size
