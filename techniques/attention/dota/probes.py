"""Tells what a recorded step shows of DOTA: that masks are of the detectors' largest scores, as many for every query,
and that the detectors learn from the error of their scores and from nothing else."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from suite.reading.judged import judged, judged_as
from suite.reading.recording import Recording
from techniques.attention.dota.loads import in_order, out_of_order
from techniques.attention.dota.technique import KEY, PROJECTION, QUERY, Dota, detector_cost, ternary
from techniques.attention.shared.mask_probes import Seen, of_masks, shown
from techniques.shared.plain import apart

OF_ITS_BASELINES = True  # whose attention takes whole queries, with a causal mask or none
BITS, RETENTION, WEIGHT = 4, 0.25, 1.0
TOKENS, WIDTH, HEADS, RANK = 1024, 768, 12, 16  # BERT-base's at 1024 tokens, sigma 0.25
VECTORS, COLUMNS = 96, 4096  # for the mean over projections


@judged(
    "misplaced",
    "Kept are the pairs with the largest detected scores of each row, in 4 bits",
    "Section 3",
    id="largest_detected",
    recipes=["classic"],
    note="beside numbers within a rounding of a boundary",
)
@judged(
    "unbalanced",
    "Every query keeps as many keys",
    "Section 3, workload balance",
    id="row_balanced",
    recipes=["classic"],
    note="r is retention times the keys, rounded; a causal query with fewer keys keeps all",
)
@judged(
    "detector_roundings",
    "The detectors' gradients are those of the mean squared error of their scores, through rounding as the identity",
    "Section 3, joint optimisation",
    id="detectors_learn_the_scores",
    at_most=1000.0,  # sums of up to a million terms, in roundings of a tensor's norm
    recipes=["classic"],
)
@judged(
    "clipped_roundings",
    "The model's gradient is clipped by its own norm, whatever the detectors' is",
    "This entry's: the detectors train beside the model",
    id="clipped_apart",
    at_most=64.0,  # a norm of up to a million numbers, in roundings of a tensor's
    recipes=["classic"],
)
@judged(
    "not_ternary",
    "The projection has three values, -sqrt(3 / k), 0 and sqrt(3 / k)",
    "Section 3, after Achlioptas (2003)",
    id="ternary",
    scope="kernel",
    recipes=["classic"],
)
@judged(
    "product_off",
    "Products of projected vectors are those of the vectors on average",
    "Section 3, after Achlioptas (2003)",
    id="products_are_kept",
    at_most=4.0,  # standard errors
    scope="kernel",
    recipes=["classic"],
)
@judged(
    "rank_off",
    "A detector's rank is a quarter of a head's width",
    "This entry's, after sigma = 0.25 (from memory)",
    id="rank",
    at_most=0.5,
    recipes=["classic"],
)
@judged(
    "detector_cost",
    "A detector of 4 bits costs 5 % of 16-bit dense attention or less, by bits times bits, from 1024 tokens on",
    "This entry's count after section 3",
    id="cheap_detector",
    at_most=0.05,
    kind="counted",
    scope="kernel",
    recipes=["classic"],
    note="BERT-base's sizes, sigma 0.25; the ternary projection adds only",
)
@judged_as(shown, "Section 3")
@judged(
    "gradient_roundings",
    "A step's gradients are those of attention through the masks as constants",
    "Section 3: weak connections are omitted in both passes",
    id="mask_is_constant",
    at_most=1000.0,  # sums of up to a million terms, in roundings of a tensor's norm
    recipes=["classic"],
)
def probes(recording: Recording, own: Dota) -> Mapping[str, float]:
    """Includes those of :func:`of_masks`. ``product_off`` is a mean error in standard errors; ``unbalanced`` counts
    queries. For a claim, ``loads_over`` is the largest ratio of loads out of order to those in order."""
    trace = recording.trace
    seen, shown = of_masks(recording, own)
    own.errors.clear()
    paths = [block.attention.path for block in recording.run.anatomy.attending_blocks]
    expected = _gradients(trace.before.parameters, paths, seen)
    projections = [call.layer.get_buffer(PROJECTION) for call in seen]
    heads = [mask for call in seen for mask in call.mask[0]]
    return {
        **shown,
        "misplaced": sum(
            _misplaced(trace.before.parameters, path, call) for path, call in zip(paths, seen, strict=True)
        ),
        "unbalanced": sum(_unbalanced(call) for call in seen),
        "detector_roundings": apart(trace.of("backward")[0].gradients, expected),
        "clipped_roundings": apart(trace.updates[0].before.gradients, _clipped(recording)),
        "not_ternary": sum(_not_ternary(projection) for projection in projections),
        "product_off": _product_off(),
        "detector_cost": detector_cost(TOKENS, WIDTH, HEADS, RANK, own.bits),
        "loads_over": max(out_of_order(mask) / in_order(mask) for mask in heads),
        "rank_off": max(abs(p.shape[1] - call.query.shape[-1] / 4) for p, call in zip(projections, seen, strict=True)),
    }


def _sides(values: Mapping[str, Tensor], path: str, call: Seen) -> list[Tensor]:
    """Computes X P W of queries and of keys in 4 bits, float64. What is rounded are float32 numbers, as in the step:
    near the middle of two levels others might go the other way, which the gradients of all would show."""
    narrow = (call.came.float() @ call.layer.get_buffer(PROJECTION).float())[:, None]
    return [_rounded(narrow @ values[f"{path}.{name}"].float()) for name in (QUERY, KEY)]


def _rounded(side: Tensor) -> Tensor:
    step = side.abs().max() / (2 ** (BITS - 1) - 1)
    return (side / step).round().double() * step.double()


def _misplaced(values: Mapping[str, Tensor], path: str, call: Seen) -> int:
    query, key = _sides(values, path, call)
    scores = query @ key.transpose(-2, -1)
    margin = 1e-5 * scores.abs().max()
    left = scores.masked_fill(call.mask | ~call.visible, -math.inf).amax(-1, keepdim=True)
    return int((call.mask & (scores < left - margin)).sum())


def _unbalanced(call: Seen) -> int:
    count = round(RETENTION * call.key.shape[-2])
    return int((call.mask.sum(-1) != call.visible.sum(-1).clamp(max=count)).sum())


def _gradients(values: Mapping[str, Tensor], paths: list[str], seen: list[Seen]) -> dict[str, Tensor]:
    """Computes the detectors' gradients by hand: rounding counts as the identity, and the model's own scores as
    constants."""
    expected = {}
    for path, call in zip(paths, seen, strict=True):
        query, key = _sides(values, path, call)
        error = (query @ key.transpose(-2, -1) - call.scores).masked_fill(~call.visible, 0.0)
        of_scores = 2 * WEIGHT * error / call.visible.sum() / len(seen)
        narrow = (call.came.double() @ call.layer.get_buffer(PROJECTION).double())[:, None].transpose(-2, -1)
        expected[f"{path}.{QUERY}"] = (narrow @ (of_scores @ key)).sum(0)
        expected[f"{path}.{KEY}"] = (narrow @ (of_scores.transpose(-2, -1) @ query)).sum(0)
    return expected


def _clipped(recording: Recording) -> dict[str, Tensor]:
    """Returns what the optimizer gets: a detector is no part of the model, whose gradient it would shrink."""
    limit = recording.run.recipe.gradient_clip
    clipped: dict[str, Tensor] = {}
    gradients = {name: each.double() for name, each in recording.trace.of("backward")[0].gradients.items()}
    for detectors in (False, True):
        own = {name: each for name, each in gradients.items() if name.endswith((QUERY, KEY)) == detectors}
        norm = sum((each.square().sum().item() for each in own.values()), 0.0) ** 0.5
        factor = min(1.0, limit / (norm + 1e-6)) if limit else 1.0
        clipped |= {name: factor * each for name, each in own.items()}
    return clipped


def _not_ternary(projection: Tensor) -> int:
    size = math.sqrt(3 / projection.shape[1])
    return int((((projection.abs() - size).abs() > 1e-6) & (projection != 0)).sum())


def _product_off() -> float:
    random = torch.Generator().manual_seed(0)
    one, other = (torch.randn(VECTORS, generator=random, dtype=torch.float64) for _ in range(2))
    other = one + other / 10  # whose product is large beside its error
    projection = ternary(VECTORS, COLUMNS, random).double()
    terms = (one @ projection) * (other @ projection) * COLUMNS
    return abs((terms.mean() - one @ other).item()) / (terms.std().item() / COLUMNS**0.5)
