"""Computes the same sums in three orders: C = A B of sparse matrices (SpGEMM) by inner, by Gustavson's and by outer
products.

    inner       C_ij = sum over k that are in row i of A and in column j of B       indices are compared
    Gustavson   row i of C = sum over k in row i of A of A_ik times row k of B      rows of B are read again and again
    outer       C = sum over k of column k of A times row k of B                    products are kept, and merged later

Sparse times sparse; a sparse matrix times a dense one is SpMM, and chosen entries of a dense product are SDDMM. Plain
Python, with every multiplication, comparison and access counted.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

Rows = list[dict[int, float]]
"""A matrix by its rows: the entries that are not 0, by column in rising order."""


@dataclass
class Counts:
    """Counts what a product took: ``multiplications``; ``comparisons`` of two indices; entries of the operands that
    were ``read``; products that were ``stored`` until they were merged."""

    multiplications: int = 0
    comparisons: int = 0
    read: int = 0
    stored: int = 0


class Result(NamedTuple):
    """Holds C by its rows, and what it took."""

    rows: Rows
    counts: Counts


def rows_of(matrix: Tensor) -> Rows:
    """Returns the rows of a dense ``matrix`` [n, m]."""
    return [{j: row[j].item() for j in row.nonzero()[:, 0].tolist()} for row in matrix]


def columns_of(rows: Rows, width: int) -> Rows:
    """Returns the columns of a matrix of ``width`` columns, by row."""
    columns: Rows = [{} for _ in range(width)]
    for i, row in enumerate(rows):
        for j, value in row.items():
            columns[j][i] = value
    return columns


def dense(rows: Rows, width: int) -> Tensor:
    """Returns float64 [n, width]."""
    matrix = torch.zeros(len(rows), width, dtype=torch.float64)
    for i, row in enumerate(rows):
        for j, value in row.items():
            matrix[i, j] = value
    return matrix


def check(a: Rows, b: Rows) -> None:
    """Raises ValueError where the rows of A do not fit the rows of B."""
    widest = max((j for row in a for j in row), default=-1)
    if widest >= len(b):
        raise ValueError(f"A has a column {widest} and B {len(b)} rows: A's columns are as many as B's rows")


def inner(a: Rows, b: Rows, width: int) -> Result:
    """Computes C of ``width`` columns, each entry by itself: two sorted lists of indices, the smaller of which moves
    on."""
    check(a, b)
    counts, columns = Counts(), [sorted(column.items()) for column in columns_of(b, width)]
    rows: Rows = []
    for row in a:
        own, sums = sorted(row.items()), dict[int, float]()
        for j, column in enumerate(columns):
            left = right = 0
            counts.read += len(own) + len(column)
            while left < len(own) and right < len(column):
                counts.comparisons += 1
                if own[left][0] == column[right][0]:
                    sums[j] = sums.get(j, 0.0) + own[left][1] * column[right][1]
                    counts.multiplications += 1
                    left, right = left + 1, right + 1
                elif own[left][0] < column[right][0]:
                    left += 1
                else:
                    right += 1
        rows.append(sums)
    return Result(rows, counts)


def gustavson(a: Rows, b: Rows) -> Result:
    """Computes C row by row: no index is compared, and nothing is kept beside the row that is made."""
    check(a, b)
    counts, rows = Counts(), list[dict[int, float]]()
    for row in a:
        sums: dict[int, float] = {}
        for k, value in row.items():
            counts.read += 1 + len(b[k])
            for j, other in b[k].items():
                sums[j] = sums.get(j, 0.0) + value * other
                counts.multiplications += 1
        rows.append(dict(sorted(sums.items())))
    return Result(rows, counts)


def outer(a: Rows, b: Rows) -> Result:
    """Computes C in two phases: every entry of A and B is read once and multiplied, and the lists of each row are
    merged."""
    check(a, b)
    counts, lists = Counts(), [list[dict[int, float]]() for _ in a]
    for column, row in zip(columns_of(a, len(b)), b, strict=True):
        counts.read += len(column) + len(row)
        for i, value in column.items():
            lists[i].append({j: value * other for j, other in row.items()})
            counts.multiplications += len(row)
    rows = []
    for of_row in lists:
        sums: dict[int, float] = {}
        for products in of_row:
            counts.stored += len(products)
            for j, value in products.items():
                sums[j] = sums.get(j, 0.0) + value
        rows.append(dict(sorted(sums.items())))
    return Result(rows, counts)


def csr(starts: Tensor, columns: Tensor, values: Tensor, shape: Sequence[int]) -> Tensor:
    """Makes a sparse CSR tensor, without torch's remarks that these are in beta and unchecked."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return torch.sparse_csr_tensor(starts, columns, values, tuple(shape))


def in_rows(matrix: Tensor) -> Tensor:
    """Returns a dense ``matrix`` [n, m] as a sparse CSR tensor."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return matrix.to_sparse_csr()


def expanded(a: Tensor, b: Tensor) -> Tensor:
    """Computes C of sparse CSR tensors ``a`` and ``b`` by expanding all products, sorting and compressing them, as CUSP
    does it on a GPU: the outer product's work in whole-tensor operators. Returns sparse CSR."""
    crow, col, values = a.crow_indices(), a.col_indices(), a.values()
    lengths = b.crow_indices().diff()[col]
    which = torch.arange(len(col), device=col.device).repeat_interleave(lengths)
    first = b.crow_indices()[col] - (lengths.cumsum(0) - lengths)
    places = torch.arange(int(lengths.sum()), device=col.device) + first.repeat_interleave(lengths)
    row = torch.arange(a.shape[0], device=col.device).repeat_interleave(crow.diff())[which]
    keys = row * b.shape[1] + b.col_indices()[places]
    keys, order = keys.sort(stable=True)
    unique, inverse = keys.unique_consecutive(return_inverse=True)
    products = (values[which] * b.values()[places])[order]
    summed = torch.zeros(len(unique), dtype=products.dtype, device=products.device).index_add_(0, inverse, products)
    starts = torch.zeros(a.shape[0] + 1, dtype=torch.int64, device=col.device)
    starts[1:] = torch.bincount(unique // b.shape[1], minlength=a.shape[0]).cumsum(0)
    return csr(starts, unique % b.shape[1], summed, (a.shape[0], b.shape[1]))


def multiplications(a: Tensor, b: Tensor) -> int:
    """Counts the multiplications of A B without zeros, by any of the three: sum over k of the entries of column k of A
    times those of row k of B."""
    return int((a != 0).sum(0).double() @ (b != 0).sum(1).double())
