"""Measures how far a model that has grown, and its optimizer's state, are from what a paper says, in numbers that
differ.

For the probes of ``bert2bert`` and ``compound_grow``, which say what each parameter comes from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from suite.reading.trace import Trace

DEGREES = {"exp_avg": 1, "exp_avg_sq": 2}  # of AdamW's moments in the gradient

Expected = Callable[[str, Mapping[str, Tensor], Tensor, int], Tensor | None]
"""``expected(name, before, like, degree)``: what a parameter, in the shape of ``like``, comes to be of those before, by
name; with a degree, what the optimizer keeps of it; None where nothing is before it."""


def off_values(trace: Trace, expected: Expected) -> int:
    """Counts the numbers of the grown model that differ."""
    before, after = trace.update.after.parameters, trace.after.parameters
    return sum(_differing(now, expected(name, before, now, 0)) for name, now in after.items())


def off_state(trace: Trace, expected: Expected, *, carried: bool) -> int:
    """Counts the numbers of the optimizer's state after the growth that differ; all of them where it should start
    anew."""
    before, after = trace.update.after.state, trace.after.state
    if not carried:
        return sum(len(state) for state in after.values())
    off = 0
    for key, degree in DEGREES.items():
        moments = {name: state[key] for name, state in before.items() if key in state}
        for name, like in trace.after.parameters.items():
            off += _differing(after.get(name, {}).get(key), expected(name, moments, like, degree))
    return off


def _differing(now: Tensor | None, expected: Tensor | None) -> int:
    if expected is None:
        return 0 if now is None else now.numel()
    if now is None or now.shape != expected.shape:
        return expected.numel()
    return int(((now - expected).abs() > 2 * torch.finfo(now.dtype).eps * expected.abs()).sum())
