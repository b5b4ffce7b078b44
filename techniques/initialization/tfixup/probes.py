"""Tells what the first recorded step shows of T-Fixup, beside the baseline's own fresh model; and how far one step
moves networks of several depths."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import T5Config, T5ForConditionalGeneration

from suite.entries.spelling import build
from suite.loop.run import Run
from suite.model.anatomy import Anatomy, anatomy, is_transposed, weight_matrix
from suite.model.projections import projection_rows
from suite.reading.judged import judged
from suite.reading.recording import Recording
from suite.reading.trace import Values
from techniques.initialization.shared import branch_probes
from techniques.initialization.shared.depth import deep_run, first_step, gradient_step, slope
from techniques.initialization.tfixup.technique import TFixup, initialise
from techniques.shared.plain import names_in, plain_model

OF_ITS_BASELINES = True  # whose norms are layer norms, and whose embeddings have these names
EMBEDDING = re.compile(r"wte|wpe|embeddings\.|^pos_embed|^patch_embed")
DECODER_EMBEDDING = re.compile(r"decoder_embed|mask_token|decoder_pos_embed")
DEPTHS = (2, 4, 8, 16)
EPS = torch.finfo(torch.float32).eps


class Matrix(NamedTuple):
    """Holds one drawn matrix [out, in], and the factor of its stack that it should have."""

    values: Tensor
    factor: float


def records(run: Run, own: TFixup) -> bool:
    """Tells whether it is the start, where weights are as drawn, or the middle."""
    return run.step in (0, run.recipe.steps // 2)


@judged(
    "off_deviation",
    "The blocks' matrices have Xavier's standard deviation: queries' and keys' exactly, values', outputs' and MLPs' "
    "times 0.67 N^(-1/4).",
    "Section 3.2",
    id="xavier_and_factors",
    at_most=5.0,  # standard errors, the largest of up to some 50 matrices
)
@judged(
    "beyond",
    "They are drawn from Xavier's uniform distribution: no number lies beyond its bound times the factor.",
    "Section 3.2; the authors' code",
    id="uniform",
)
@judged(
    "off_in_decoder",
    "In a decoder that attends to an encoder, the matrices of values, outputs and MLPs are scaled by (9 N)^(-1/4).",
    "Section 3.2",
    id="decoder_factor",
    at_most=5.0,  # standard errors, the largest of 48 matrices
    note="a T5 of four and four blocks",
)
@judged(
    "off_embeddings",
    "The embedding is scaled by (9 N)^(-1/4), and nothing else outside of the blocks is.",
    "Section 3.2",
    id="embeddings",
    at_most=2.0,  # roundings of a product
)
@judged("norms", "No layer norm is left.", "Abstract; section 3.2", id="no_norm")
@judged(
    "rate",
    "Training begins at the full learning rate.",
    "Abstract; section 3.2",
    id="no_warm_up",
    equals=1.0,
    tolerance=1e-9,
)
@judged(
    "gradient_slope",
    "A step along the gradient moves the outputs by an amount that does not grow with the depth.",
    "Section 3.2, theorem",
    id="any_depth",
    at_most=0.25,
    note="the power of the depth, fitted over 2 to 16 blocks",
)
def probes(recording: Recording, own: TFixup) -> Mapping[str, float]:
    """``norms`` is of the middle step, the slopes of networks of several depths, all others of the first step.
    ``off_deviation`` is in standard errors, of the matrix farthest off; ``off_embeddings`` in roundings. For a claim,
    ``lost`` is the parameters fewer than the plain model has beside its norms. ``adam_slope``, the power of the depth
    with which the run's own step moves the outputs, is shown beside."""
    first = recording.traces[0]
    values = first.before.parameters
    plain = branch_probes.without_layer_norms(plain_model(recording))
    parts = anatomy(plain)
    drawn = list(_drawn(parts, values, names_in(plain, values)))
    return {
        "off_deviation": max(abs(_off_deviation(weight)) for weight in drawn),
        "beyond": sum(int((weight.values.abs() > 1.000001 * _bound(weight)).sum()) for weight in drawn),
        "off_in_decoder": max(map(abs, _off_in_decoder())),
        "off_embeddings": _off_embeddings(parts, values),
        "lost": -branch_probes.added(plain, values),
        "rate": branch_probes.first_rate(recording, first),
        "norms": branch_probes.layer_norms_run(recording, recording.trace),
        "gradient_slope": _slope(recording, gradient_step),
        "adam_slope": _slope(recording, first_step),
    }


def _drawn(parts: Anatomy, values: Values, names: Mapping[str, str]) -> Iterator[Matrix]:
    for stack in parts.stacks:
        scaled = 0.67 * stack.depth**-0.25
        for block in stack.blocks:
            for part in block.linears:
                weight = values[names[f"{part.path}.weight"]]
                rows = weight.T if is_transposed(part.module) else weight
                if re.search("qkv|c_attn", part.path):
                    yield from map(Matrix, rows.chunk(3), (1.0, 1.0, scaled))
                else:
                    yield Matrix(rows, 1.0 if re.search("query|key|[qk]_proj", part.path) else scaled)


def _bound(matrix: Matrix) -> float:
    """Returns the bound of Xavier's uniform distribution, scaled."""
    return matrix.factor * math.sqrt(6 / sum(matrix.values.shape))


def _off_deviation(matrix: Matrix) -> float:
    """Returns the mean square over that of the distribution, less 1, in standard errors: squares of uniform numbers
    spread by sqrt(4/5) of their mean."""
    squares = matrix.values.double().square()
    return (squares.mean().item() / (_bound(matrix) ** 2 / 3) - 1) / math.sqrt(0.8 / squares.numel())


def _off_in_decoder() -> Iterator[float]:
    """Yields the deviations of a T5's matrices, drawn anew."""
    with torch.random.fork_rng(devices=[]):
        config = T5Config(num_layers=4, d_model=32, d_kv=8, num_heads=4, d_ff=64, vocab_size=8)
        model = T5ForConditionalGeneration(config)
    parts, tokens = anatomy(model), torch.zeros(1, 4, dtype=torch.int64)
    projections = projection_rows(
        model, parts.every_block, lambda: model(input_ids=tokens, decoder_input_ids=tokens, use_cache=False)
    )
    initialise(parts, projections, torch.Generator().manual_seed(0))
    for stack, factor in zip(parts.stacks, (0.67 * 4**-0.25, (9 * 4) ** -0.25), strict=True):
        for block in stack.blocks:
            for path, linear in block.linears:
                scaled = 1.0 if path.endswith((".q", ".k")) else factor
                yield _off_deviation(Matrix(weight_matrix(linear).detach(), scaled))


def _off_embeddings(parts: Anatomy, values: Values) -> float:
    blocks = tuple(f"{block.path}." for block in parts.every_block)
    names = names_in(parts.model, values)
    off = []
    for name, parameter in parts.model.named_parameters():
        if name in names and not name.startswith(blocks):
            stack = 1 if DECODER_EMBEDDING.search(name) else 0 if EMBEDDING.search(name) else None
            factor = 1.0 if stack is None else (9 * parts.stacks[stack].depth) ** -0.25
            expected = factor * parameter.detach().double()
            largest = expected.abs().max().item() or 1.0
            off.append((values[names[name]].double() - expected).abs().max().item() / largest)
    return max(off) / EPS


def _slope(recording: Recording, step: Callable[[Run], float]) -> float:
    run = recording.run
    setting = run.job.setting
    runs = [deep_run(setting, build(run.job.stack), depth, baseline=run.baseline) for depth in DEPTHS]
    return slope(DEPTHS, [step(run) for run in runs])
