"""What a step of every rank shows of truncated decompositions: the best of their rank, and what is remembered."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from suite.reading.recording import Recording
from techniques.communication.shared.probed_step import one_more
from techniques.communication.svd_lowrank.technique import SVDLowRank
from techniques.shared.ranks import unequal

OF_ITS_BASELINES = True


def probes(recording: Recording, own: SVDLowRank) -> Mapping[str, float]:
    """Of one step: ``lost_over_best``: squared norm of what this rank did not send of its matrices, over the sum of the
    squares of their singular values beyond the rank; ``received_roundings`` of the optimizer's gradients from the mean
    over ranks of gradient and memory less what is remembered now; ``sent_rank``: the largest of what was sent;
    ``bytes_over_formula``: r (n + m + 1) numbers a matrix to each other rank, and an all-reduce of the vectors.
    ``unequal``: values in which the replicas differ."""
    run, rank = recording.run, own.rank
    step = one_more(recording, own)
    sent, gathered, reduced, sent_rank = {}, 0, 0, 0
    lost = best = 0.0
    for name, wanted in step.wanted().items():
        matrix = wanted.double().reshape(len(wanted), -1)
        n, m = matrix.shape
        sent[name] = wanted.double()
        if wanted.ndim < 2 or rank * (n + m) >= n * m:
            reduced += wanted.numel()
            continue
        gathered += rank * (n + m + 1)
        memory = step.after[name].double() if name in step.after else torch.zeros_like(sent[name])
        sent[name] = sent[name] - memory
        values = torch.linalg.svdvals(sent[name].reshape(n, m))
        sent_rank = max(sent_rank, int((values > 1e-4 * values[0]).sum()))
        lost += memory.square().sum().item()
        best += torch.linalg.svdvals(matrix)[rank:].square().sum().item()
    others = run.world_size - 1
    return {
        "lost_over_best": lost / best,
        "received_roundings": step.received_roundings(step.mean(sent)),
        "sent_rank": sent_rank,
        "bytes_over_formula": step.sent_bytes / (others * 4 * (gathered + 2 * reduced / run.world_size)),
        "unequal": unequal(recording),
    }
