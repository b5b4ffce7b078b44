"""Counts the cycles of the accelerator's core attention by the authors' released simulator. Modelled, and nothing
measured.

One head's mask stands for all heads of a layer, as there. 64 lines of elements take the dense columns and the sparse
rest in proportion; a line multiplies 64 / heads numbers of each head at once. The simulator's attention takes 64 x 64
multiplications a cycle, and its other half, for linear layers, 64 x 8: with 8, all of this is 8 times longer.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil

LINES, WIDTH = 64, 64


def compute_cycles(columns: int, rest: int, tokens: int = 197, heads: int = 3, width: int = 64) -> int:
    """Counts the cycles of scores and of values for one layer with ``columns`` dense ones and ``rest`` kept pairs
    outside of them.

    Raises ValueError where one of the two parts gets no line.
    """
    dense = columns * tokens
    dense_lines = int(LINES * dense / (rest + dense)) if rest + dense else 0
    sparse_lines = LINES - dense_lines
    if not dense_lines or not sparse_lines:
        raise ValueError(f"{columns} dense columns and {rest} other pairs leave a part without a line: it has no model")
    rounds = ceil(width / (WIDTH / heads))
    scores = max(columns * ceil(tokens / dense_lines) * rounds, ceil(rest / sparse_lines) * rounds)
    values = max(
        ceil(tokens * width * columns / int(dense_lines * WIDTH / heads)),
        ceil(rest * width / int(sparse_lines * WIDTH / heads)),
    )
    return scores + values


def decode_cycles(tokens: int = 197, heads: int = 3, width: int = 64, kept_share: float = 2 / 3) -> int:
    """Counts the cycles of the auto-encoder's decoder for queries and keys of one layer, of which ``kept_share`` is
    loaded."""
    return 2 * tokens * ceil(heads * kept_share * width / int(LINES * WIDTH / heads))


def total_cycles(layers: Iterable[tuple[int, int]]) -> int:
    """Counts the cycles of decoding and computing all layers, each with its dense columns and the pairs besides."""
    return sum(compute_cycles(columns, rest) + decode_cycles() for columns, rest in layers)
