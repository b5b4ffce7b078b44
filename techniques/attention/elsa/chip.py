"""Models ELSA's pipeline: cycles of hashing, filtering and attending for the keys that are kept. Modelled.

    before     3 d^(4/3) / m_h cycles for each key's hash
    a query    the largest of 3 d^(4/3) / m_h (its hash), n / (P_a P_c) (distances), kept / P_a (a key a cycle in each
               of P_a banks, evenly) and d / m_o (the division)

The structure is from memory, and so are its constants: what follows is consistent with the paper or not, and no more.
"""

from __future__ import annotations

from techniques.attention.elsa.hashing import multiplications
from techniques.shared.chips.headlines import Modelled, between
from techniques.shared.chips.model import GUESSED, chips
from techniques.shared.chips.numbers import GPU, Number, against_gpu, drift, gpu_attention_s

TOKENS, WIDTH, HEADS = 512, 64, 12
BANKS, DISTANCES, HASHING, DIVISION = 4, 8, 256, 16  # P_a, P_c, m_h, m_o
ACCELERATORS = 12  # beside one V100


def cycles(tokens: int, keys: float) -> float:
    """Returns the cycles of one head, with ``keys`` kept for each query."""
    hash_cycles = multiplications(WIDTH) / HASHING
    query = max(hash_cycles, tokens / (BANKS * DISTANCES), keys / BANKS, WIDTH / DIVISION)
    return tokens * hash_cycles + tokens * query


def dense_cycles(tokens: int) -> float:
    """Returns the cycles without hashes: each query attends to all keys."""
    return tokens * tokens / BANKS


def modelled(seen: list[dict[str, float]]) -> list[Number]:
    """Returns the modelled numbers at a quarter of the keys, and at the density that trained models here were ``seen``
    to have."""
    chip, rows = chips()["elsa"], []
    shares = [(0.25, "a quarter of the keys"), *((call["density"], "a recorded mask's density") for call in seen[:1])]
    for share, name in shares:
        own, inputs = cycles(TOKENS, share * TOKENS), f"{TOKENS} tokens, {name} ({share:.3g}); structure from memory"
        rows.append(
            Number(
                "modelled",
                "time",
                f"all keys on the same pipeline ({chip.title})",
                dense_cycles(TOKENS) / own,
                "phases",
                inputs,
            )
        )
        seconds = own * HEADS / ACCELERATORS / chip.clock_hz
        rows += against_gpu(seconds, f"{ACCELERATORS} accelerators", TOKENS, WIDTH, HEADS, inputs)
    return [*rows, *drift(TOKENS)]


def over_gpu(seen: list[dict[str, float]]) -> Modelled:
    """Returns the speed over unfused attention on the modelled GPU, at a quarter of the keys and at what was ``seen``;
    with the clock, which is from memory, as it is, halved and doubled."""
    shares = [0.25, *(call["density"] for call in seen[:1])]
    gpu = gpu_attention_s(TOKENS, WIDTH, HEADS, fused=False) * chips()["elsa"].clock_hz * ACCELERATORS / HEADS
    ends = [gpu * times / cycles(TOKENS, share * TOKENS) for share in shares for times in GUESSED]
    inputs = f"{TOKENS} tokens, {' and '.join(f'{share:.3g}' for share in shares)} of the keys"
    return between(ends, f"{ACCELERATORS} accelerators over unfused attention on {GPU}, modelled; {inputs}")
