"""Tells what an evaluation of A3 shows: that candidates are those of the largest and smallest products, one by one,
that what is left out of them weighs little, and that training knows nothing of it."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from suite.reading.judged import judged, judged_as
from suite.reading.recording import Recording
from techniques.attention.a3.heap import search
from techniques.attention.a3.technique import A3
from techniques.attention.shared.mask_probes import Seen, in_evaluation, shown

OF_ITS_BASELINES = True  # whose attention takes whole queries, with a causal mask or none
SHARE, THRESHOLD = 0.5, 0.05  # conservative
ROWS = 6  # of each attention, the last ones, that are examined


@judged(
    "misplaced",
    "Candidates are the keys with a positive sum of those products among the M largest (above 0) and the M smallest "
    "(below 0); kept are those with 5 % or more of the best candidate's weight",
    "Section IV",
    id="candidates",
    recipes=["classic"],
    note="beside sums and scores within a rounding of the boundary",
)
@judged(
    "heap_off",
    "Sorted columns with two pointers find the same sums",
    "Section IV, greedy candidate search",
    id="heap",
    at_most=1e-6,
    scope="kernel",
    recipes=["classic"],
)
@judged(
    "exact_off",
    "With all n d products taken, the greedy score is the score",
    "Section IV",
    id="all_products",
    at_most=1e-5,  # sums of tens of terms in another order
    scope="kernel",
    recipes=["classic"],
)
@judged(
    "heaviest_left",
    "What post-scoring leaves out of the candidates has less than 5 % of the weight of the best",
    "Section IV, post-scoring",
    id="post_scoring",
    at_most=0.0500001,
    recipes=["classic"],
)
@judged_as(shown, "Section IV")
@judged(
    "training_roundings",
    "Training knows nothing of the masks: a step's gradients are the baseline's own",
    "Section IV: no retraining",
    id="training_is_dense",
    at_most=1000.0,  # sums of up to a million terms, in roundings of a tensor's norm
    recipes=["classic"],
)
def probes(recording: Recording, own: A3) -> Mapping[str, float]:
    """Includes those of :func:`in_evaluation`. What should be kept is found by one sorted list of all products. For a
    claim, ``products_over`` is the multiplications of a heap over 2 (M + d)."""
    seen, shown = in_evaluation(recording, own)
    rows = [row for call in seen for row in _rows(call)]
    off, exact, over = 0.0, 0.0, 0.0
    for query, key, _, _, _ in rows[::7]:
        pops = math.ceil(SHARE * len(key))
        greedy = _greedy(query, key, pops)
        some, every = search(query, key, pops), search(query, key, key.numel())
        off = max(off, _apart(torch.tensor(some.greedy, dtype=torch.float64), greedy))
        exact = max(exact, _apart(torch.tensor(every.greedy, dtype=torch.float64), key.double() @ query.double()))
        over = max(over, some.products / (2 * (pops + len(query))))
    return {
        **shown,
        "misplaced": sum(_misplaced(*row) for row in rows),
        "heap_off": off,
        "exact_off": exact,
        "products_over": over,
        "heaviest_left": max(_heaviest_left(own, call) for call in seen),
    }


Row = tuple[Tensor, Tensor, Tensor, Tensor, float]


def _rows(call: Seen) -> list[Row]:
    """Returns the query, its visible keys, their scores and whether they are kept, of the first head; and the scale."""
    rows = []
    for i in range(call.query.shape[2])[-ROWS:]:
        sees = call.visible[0, 0, i]
        scores = call.scores[0, 0, i, sees]
        rows.append((call.query[0, 0, i], call.key[0, 0, sees], scores, call.mask[0, 0, i, sees], call.scale))
    return rows


def _greedy(query: Tensor, key: Tensor, pops: int) -> Tensor:
    """Computes greedy scores by one sorted list of all products in float32, as the technique multiplies; sums in
    float64."""
    products = query * key
    flat, places = products.flatten().sort(descending=True)
    greedy = torch.zeros(len(key), dtype=torch.float64)
    for positions, wanted in ((range(pops), 1), (range(len(flat) - pops, len(flat)), -1)):
        for position in positions:
            if flat[position].item() * wanted > 0:
                greedy[int(places[position]) // len(query)] += flat[position].double()
    return greedy


def _misplaced(query: Tensor, key: Tensor, scores: Tensor, mask: Tensor, scale: float) -> int:
    greedy = _greedy(query, key, math.ceil(SHARE * len(key)))
    among = greedy > 0
    if not among.any():
        among[greedy.argmax()] = True
    bound = scores[among].max() + math.log(THRESHOLD)
    near = (greedy.abs() < 1e-6) | ((scores - bound).abs() < 1e-4)
    return int((((scores >= bound) & among) != mask)[~near].sum())


def _heaviest_left(own: A3, call: Seen) -> float:
    """Returns the heaviest weight left out among the candidates that the technique names, which :func:`_misplaced`
    checks."""
    from techniques.attention.shared.kept_pairs import Pairs

    among = own.among(Pairs(call.query, call.key, call.visible, None, call.scale))
    left = call.scores.masked_fill(~(among & ~call.mask), -math.inf).amax(-1)
    best = call.scores.masked_fill(~call.mask, -math.inf).amax(-1)
    return torch.exp(left - best).max().item()


def _apart(ours: Tensor, expected: Tensor) -> float:
    return ((ours - expected).abs().max() / expected.abs().max().clamp(min=1e-30)).item()
