"""Tells what a step of every rank shows of top-k sparsification: what was sent of which sum, and what is remembered."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from suite.reading.judged import judged
from suite.reading.recording import Recording
from techniques.communication.shared.probed_step import one_more
from techniques.communication.topk_ef.technique import TopK
from techniques.shared.ranks import unequal

OF_ITS_BASELINES = True
BYTES = 8  # a float32 value, an int32 index


@judged(
    "received_roundings",
    "The optimizer gets the mean over ranks of the k entries of gradient and memory that are largest on each",
    "Algorithm 1",
    id="mean_of_the_largest",
    at_most=64.0,  # the sum, and a norm of all gradients
    note="but for the factor of clipping, whose norm is summed in float32",
)
@judged(
    "forgotten",
    "What was not sent is remembered, to the bit, so that after any number of steps what was sent and the memory add "
    "up to the gradients",
    "Algorithm 1",
    id="nothing_is_lost",
)
@judged(
    "kept_energy",
    "Top-k keeps at least k / n of the squared norm",
    "Definition 2.1, lemma A.1",
    id="contraction",
    at_least=1.0,
)
@judged("unequal", "Replicas stay equal to the bit", "Algorithm 1: all apply the same mean", id="equal_replicas")
def probes(recording: Recording, own: TopK) -> Mapping[str, float]:
    """All are of one step, but ``unequal`` of the run's end. ``kept_energy`` is the least of all tensors. For a claim,
    ``bytes_over_formula`` is of the message to each other rank."""
    run = recording.run
    step = one_more(recording, own)
    top_k = {name: _largest(value, own.ratio) for name, value in step.wanted().items()}
    counts = [max(1, math.ceil(own.ratio * value.numel())) for value in top_k.values()]
    return {
        "received_roundings": step.received_roundings(step.mean(top_k)),
        "forgotten": sum(int((step.after[name] != value - top_k[name]).sum()) for name, value in step.wanted().items()),
        "kept_energy": min(_energy(top_k[name], value, own.ratio) for name, value in step.wanted().items()),
        "bytes_over_formula": step.sent_bytes / ((run.world_size - 1) * BYTES * sum(counts)),
        "unequal": unequal(recording),
    }


def _largest(x: Tensor, ratio: float) -> Tensor:
    """Returns ``x`` where it is among the largest, by sorting; ties are no matter where they are zeros."""
    order = x.flatten().abs().argsort(descending=True)[: max(1, math.ceil(ratio * x.numel()))]
    return torch.where(torch.zeros(x.numel(), dtype=torch.bool).index_fill(0, order.cpu(), True).view(x.shape), x, 0.0)


def _energy(part: Tensor, whole: Tensor, ratio: float) -> float:
    energy = whole.double().square().sum().item()
    return part.double().square().sum().item() / (ratio * energy) if energy else 1.0
