"""Tells what a step of every rank shows of truncated decompositions: the best of their rank, and what is remembered."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from suite.reading.judged import judged
from suite.reading.recording import Recording
from techniques.communication.shared.probed_step import one_more
from techniques.communication.svd_lowrank.technique import SVDLowRank
from techniques.shared.ranks import unequal

OF_ITS_BASELINES = True


@judged(
    "lost_over_best",
    "Nothing of that rank loses less of a rank's gradient and memory",
    "Eckart, Young, Mirsky",
    id="best_of_its_rank",
    equals=1.0,
    tolerance=0.001,
)
@judged("sent_rank", "What a rank sends of a matrix has rank 2", "This entry's default", id="rank", equals=2.0)
@judged(
    "received_roundings",
    "The optimizer gets the mean over ranks of gradient and memory less what is remembered now: nothing is lost",
    "Error feedback",
    id="mean_of_what_was_sent",
    at_most=256.0,  # a decomposition, the sum, and a norm of all gradients
    note="but for the factor of clipping, whose norm is summed in float32",
)
@judged("unequal", "Replicas stay equal to the bit", "All apply the same mean", id="equal_replicas")
def probes(recording: Recording, own: SVDLowRank) -> Mapping[str, float]:
    """All are of one step, but ``unequal`` of the run's end. ``lost_over_best`` is over the sum of the squares of the
    singular values beyond the rank. For a claim, ``bytes_over_formula`` is of r (n + m + 1) numbers a matrix to each
    other rank, and an all-reduce of the vectors."""
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
