"""Models A3's pipeline: a query starts when the longest of its three stages has ended. Modelled.

    with all keys    n cycles: scores, softmax and values take a key a cycle
    approximated     max(M, C, kept): pops of the greedy search, scores of the candidates, values of those that stay

Latencies of the stages are left out, and what sorts the columns of the keys, once for a sequence, too. The paper's 2.6
to 7.0 times lie within what M = n / 2 and n / 8 allow at most, 2 and 8 times.
"""

from __future__ import annotations

from techniques.shared.chips.headlines import Modelled, between
from techniques.shared.chips.model import chips
from techniques.shared.chips.numbers import Number

TOKENS = 320  # of the paper's chip


def cycles(pops: float, candidates: float, kept_keys: float) -> float:
    """Returns the cycles between two queries."""
    return max(pops, candidates, kept_keys, 1.0)


def modelled(seen: list[dict[str, float]]) -> list[Number]:
    """Returns the bounds of both settings, and the shares of candidates and kept keys of trained models that were
    ``seen``."""
    against = f"all keys on the same pipeline ({chips()['a3'].title})"
    rows = [
        Number(
            "modelled",
            f"throughput, {name}, at most",
            against,
            TOKENS / cycles(share * TOKENS, 0, 0),
            "closed form",
            f"M = {share:g} n",
        )
        for name, share in (("conservative", 0.5), ("aggressive", 0.125))
    ]
    for call in seen[:1]:
        candidates, density = call["candidates"], call["density"]
        own = cycles(0.5 * TOKENS, candidates * TOKENS, density * TOKENS)
        inputs = f"a recorded model's candidates {candidates:.3g} and kept {density:.3g} of the keys, M = 0.5 n"
        rows.append(Number("modelled", "throughput, conservative", against, TOKENS / own, "phases", inputs))
    return rows


def over_itself(seen: list[dict[str, float]]) -> Modelled:
    """Returns the throughput over all keys on the same pipeline, of both settings at most, and at what was ``seen``."""
    return between(
        [speed.speedup or 0.0 for speed in modelled(seen)], "the same pipeline with all keys; M = n / 2 to n / 8"
    )
