"""What an evaluation of A3 shows: that candidates are those of the largest and smallest products, one by one, that what
is left out of them weighs little, and that training knows nothing of it."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from suite.reading.recording import Recording
from techniques.attention.a3.heap import search
from techniques.attention.a3.technique import A3
from techniques.attention.shared.mask_probes import Seen, in_evaluation

OF_ITS_BASELINES = True  # whose attention takes whole queries, with a causal mask or none
SHARE, THRESHOLD = 0.5, 0.05  # conservative
ROWS = 6  # of each attention, the last ones, that are examined


def probes(recording: Recording, own: A3) -> Mapping[str, float]:
    """Those of :func:`in_evaluation`; ``misplaced``: pairs whose place in the mask is not that of a search by one
    sorted list of all products; ``heap_off``: the largest error of the heap's greedy scores beside that list's, of the
    largest; ``products_over``: multiplications of a heap over 2 (M + d); ``exact_off``: error of the greedy scores from
    all products as scores; ``heaviest_left``: of what post-scoring leaves out, the largest weight over the best's."""
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
    """Query, its visible keys, their scores and whether they are kept, of the first head; and the scale."""
    rows = []
    for i in range(call.query.shape[2])[-ROWS:]:
        sees = call.visible[0, 0, i]
        scores = call.scores[0, 0, i, sees]
        rows.append((call.query[0, 0, i], call.key[0, 0, sees], scores, call.mask[0, 0, i, sees], call.scale))
    return rows


def _greedy(query: Tensor, key: Tensor, pops: int) -> Tensor:
    """By one sorted list of all products in float32, as the technique multiplies; sums in float64."""
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
    """Among the candidates that the technique names, which :func:`_misplaced` checks."""
    from techniques.attention.shared.kept_pairs import Pairs

    among = own.among(Pairs(call.query, call.key, call.visible, None, call.scale))
    left = call.scores.masked_fill(~(among & ~call.mask), -math.inf).amax(-1)
    best = call.scores.masked_fill(~call.mask, -math.inf).amax(-1)
    return torch.exp(left - best).max().item()


def _apart(ours: Tensor, expected: Tensor) -> float:
    return ((ours - expected).abs().max() / expected.abs().max().clamp(min=1e-30)).item()
