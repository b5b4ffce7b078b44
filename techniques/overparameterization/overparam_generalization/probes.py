"""Tells what recorded steps show of wider MLPs (:mod:`shared.width_probes`) and of the ball that they stay in."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from suite.loop.run import Run
from suite.reading.judged import judged
from suite.reading.recording import Recording
from suite.reading.trace import Trace, Values
from techniques.overparameterization.overparam_generalization.technique import OverparamGeneralization
from techniques.overparameterization.shared.width_probes import of_mlps, shows
from techniques.shared.plain import plain_model

EPS = torch.finfo(torch.float32).eps


def records(run: Run, own: OverparamGeneralization) -> bool:
    """Selects all steps: each ends in the ball."""
    return not own.is_reference


@judged(
    "changed",
    "The reference's neurons begin as its own, outgoing weights divided by the root of the width; everything outside "
    "of the MLPs is unchanged.",
    "This card's variant",
    id="same_start",
    scope="module",
)
@judged(
    "off_spread",
    "New neurons are drawn as the reference's are.",
    "Section 2: Gaussian initialisation with one variance",
    id="same_spread",
    at_most=0.05,  # of a draw of thousands of numbers
    scope="module",
)
@judged(
    "repeated", "No two neurons begin alike.", "Section 2: independent random weights", id="independent", scope="module"
)
@judged(
    "outside",
    "After every step each matrix of an MLP is in a ball around its random start.",
    "Theorem 1: a neighbourhood of the random initialisation",
    id="near_the_start",
    at_most=64.0,  # roundings, of norms of up to some ten thousand numbers in float32
)
@judged(
    "off_nearest",
    "What has left the ball goes to its nearest point.",
    "This card's variant: the projection on a ball",
    id="nearest_point",
    at_most=64.0,  # roundings, as above
)
@judged(
    "moved_inside",
    "What is inside stays to the bit.",
    "This card's variant: the projection on a ball",
    id="free_inside",
)
@judged("elsewhere", "No other parameter is moved by the projection.", "This card's variant", id="others_are_free")
@judged("at_rest", "All hidden layers are trained.", "Section 2", id="all_train")
@judged(
    "neurons",
    "The hidden layers are over-parameterised: four times the reference's neurons.",
    "Section 1; four times is this entry's choice",
    id="width",
    equals=4.0,
    tolerance=1e-9,
    kind="counted",
    scope="module",
)
def probes(recording: Recording, own: OverparamGeneralization) -> Mapping[str, float]:
    """Includes those of :func:`width_probes.shows`. ``outside`` and ``off_nearest`` are in roundings, the latter from
    the nearest point to where the optimizer went; matrices and parameters that moved are counted. ``met``, the share of
    steps and matrices in which the ball was left, is shown beside."""
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
    """Computes the distance in roundings of the numbers' root mean square: each is a sum of two."""
    scale = origin.square().mean().sqrt() + expected.abs()
    return ((ours - expected).abs() / scale).max().item() / EPS
