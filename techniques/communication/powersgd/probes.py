"""Tells what a step of every rank shows of PowerSGD: two products and a projection, in float64, from the last
step's Q."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from suite.reading.judged import judged
from suite.reading.recording import Recording
from techniques.communication.powersgd.technique import PowerSGD
from techniques.communication.shared.probed_step import one_more
from techniques.shared.ranks import unequal

OF_ITS_BASELINES = True


@judged(
    "received_roundings",
    "The optimizer gets the ranks' mean of gradient and memory, projected on the columns of its product with the last "
    "Q",
    "Algorithm 1",
    id="projection_of_the_mean",
    at_most=256.0,  # two products, and a QR of columns that may be nearly dependent
    note="but for the factor of clipping, whose norm is summed in float32",
)
@judged(
    "memory_roundings",
    "What a rank's projection leaves out is added to its next gradient",
    "Algorithm 2",
    id="error_feedback",
    at_most=256.0,
)
@judged(
    "query_roundings", "The next step begins with this one's Q", "Section 3: warm start", id="warm_start", at_most=256.0
)
@judged("unequal", "Replicas stay equal to the bit", "Algorithm 2: all apply the same mean", id="equal_replicas")
@judged(
    "gap",
    "What is lost is close to what the best approximation of that rank loses",
    "Section 4.2: warm start makes one power iteration enough, by test accuracy there",
    id="near_the_best",
    at_most=2.0,
    kind="counted",
    sizes=["nano", "micro"],
    note="all matrices together, of one step at the run's end; 1 is the best",
)
def probes(recording: Recording, own: PowerSGD) -> Mapping[str, float]:
    """All are of one step, but ``unequal`` of the run's end. For a claim, ``numbers_over_formula`` is of the
    all-reduces, over r (n + m) a matrix."""
    run, rank = recording.run, own.rank
    queries = {name: query.double() for name, query in own.queries.items()}
    step = one_more(recording, own)
    wanted = {name: value.double() for name, value in step.wanted().items()}
    mean, numbers = step.mean(wanted), 0
    lost, next_queries, lost_squares, best_squares = {}, {}, 0.0, 0.0
    expected = dict(mean)
    for name, whole in mean.items():
        matrix = whole.reshape(len(whole), -1)
        n, m = matrix.shape
        if whole.ndim < 2 or rank * (n + m) >= n * m:
            numbers += whole.numel()
            continue
        numbers += rank * (n + m)
        basis = torch.linalg.svd(matrix @ queries[name], full_matrices=False)[0]
        expected[name] = (basis @ (basis.T @ matrix)).view_as(whole)
        local = wanted[name].reshape(n, m)
        lost[name] = (local - basis @ (basis.T @ local)).view_as(whole)
        next_queries[name] = matrix.T @ basis
        lost_squares += (whole - expected[name]).square().sum().item()
        best_squares += torch.linalg.svdvals(matrix)[rank:].square().sum().item()
    return {
        "received_roundings": step.received_roundings(expected),
        "memory_roundings": step.memory_roundings(lost, wanted),
        "query_roundings": _query_roundings(own, next_queries),
        "numbers_over_formula": step.sent_bytes / (2 * (run.world_size - 1) / run.world_size * 4 * numbers),
        "gap": lost_squares / best_squares,
        "unequal": unequal(recording),
    }


def _query_roundings(own: PowerSGD, expected: Mapping[str, Tensor]) -> float:
    """Measures Q up to a rotation, which the basis leaves open: Q Q^T has none."""
    worst = 0.0
    for name, value in expected.items():
        ours = own.queries[name].double()
        size = value.norm().square() + torch.finfo(torch.float32).tiny
        worst = max(worst, ((ours.T @ ours).trace() - (value.T @ value).trace()).abs().item() / size.item())
        off = (ours @ (ours.T @ value) - value @ (value.T @ value)).norm() / (size * value.norm() + 1e-300)
        worst = max(worst, off.item())
    return worst / torch.finfo(torch.float32).eps
