"""Tells what an evaluation of ELSA shows: hashes by the whole matrix H, distances counted bit by bit, thresholds from
the training batches again, and that training knows nothing of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import reduce

import torch
from torch import Tensor

from suite.loop.data import mixed_seed
from suite.reading.judged import judged, judged_as
from suite.reading.recording import Recording
from techniques.attention.elsa import hashing
from techniques.attention.elsa.technique import THRESHOLD, Elsa, farthest
from techniques.attention.shared.kept_pairs import Pairs
from techniques.attention.shared.mask_probes import Seen, in_evaluation, shown

OF_ITS_BASELINES = True  # whose attention takes whole queries, with a causal mask or none
P, BATCHES = 1.0, 2
WIDTH, DRAWS = 64, 4096  # of the paper's heads; pairs of Gaussian vectors


@judged(
    "misplaced",
    "Kept are the keys whose length times the cosine of the estimated angle exceeds t times the longest key's",
    "Section III",
    id="candidates",
    recipes=["classic"],
    note="beside numbers within a rounding of a boundary; of a query that none passes the best",
)
@judged(
    "integer_off",
    "The same keys pass one comparison of a Hamming distance with an integer for each key",
    "This entry's, from section III",
    id="integer_test",
    recipes=["classic"],
)
@judged(
    "thresholds_off",
    "A layer's t is the mean over training queries of the least normalised score among keys of softmax above p / n",
    "Section III (from memory)",
    id="threshold",
    at_most=1e-5,
    recipes=["classic"],
)
@judged(
    "not_orthogonal",
    "The projection is orthogonal",
    "Section III",
    id="orthogonal",
    at_most=1e-5,
    scope="kernel",
    recipes=["classic"],
)
@judged(
    "factors_off",
    "Applied factor by factor it is the product with the whole matrix",
    "Section III",
    id="by_factors",
    at_most=1e-5,
    scope="kernel",
    recipes=["classic"],
)
@judged(
    "bias_64",
    "The bias for 64 bits is 0.127",
    "A public reimplementation of its constants",
    id="bias",
    equals=0.127,
    tolerance=0.015,
    scope="kernel",
    recipes=["classic"],
)
@judged(
    "angle_off",
    "pi / k times the Hamming distance estimates the angle without bias",
    "Section III, by Goemans and Williamson (1995)",
    id="unbiased_angle",
    at_most=4.0,  # standard errors
    scope="kernel",
    recipes=["classic"],
)
@judged(
    "conservative",
    "Less the bias, 80 % of the estimates are no larger than the angle",
    "This entry's reading of 0.127",
    equals=0.8,
    tolerance=0.03,
    scope="kernel",
    recipes=["classic"],
)
@judged_as(shown, "Section III")
@judged(
    "training_roundings",
    "Training knows nothing of the masks: a step's gradients are the baseline's own",
    "Section III: no retraining",
    id="training_is_dense",
    at_most=1000.0,  # sums of up to a million terms, in roundings of a tensor's norm
    recipes=["classic"],
)
def probes(recording: Recording, own: Elsa) -> Mapping[str, float]:
    """Includes those of :func:`in_evaluation`. ``angle_off`` is a mean error in standard errors, of angles estimated
    from 64 signs. For a claim, ``multiplications`` is of the product by factors of 64 numbers, over 64^2."""
    seen, shown = in_evaluation(recording, own)
    thresholds = _thresholds(recording)
    return {
        **shown,
        "misplaced": sum(_misplaced(own, call) for call in seen),
        "integer_off": sum(_integer_off(own, call) for call in seen),
        "thresholds_off": max(
            abs(call.layer.get_buffer(THRESHOLD).item() - one) for call, one in zip(seen, thresholds, strict=True)
        ),
        **_of_the_hash(own),
    }


def _matrix(width: int) -> Tensor:
    return reduce(torch.kron, [factor.double() for factor in hashing.factors(width)])


def _distance(call: Seen) -> tuple[Tensor, Tensor, Tensor]:
    """Counts the differing bits, bit by bit; and which vectors have a projection so near 0 that a rounding decides."""
    matrix = _matrix(call.query.shape[-1])
    projected = [x.double() @ matrix.T for x in (call.query, call.key)]
    unsure = [(x.abs() < 1e-6 * x.norm(dim=-1, keepdim=True)).any(-1) for x in projected]
    query, key = (x >= 0 for x in projected)
    return (query[..., :, None, :] ^ key[..., None, :, :]).sum(-1), unsure[0], unsure[1]


def _misplaced(own: Elsa, call: Seen) -> int:
    distance, unsure_query, unsure_key = _distance(call)
    theta = (math.pi / call.query.shape[-1] * distance - own.bias_of(call.query.shape[-1])).clamp(min=0)
    lengths = call.key.double().norm(dim=-1)[..., None, :].expand(theta.shape)
    longest = lengths.masked_fill(~call.visible, 0.0).amax(-1, keepdim=True)
    estimate = lengths * theta.cos() / longest
    threshold = call.layer.get_buffer(THRESHOLD).double()
    expected = (estimate > threshold) & call.visible
    alone = ~expected.any(-1, keepdim=True)
    expected |= alone & (estimate.masked_fill(~call.visible, -math.inf) >= _best(call, estimate) - 1e-5)
    near = ((estimate - threshold).abs() < 1e-5) | unsure_query[..., :, None] | unsure_key[..., None, :]
    off = (expected != call.mask) & ~near
    ties = alone & call.mask.any(-1, keepdim=True)  # of equally good keys any one
    return int((off & ~ties).sum()) + int((alone & (call.mask & ~expected)).sum())


def _best(call: Seen, estimate: Tensor) -> Tensor:
    return estimate.masked_fill(~call.visible, -math.inf).amax(-1, keepdim=True)


def _integer_off(own: Elsa, call: Seen) -> int:
    distance, unsure_query, unsure_key = _distance(call)
    threshold = call.layer.get_buffer(THRESHOLD).item()
    pairs = Pairs(call.query, call.key, call.visible, None, call.scale)
    chosen = (distance <= farthest(pairs, threshold, own.bias_of(call.query.shape[-1]))) & call.visible
    theta = (math.pi / call.query.shape[-1] * distance - own.bias_of(call.query.shape[-1])).clamp(min=0)
    lengths = call.key.double().norm(dim=-1)[..., None, :].expand(theta.shape)
    estimate = lengths * theta.cos() / lengths.masked_fill(~call.visible, 0.0).amax(-1, keepdim=True)
    near = ((estimate - threshold).abs() < 1e-5) | unsure_query[..., :, None] | unsure_key[..., None, :]
    some = chosen.any(-1, keepdim=True)  # a row without a candidate keeps its best key besides
    return int(((chosen != call.mask) & ~near & some).sum())


def _thresholds(recording: Recording) -> list[float]:
    """Returns the mean over the queries of two training batches of the least relevant key's normalised score, for each
    layer."""
    run = recording.run
    least: list[list[Tensor]] = [[] for _ in run.anatomy.attending_blocks]
    number = [0]

    def attention(
        query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None, causal: bool, scale: float, dropout_p: float
    ) -> Tensor:
        products = query.double() @ key.double().transpose(-2, -1)
        sees = torch.ones(products.shape, dtype=torch.bool)
        sees = sees.tril() if causal else sees
        probability = (products * scale).masked_fill(~sees, -math.inf).softmax(-1)
        for b, h, i in torch.cartesian_prod(*map(torch.arange, products.shape[:3])).tolist():
            own = sees[b, h, i]
            unit = query[b, h, i].double().norm() * key[b, h, own].double().norm(dim=-1).max()
            relevant = probability[b, h, i, own] > P / own.sum()
            relevant[probability[b, h, i, own].argmax()] = True
            least[number[0] % len(least)].append((products[b, h, i, own] / unit)[relevant].min())
        number[0] += 1
        return (probability @ value.double()).to(query.dtype)

    run.model.eval()
    with torch.no_grad(), run.anatomy.attention(attention):
        for batch in range(BATCHES):
            size = run.recipe.batch_size
            examples, _ = run.data.batch(mixed_seed(run.seed, 2), batch * size, size)
            run.baseline.forward(run.model, examples)
    run.model.train()
    return [torch.stack(tensor).mean().item() for tensor in least]


def _of_the_hash(own: Elsa) -> dict[str, float]:
    matrix = _matrix(WIDTH)
    random = torch.Generator().manual_seed(1)
    one, other = (torch.randn(DRAWS, WIDTH, generator=random, dtype=torch.float64) for _ in range(2))
    angle = torch.arccos((one * other).sum(-1) / (one.norm(dim=-1) * other.norm(dim=-1)))
    by_factors = hashing.project(one, hashing.factors(WIDTH))
    off = math.pi / WIDTH * (hashing.signs(one) != hashing.signs(other)).sum(-1) - angle
    return {
        "not_orthogonal": (matrix @ matrix.T - torch.eye(WIDTH)).abs().max().item(),
        "factors_off": ((by_factors - one @ matrix.T).abs().max() / by_factors.abs().max()).item(),
        "multiplications": hashing.multiplications(WIDTH) / WIDTH**2,
        "bias_64": own.bias_of(WIDTH),
        "angle_off": abs((off.mean() / (off.std() / DRAWS**0.5)).item()),
        "conservative": (off <= own.bias_of(WIDTH)).double().mean().item(),
    }
