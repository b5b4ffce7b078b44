"""What recorded steps show of wider MLPs (:mod:`shared.width_probes`) and of the ball that they stay in."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from suite.loop.run import Run
from suite.reading.recording import Recording
from suite.reading.trace import Trace, Values
from techniques.overparameterization.overparam_generalization.technique import OverparamGeneralization
from techniques.overparameterization.shared.width_probes import of_mlps, shows
from techniques.shared.plain import plain_model

EPS = torch.finfo(torch.float32).eps


def records(run: Run, own: OverparamGeneralization) -> bool:
    """All steps: each ends in the ball."""
    return not own.is_reference


def probes(recording: Recording, own: OverparamGeneralization) -> Mapping[str, float]:
    """Beside :func:`width_probes.shows`: ``outside``: roundings by which a matrix is outside of its
    ball after a step, at most; ``off_nearest``: roundings from the nearest point to where the optimizer went;
    ``moved_inside``: matrices that were inside and did not stay to the bit; ``elsewhere``: other parameters that moved
    after the optimizer's step; ``met``: the share of steps and matrices in which the ball was left."""
    if own.is_reference:
        return {}
    if not own.radius:
        return shows(recording, own.width)
    start = recording.traces[0].before.parameters
    names = [name for name in of_mlps(plain_model(recording)) if start[name].ndim == 2]
    by_step = [_of_step(trace, start, names, own.radius) for trace in recording.traces]
    outside, nearest, moved, elsewhere, met = zip(*by_step, strict=True)
    return {
        **shows(recording, own.width),
        "outside": max(outside),
        "off_nearest": max(nearest),
        "moved_inside": sum(moved),
        "elsewhere": sum(elsewhere),
        "met": sum(met) / len(met),
    }


def _of_step(trace: Trace, start: Values, names: list[str], radius: float) -> tuple[float, float, int, int, float]:
    before, after = trace.update.after.parameters, trace.after.parameters
    outside, nearest, moved, met = 0.0, 0.0, 0, 0
    for name in names:
        origin, went, ended = (values[name].double() for values in (start, before, after))
        ball = radius * origin.norm()
        margin = math.log2(origin.numel()) * EPS  # what two norms, summed in pairs in float32, err by at most
        outside = max(outside, ((ended - origin).norm() / ball - 1).item() / EPS)
        if (went - origin).norm() <= ball * (1 - margin):
            moved += not torch.equal(before[name], after[name])
        elif (went - origin).norm() > ball * (1 + margin):
            met += 1
            nearest = max(nearest, _off(ended, origin + ball * (went - origin) / (went - origin).norm(), origin))
    elsewhere = sum(not torch.equal(before[name], after[name]) for name in before.keys() - set(names))
    return outside, nearest, moved, elsewhere, met / len(names)


def _off(ours: Tensor, expected: Tensor, origin: Tensor) -> float:
    """In roundings of the numbers' root mean square: each is a sum of two."""
    scale = origin.square().mean().sqrt() + expected.abs()
    return ((ours - expected).abs() / scale).max().item() / EPS
