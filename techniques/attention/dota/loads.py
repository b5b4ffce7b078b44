"""Counts the keys that an accelerator loads for a mask where it works on several queries at once.

DOTA's token-parallel dataflow (section 4): in each round every query of a group takes one of its keys, and a key that
several take in the same round is loaded once. Out of order, a round begins with the key that most of its queries need.
"""

from __future__ import annotations

from collections import Counter

from torch import Tensor

TOGETHER = 4


def groups(mask: Tensor, together: int) -> list[list[list[int]]]:
    """Returns the keys of each query of the mask [queries, keys], in groups of ``together`` queries."""
    if together < 1:
        raise ValueError(f"1 query or more is worked on at once, not {together}")
    rows = [row.nonzero()[:, 0].tolist() for row in mask]
    return [rows[i : i + together] for i in range(0, len(rows), together)]


def in_order(mask: Tensor, together: int = TOGETHER) -> int:
    """Loads where each query takes its keys from the first to the last."""
    loads = 0
    for group in groups(mask, together):
        for turn in range(max(map(len, group))):
            loads += len({keys[turn] for keys in group if turn < len(keys)})
    return loads


def out_of_order(mask: Tensor, together: int = TOGETHER) -> int:
    """Loads where every round serves first what most of its queries share."""
    loads = 0
    for group in groups(mask, together):
        left = [set(keys) for keys in group]
        while any(left):
            waiting = [keys for keys in left if keys]
            while waiting:
                needs = Counter(key for keys in waiting for key in keys)
                key = max(needs, key=lambda need: (needs[need], -need))
                served = [keys for keys in waiting if key in keys]
                waiting = [keys for keys in waiting if key not in keys]
                for keys in served:
                    keys.remove(key)
                loads += 1
    return loads
