"""From which density on is a sparse product more work than a dense one? Matrices alone; no baseline takes part.

``operations``: squares of uniform random matrices: multiplications of the sparse product and of the dense one, the
compression factor (multiplications over entries of the result), and bytes of three orders without a cache.
``seconds``: the machine's own times of sparse times sparse by MKL (torch's CSR), by scipy and by outer products
(expanded, sorted and compressed), of sparse times dense, and of the dense product, which take turns; medians.
``crossover``: the density at which each takes as long as the dense product.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

import torch
from scipy.sparse import csr_array
from torch import Tensor

from suite.measure.exact import one_thread
from suite.topics.studies.lab import Cell, Lab, StudyTable
from techniques.sparse_matmul.shared.dataflows import expanded, in_rows, multiplications

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIZES = (128, 256, 512)
DENSITIES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.2, 0.3, 0.5)
REPEATS = 7
MOST_PRODUCTS = 2**21
ELEMENT_BYTES = 8  # an index of 32 bits and a value of 32


def study(lab: Lab) -> list[StudyTable]:
    """Makes the tables ``operations``, ``seconds`` and ``crossover``; nothing is recorded."""
    lab.progress(0.0, "multiplying sparse matrices")
    drawn = {(size, density): uniform(size, density) for size in SIZES for density in DENSITIES}
    with one_thread():
        rows = [(size, density, *seconds_of(matrix)) for (size, density), matrix in drawn.items()]
    return [
        operations(drawn),
        StudyTable("seconds", ("size", "density", *(f"{way}_s" for way in WAYS)), rows, NOTE),
        crossover(rows),
    ]


WAYS = ("mkl", "scipy", "outer_products", "sparse_dense", "dense")
NOTE = (
    "Measured where the study ran, in one thread, float32, turn by turn; mkl, scipy and outer_products are sparse "
    "times sparse: torch's CSR product is MKL's where torch has it; of more than two million outer "
    "products none are timed"
)


def uniform(size: int, density: float) -> Tensor:
    """Draws a dense float32 tensor [size, size] with about this share of entries, the same for every call."""
    random = torch.Generator().manual_seed(size)
    matrix = torch.randn(size, size, generator=random)
    return matrix * (torch.rand(size, size, generator=random) < density)


def operations(drawn: dict[tuple[int, float], Tensor]) -> StudyTable:
    """Counts what each product takes."""
    rows = []
    for (size, density), matrix in drawn.items():
        products, entries = multiplications(matrix, matrix), int((matrix != 0).sum())
        result = int(((matrix != 0).float() @ (matrix != 0).float() > 0).sum())
        gustavson = ELEMENT_BYTES * (entries + products + result)
        outer = ELEMENT_BYTES * (2 * entries + 2 * products + result)
        dense = 4 * 3 * size**2
        rows.append((size, density, products, size**3, products / max(1, result), gustavson, outer, dense))
    columns = (
        "size",
        "density",
        "multiplications",
        "dense_multiplications",
        "compression",
        "gustavson_bytes",
        "outer_bytes",
        "dense_bytes",
    )
    note = "Bytes without a cache: rows of B are read for each entry of A, products are written and read once"
    return StudyTable("operations", columns, rows, note)


def seconds_of(matrix: Tensor) -> tuple[float | None, ...]:
    """Returns medians of each of WAYS, turn by turn, after one that is left out; None of outer products that are too
    many."""
    sparse, theirs = in_rows(matrix), csr_array(matrix.numpy())
    few = multiplications(matrix, matrix) <= MOST_PRODUCTS
    ways: tuple[Callable[[], object], ...] = (
        lambda: sparse @ sparse,
        lambda: theirs @ theirs,
        lambda: expanded(sparse, sparse),
        lambda: sparse @ matrix,
        lambda: matrix @ matrix,
    )
    timed = [way for name, way in zip(WAYS, ways, strict=True) if few or name != "outer_products"]
    turns = [[seconds(way) for way in timed] for _ in range(REPEATS + 1)][1:]
    medians = [median(column) for column in zip(*turns, strict=True)]
    return tuple(medians if few else [*medians[:2], None, *medians[2:]])


def seconds(product: Callable[[], object]) -> float:
    start = time.perf_counter()
    product()
    return time.perf_counter() - start


def crossover(rows: Sequence[tuple[Cell, ...]]) -> StudyTable:
    """Finds, of each size and way, the density, on straight lines of logarithms between those that were tried; None
    where it is faster than the dense product at all of them, or at none."""
    crossings = []
    for size in dict.fromkeys(row[0] for row in rows):
        own = sorted((row[1:] for row in rows if row[0] == size), key=lambda row: row[0])
        crossings.append((size, *(at_even(ratios_of(own, way)) for way in range(1, len(WAYS)))))
    return StudyTable("crossover", ("size", *WAYS[:-1]), crossings, NOTE)


def ratios_of(own: Sequence[tuple[Cell, ...]], way: int) -> list[tuple[float, float]]:
    """Returns (density, time over the dense product's) of rows without their size, where both were timed."""
    return [(row[0], row[way] / row[-1]) for row in own if row[way] is not None]


def at_even(ratios: Sequence[tuple[float, float]]) -> float | None:
    """Finds the first density at which the ratio of times reaches 1, of (density, ratio) in rising order."""
    for (low, fast), (high, slow) in pairwise(ratios):
        if fast < 1 <= slow:
            share = math.log(1 / fast) / math.log(slow / fast)
            return math.exp(math.log(low) + share * (math.log(high) - math.log(low)))
    return None


def plot(tables: Sequence[StudyTable]) -> Figure:
    """Draws time over the dense product's against density, a panel for each size; circles are where they cross."""
    from matplotlib.figure import Figure

    (table,) = (table for table in tables if table.name == "seconds")
    sizes = [*dict.fromkeys(row[0] for row in table.rows)]
    figure = Figure(figsize=(3.2 * len(sizes), 3.6), layout="constrained")
    for axes, size in zip(figure.subplots(1, len(sizes), sharey=True, squeeze=False)[0], sizes):
        own = sorted((row[1:] for row in table.rows if row[0] == size), key=lambda row: row[0])
        for way, name in enumerate(WAYS[:-1], 1):
            ratios = ratios_of(own, way)
            axes.plot(*zip(*ratios, strict=True), marker=".", color=f"C{way}", label=name)
            even = at_even(ratios)
            if even is not None:
                axes.plot([even], [1], "o", color=f"C{way}", fillstyle="none", markersize=9)
        axes.axhline(1, color="0.7", linewidth=0.8)
        axes.set(xscale="log", yscale="log", xlabel="density", title=f"{size} x {size}")
    figure.axes[0].set_ylabel("time over the dense product's")
    figure.axes[0].legend(fontsize=8, frameon=False)
    return figure
