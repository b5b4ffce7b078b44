"""Models DOTA's lanes on a mask: the detector, scores and values as phases of the accelerator model. Modelled.

How many lanes of how many elements there are, their clock and their memory are from memory, and which GPU 152.6 is
against is not known: so there is an interval, and no more than consistent or not. Keys and values are loaded as often
as ``loads.py`` counts for a mask, and dense ones once for each group of queries: nothing keeps them between groups. The
ternary projection only adds, and is left out.
"""

from __future__ import annotations

from techniques.attention.dota.loads import TOGETHER
from techniques.shared.chips.headlines import Modelled, between
from techniques.shared.chips.model import Phase, chips, interval, time_s
from techniques.shared.chips.numbers import GPU, Number, against_gpu, against_itself, drift, gpu_attention_s

TOKENS, WIDTH, HEADS, RANK, BITS = 2048, 64, 12, 16, 4
LANES = (1, 4, 16)


def phases(tokens: int, retention: float, loads: float) -> list[Phase]:
    """Returns the phases of HEADS heads; ``loads`` are those of keys over kept pairs. Numbers in memory have 16
    bits."""
    macs, rows = tokens**2 * WIDTH * HEADS, 2 * tokens * WIDTH * HEADS
    detector = HEADS * (2 * tokens * RANK**2 + tokens**2 * RANK)
    loaded = retention * tokens * loads * rows  # a kept pair's key, and later its value, unless it is shared
    products = Phase(retention * macs, 16, rows + loaded)
    return [Phase(detector, BITS, 2 * tokens * RANK * HEADS * BITS / 8), products, products]


def dense(tokens: int) -> list[Phase]:
    return phases(tokens, 1.0, 1 / TOGETHER)[1:]


def at_a_tenth(seen: list[dict[str, float]]) -> tuple[list[Phase], str]:
    """Returns the phases at a tenth of the keys, loaded once for each query or as the masks that were ``seen`` share
    them."""
    shared = seen[0]["loads"] if seen else 1.0
    whence = "a recorded mask's" if seen else "unshared"
    return phases(TOKENS, 0.1, shared), f"{TOKENS} tokens, a tenth of the keys, {whence} loads {shared:.3g}"


def modelled(seen: list[dict[str, float]]) -> list[Number]:
    chip, (own, inputs) = chips()["dota"], at_a_tenth(seen)
    rows = against_itself(chip, own, dense(TOKENS), inputs)
    for lanes in LANES:
        for case, seconds in zip(("at most", "at least"), interval(own, chip)):
            what = f"{lanes} lanes, {case}, all that is from memory halved or doubled"
            rows += against_gpu(seconds / lanes, what, TOKENS, WIDTH, HEADS, inputs)
    return [*rows, *drift(TOKENS)]


def over_gpu(seen: list[dict[str, float]]) -> Modelled:
    """Returns the speed over unfused attention on the modelled GPU, from one lane at its slowest to the most lanes at
    their fastest."""
    chip, (own, inputs) = chips()["dota"], at_a_tenth(seen)
    least, most = interval(own, chip)
    gpu = gpu_attention_s(TOKENS, WIDTH, HEADS, fused=False)
    ends = [gpu / most * LANES[0], gpu / time_s(own, chip) * LANES[1], gpu / least * LANES[-1]]
    return between(ends, f"{LANES[0]} to {LANES[-1]} lanes over unfused attention on {GPU}, modelled; {inputs}")
