"""What a step of every rank shows of PowerSGD: two products and a projection, in float64, from the last step's Q."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from suite.reading.recording import Recording
from techniques.communication.powersgd.technique import PowerSGD
from techniques.communication.shared.probed_step import one_more
from techniques.shared.ranks import unequal

OF_ITS_BASELINES = True


def probes(recording: Recording, own: PowerSGD) -> Mapping[str, float]:
    """Of one step: ``received_roundings`` of the optimizer's gradients from the projection of the ranks' mean of
    gradient and memory on the columns of its product with Q; ``memory_roundings`` of what is remembered from what this
    rank's projection left; ``query_roundings`` of the next Q from the product with that projection's basis;
    ``numbers_over_formula``: of the all-reduces, r (n + m) a matrix; ``gap``: squared norm of the mean matrices less
    what was sent of them, over that less their best approximations of that rank, all together. ``unequal``: values in
    which the replicas differ."""
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
    """Up to a rotation, which the basis leaves open: Q Q^T has none."""
    worst = 0.0
    for name, value in expected.items():
        ours = own.queries[name].double()
        size = value.norm().square() + torch.finfo(torch.float32).tiny
        worst = max(worst, ((ours.T @ ours).trace() - (value.T @ value).trace()).abs().item() / size.item())
        off = (ours @ (ours.T @ value) - value @ (value.T @ value)).norm() / (size * value.norm() + 1e-300)
        worst = max(worst, off.item())
    return worst / torch.finfo(torch.float32).eps
