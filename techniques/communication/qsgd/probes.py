"""Tells what a step of every rank shows of QSGD: levels around each entry, no bias, independent noise."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor

from suite.reading.judged import judged
from suite.reading.recording import Recording
from techniques.communication.qsgd.technique import QSGD
from techniques.communication.shared.probed_step import one_more
from techniques.shared.ranks import summed, unequal

OF_ITS_BASELINES = True


@judged(
    "off_in_levels",
    "Every entry becomes one of the two levels around it",
    "Section 3.1",
    id="neighbouring_levels",
    at_most=1.001,
)
@judged(
    "bias_in_deviations",
    "The expectation of what is sent is the gradient",
    "Lemma 3.1",
    id="unbiased",
    at_most=5.0,  # standard deviations: the same seeds in every count
)
@judged(
    "variance_ratio",
    "Noise is that of unbiased rounding, independent between ranks, whose mean has 1/N of it",
    "Section 3.1; equation 1",
    id="variance",
    equals=1.0,
    tolerance=0.05,  # of ten thousand entries and more
)
@judged(
    "variance_over_bound",
    "A bucket's variance is at most min(d / s^2, sqrt(d) / s) times its squared norm",
    "Lemma 3.1",
    id="variance_bound",
    at_most=1.0,
)
@judged(
    "noises",
    "Every rank has a noise of its own",
    "Section 2: independent stochastic gradients",
    id="noise_of_its_own",
    equals=1.0,
)
@judged(
    "received_roundings",
    "The optimizer gets the mean that the ranks have decoded",
    "Algorithm 1",
    id="received",
    at_most=64.0,  # a norm of all gradients
)
@judged("unequal", "Replicas stay equal to the bit", "Algorithm 1: all decode the same messages", id="equal_replicas")
def probes(recording: Recording, own: QSGD) -> Mapping[str, float]:
    """All are of one step, before clipping, but ``unequal`` of the run's end. ``off_in_levels`` is the largest distance
    from the gradients' mean, in the mean of the ranks' level distances; ``bias_in_deviations`` is in those of unbiased
    rounding. For a claim, ``bytes_over_formula`` is of the message to each other rank."""
    run = recording.run
    step = one_more(recording, own)
    highest = 2 ** (own.bits - 1) - 1
    off, distances, variances, bounds = [], [], [], []
    for name, mean in step.mean(step.gradients).items():
        distance, variance, bound = _rounding(step.gradients[name].double().flatten(), own, highest)
        distances.append(summed(recording, distance) / run.world_size)
        variances.append(summed(recording, variance) / run.world_size**2)
        bounds.append(summed(recording, bound) / run.world_size**2)
        off.append((step.means[name] - mean).flatten())
    difference, distance, variance = torch.cat(off), torch.cat(distances), torch.cat(variances)
    moved = distance > 0
    levels, expected = difference[moved] / distance[moved], variance[moved] / distance[moved].square()
    lengths = [gradient.numel() for gradient in step.gradients.values()]
    message = sum(math.ceil(n * own.bits / 8) + 4 * math.ceil(n / own.bucket) for n in lengths)
    seeds: list[int] = [0] * run.world_size
    dist.all_gather_object(seeds, own.noise.initial_seed(), group=run.group)
    return {
        "off_in_levels": levels.abs().max().item(),
        "bias_in_deviations": abs((levels.sum() / expected.sum().sqrt()).item()),
        "variance_ratio": (levels.square().sum() / expected.sum()).item(),
        "variance_over_bound": (difference.square().sum() / torch.stack(bounds).sum()).item(),
        "received_roundings": step.received_roundings(step.means),
        "bytes_over_formula": step.sent_bytes / ((run.world_size - 1) * message),
        "noises": len(set(seeds)) / run.world_size,
        "unequal": unequal(recording),
    }


def _rounding(v: Tensor, own: QSGD, highest: int) -> tuple[Tensor, Tensor, Tensor]:
    """Returns, of every entry, the distance of two levels and the variance of unbiased rounding to its neighbours, p (1
    - p) times its square; and the paper's bound of the whole tensor's (lemma 3.1)."""
    distance, variance, bound = torch.zeros_like(v), torch.zeros_like(v), v.new_zeros(())
    for start in range(0, len(v), own.bucket):
        part = v[start : start + own.bucket]
        norm, d = part.norm(), len(part)
        scale = part.abs().max() if own.scale == "max" else norm
        level = part.abs() / scale * highest if scale > 0 else torch.zeros_like(part)
        above = level - level.floor()
        distance[start : start + own.bucket] = scale / highest
        variance[start : start + own.bucket] = above * (1 - above) * (scale / highest).square()
        bound += min(d / highest**2, math.sqrt(d) / highest) * norm.square()
    return distance, variance, bound
