"""From which density on is a sparse product more work than a dense one? Matrices alone; no baseline takes part.

``operations``: squares of uniform random matrices: multiplications of the sparse product and of the dense one, the
compression factor (multiplications over entries of the result), and bytes of three orders without a cache.
``seconds``: the machine's own times of a sparse matrix times a sparse one, times a dense one, and of the dense product,
medians of a few. ``crossover``: the smallest density of the grid at which a sparse product takes longer than the dense.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median

import torch
from torch import Tensor

from suite.measure.lab import Lab, StudyTable
from techniques.sparse_matmul.shared.dataflows import in_rows, multiplications

SIZES = (128, 256, 512)
DENSITIES = (0.01, 0.03, 0.1, 0.2, 0.3, 0.5)
REPEATS = 7
ELEMENT_BYTES = 8  # an index of 32 bits and a value of 32


def study(lab: Lab) -> list[StudyTable]:
    """The tables ``operations``, ``seconds`` and ``crossover``; nothing is recorded."""
    lab.progress(0.0, "multiplying sparse matrices")
    drawn = {(size, density): uniform(size, density) for size in SIZES for density in DENSITIES}
    rows = [(size, density, *seconds_of(matrix)) for (size, density), matrix in drawn.items()]
    return [operations(drawn), StudyTable("seconds", SECONDS, rows, NOTE), crossover(rows)]


SECONDS = ("size", "density", "sparse_sparse_s", "sparse_dense_s", "dense_s")
NOTE = "Medians on the machine where the study ran, one thread or as many as it was given; float32"


def uniform(size: int, density: float) -> Tensor:
    """A dense float32 tensor [size, size] with about this share of entries, the same for every call."""
    random = torch.Generator().manual_seed(size)
    matrix = torch.randn(size, size, generator=random)
    return matrix * (torch.rand(size, size, generator=random) < density)


def operations(drawn: dict[tuple[int, float], Tensor]) -> StudyTable:
    """What each product takes, counted."""
    rows = []
    for (size, density), matrix in drawn.items():
        made, entries = multiplications(matrix, matrix), int((matrix != 0).sum())
        result = int(((matrix != 0).float() @ (matrix != 0).float() > 0).sum())
        gustavson = ELEMENT_BYTES * (entries + made + result)
        outer = ELEMENT_BYTES * (2 * entries + 2 * made + result)
        dense = 4 * 3 * size**2
        rows.append((size, density, made, size**3, made / max(1, result), gustavson, outer, dense))
    columns = ("size", "density", "multiplications", "dense_multiplications", "compression", "gustavson_bytes",
               "outer_bytes", "dense_bytes")  # fmt: skip
    note = "Bytes without a cache: rows of B are read for each entry of A, products are written and read once"
    return StudyTable("operations", columns, rows, note)


def seconds_of(matrix: Tensor) -> tuple[float, float, float]:
    """Sparse times sparse, sparse times dense, dense times dense."""
    sparse = in_rows(matrix)
    products: tuple[Callable[[], Tensor], ...] = (
        lambda: sparse @ sparse, lambda: sparse @ matrix, lambda: matrix @ matrix,
    )  # fmt: skip
    return timed(products[0]), timed(products[1]), timed(products[2])


def timed(product: Callable[[], Tensor]) -> float:
    """Median seconds, after one that is left out."""
    taken = []
    for _ in range(REPEATS + 1):
        start = time.perf_counter()
        product()
        taken.append(time.perf_counter() - start)
    return median(taken[1:])


def crossover(rows: Sequence[tuple[float, ...]]) -> StudyTable:
    """The smallest density of the grid at which a sparse product takes longer; None where none does."""
    found = []
    for size in SIZES:
        own = [row for row in rows if row[0] == size]
        slower = [[row[1] for row in own if row[column] > row[4]] for column in (2, 3)]
        found.append((size, *(min(each, default=None) for each in slower)))
    return StudyTable("crossover", ("size", "sparse_sparse_from", "sparse_dense_from"), found, NOTE)
