"""Checks what recorded steps show of low-bit moments, in float64: for the probes of ``adam8bit_blockwise`` and
``adam4bit_rank1``, which say by themselves what the state stands for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from suite.reading.recording import Recording
from suite.reading.trace import Trace
from techniques.shared.adam_moves import recipes
from techniques.shared.moves import Move, off

ROUNDINGS = 8 * torch.finfo(torch.float32).eps
"""Of a moment, over the terms that it is a sum of, and of the scale that it is divided by."""

State = Mapping[str, Any]
Decoded = Callable[[State, Tensor], tuple[Tensor, Tensor]]
"""A state and the weights -> both moments, float64 of the weights' shape."""
Judged = Callable[[State, Tensor, Tensor, Tensor], Mapping[str, float]]
"""A new state, the first moment that it should stand for, that one's terms in magnitude, and the second moment."""


def dynamic_map(bits: int, signed: bool) -> Tensor:
    """Computes the map's values, rising, float64, as 2110.02861 (section 2.1) and bitsandbytes describe it: in each
    decade from 10^-(bits - 1) to 1 twice as many centres of equal cells as in the one below, 0, 1 and, where signed,
    negatives."""
    centres = []
    for decade in range(bits - 1):
        edges = torch.linspace(0.1, 1, 2 ** (decade + (not signed)) + 1, dtype=torch.float64)
        centres.append(10.0 ** (decade - bits + 2) * (edges[:-1] + edges[1:]) / 2)
    positive = torch.cat(centres)
    ends = positive.new_tensor([0.0]), positive.new_tensor([1.0])
    return torch.cat([-positive.flip(0) if signed else positive[:0], ends[0], positive, ends[1]])


def blocks(x: Tensor, block: int, fill: float = 0) -> Tensor:
    """Returns ``x``, flat, in rows of ``block`` elements, the last one filled up."""
    return pad(x.flatten(), (0, -x.numel() % block), value=fill).view(-1, block)


def not_nearest(codes: Tensor, values: Tensor, wanted: Tensor, error: Tensor) -> int:
    """Counts how many ``codes`` are not those of the ``values``, rising, that are nearest to ``wanted``, which may be
    off by ``error``."""
    upper = torch.searchsorted(values, wanted.contiguous()).clamp(1, len(values) - 1)
    nearest = torch.minimum((wanted - values[upper - 1]).abs(), (values[upper] - wanted).abs())
    return int(((wanted - values[codes.long()]).abs() > nearest + 2 * error).sum())


def low_bit_steps(
    recording: Recording, smallest: int, tables_apart: bool, decoded: Decoded, judged: Judged, matrices: bool = False
) -> dict[str, float]:
    """Computes ``step_roundings``: how far the weights are from AdamW's step along the decoded moments; ``misplaced``:
    parameters whose moments have few bits and should not, or the reverse, and embeddings that are in no group of their
    own; ``low_bit_share``: of the elements; and the worst of what ``judged`` says of each new state.

    Low-bit are those of ``smallest`` elements or more (``matrices``: of two dimensions or more), embeddings aside where
    ``tables_apart``.
    """
    names = {id(parameter): name for name, parameter in recording.run.model.named_parameters()}
    tables = {names[id(part.module.weight)] for part in recording.run.anatomy.embeddings} if tables_apart else set()
    worst = {"step_roundings": 0.0, "misplaced": 0.0}
    low = every = 0
    for trace in recording.traces:
        for move in recipes(recording, trace):
            count, has = move.weights.numel(), "first_codes" in move.state_after
            should = count >= smallest and move.name not in tables and not (matrices and move.weights.ndim < 2)
            apart = move.hyper.get("low_bit") is False
            worst["misplaced"] += float(has != should) + float(apart != (move.name in tables))
            low, every = low + has * count, every + count
            if has and move.begun:
                m, v = decoded(move.begun, move.weights)
            else:
                m, v = move.before("first_moment"), move.before("second_moment")
            beta1, beta2 = move.hyper["betas"]
            terms = beta1 * m.abs() + (1 - beta1) * move.gradient.abs()
            m = beta1 * m + (1 - beta1) * move.gradient
            v = beta2 * v + (1 - beta2) * move.gradient.square()
            worst["step_roundings"] = max(worst["step_roundings"], _step_off(recording, trace, move, m, v))
            if has:
                for name, value in judged(move.state_after, m, terms, v).items():
                    worst[name] = max(worst.get(name, 0.0), value)
    return {**worst, "low_bit_share": low / every}


def _step_off(recording: Recording, trace: Trace, move: Move, m: Tensor, v: Tensor) -> float:
    """Computes the distance of the weights from where AdamW's step along these moments takes them, in roundings."""
    recipe = recording.run.recipe
    (beta1, beta2), rate, t = move.hyper["betas"], recipe.learning_rate_at(trace.step), trace.step + 1
    deviation = (v / (1 - beta2**t)).sqrt() + move.hyper["eps"]
    decayed = move.weights * (1 - rate * (recipe.weight_decay if move.weights.ndim >= 2 else 0.0))
    step, terms = rate * m / (1 - beta1**t) / deviation, rate / deviation * move.gradient.abs()
    return off(move.after, decayed - step, move.weights, step, terms)
