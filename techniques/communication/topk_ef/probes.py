"""What a step of every rank shows of top-k sparsification: what was sent of which sum, and what is remembered."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from suite.reading.recording import Recording
from techniques.communication.shared.probed_step import one_more
from techniques.communication.topk_ef.technique import TopK
from techniques.shared.ranks import unequal

OF_ITS_BASELINES = True
BYTES = 8  # a float32 value, an int32 index


def probes(recording: Recording, own: TopK) -> Mapping[str, float]:
    """Of one step: ``received_roundings`` of the optimizer's gradients from the mean of each rank's largest entries;
    ``forgotten``: entries whose memory is not, to the bit, what was not sent; ``kept_energy``: squared norm of what was
    sent over the share of the entries times that of the whole, the least of all tensors; ``bytes_over_formula``: of
    the message to each other rank. ``unequal``: values in which the replicas differ."""
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
    """``x`` where it is among the largest, by sorting; ties are no matter where they are zeros."""
    order = x.flatten().abs().argsort(descending=True)[: max(1, math.ceil(ratio * x.numel()))]
    return torch.where(torch.zeros(x.numel(), dtype=torch.bool).index_fill(0, order.cpu(), True).view(x.shape), x, 0.0)


def _energy(part: Tensor, whole: Tensor, ratio: float) -> float:
    energy = whole.double().square().sum().item()
    return part.double().square().sum().item() / (ratio * energy) if energy else 1.0
