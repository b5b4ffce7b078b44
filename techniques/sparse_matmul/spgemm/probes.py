"""Checks what recorded steps show of the library's products, and of three orders of sparse times sparse products: one
result, and what each takes, on a model's pruned MLP."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from suite.reading.judged import judged, judged_as
from suite.reading.recording import Recording
from techniques.shared.sparse.pruned import records as records
from techniques.sparse_matmul.shared.dataflows import dense, expanded, gustavson, in_rows, inner, outer, rows_of
from techniques.sparse_matmul.shared.product_probes import of_products, operands
from techniques.sparse_matmul.spgemm.technique import Spgemm


@judged(
    "inner_off",
    "Inner products give the product",
    "By definition",
    id="inner_equal",
    at_most=1e-13,  # of the largest, in float64
    scope="kernel",
    recipes=["classic"],
)
@judged(
    "gustavson_off",
    "Gustavson's row-wise order gives the product",
    "By definition",
    id="gustavson_equal",
    at_most=1e-13,  # of the largest, in float64
    scope="kernel",
    recipes=["classic"],
)
@judged(
    "outer_off",
    "Outer products, merged, give the product",
    "By definition",
    id="outer_equal",
    at_most=1e-13,  # of the largest, in float64
    scope="kernel",
    recipes=["classic"],
)
@judged(
    "expanded_off",
    "Expanding, sorting and compressing, as CUSP does, gives the product",
    "By definition",
    id="expanded_equal",
    at_most=1e-13,  # of the largest, in float64
    scope="kernel",
    recipes=["classic"],
)
@judged(
    "library_off",
    "The library's sparse times sparse product gives the product",
    "By definition",
    id="library_equal",
    at_most=1e-13,  # of the largest, in float64
    scope="kernel",
    recipes=["classic"],
)
@judged(
    "multiplications_off",
    "All three orders make the same multiplications, one for each pair of entries that meet",
    "By definition",
    id="equal_multiplications",
    kind="counted",
    scope="kernel",
    recipes=["classic"],
)
@judged(
    "comparisons_over",
    "Inner products compare at least as many pairs of indices as they multiply",
    "By definition",
    id="indices_are_compared",
    at_least=1.0,
    kind="counted",
    scope="kernel",
    recipes=["classic"],
)
@judged(
    "read_once",
    "The outer product reads each entry of both operands once",
    "By definition",
    id="operands_are_read_once",
    equals=1.0,
    kind="counted",
    scope="kernel",
    recipes=["classic"],
)
@judged_as(of_products, "By definition of SpMM and SDDMM")
def probes(recording: Recording, own: Spgemm) -> Mapping[str, float]:
    """Includes those of :func:`of_products`; all others are of the product of :func:`operands`, beside the dense
    product, relative to the largest number. For a claim, ``row_wise_operations`` is the entries of B that Gustavson's
    order reads and indices that it compares, over the multiplications."""
    a, b = operands(recording)
    exact, rows_a, rows_b = a @ b, rows_of(a), rows_of(b)
    results = {
        "inner": inner(rows_a, rows_b, b.shape[1]),
        "gustavson": gustavson(rows_a, rows_b),
        "outer": outer(rows_a, rows_b),
    }
    meeting = sum(int((a[:, k] != 0).sum()) * int((b[k] != 0).sum()) for k in range(a.shape[1]))
    csr = in_rows(a), in_rows(b)
    entries, row_wise = (int((a != 0).sum()), int((b != 0).sum())), results["gustavson"].counts
    return {
        **of_products(recording, own),
        **{f"{name}_off": _off(dense(result.rows, b.shape[1]), exact) for name, result in results.items()},
        "expanded_off": _off(expanded(*csr).to_dense(), exact),
        "library_off": _off((csr[0] @ csr[1]).to_dense(), exact),
        "multiplications_off": sum(abs(result.counts.multiplications - meeting) for result in results.values()),
        "comparisons_over": results["inner"].counts.comparisons / meeting,
        "row_wise_operations": (row_wise.read - entries[0] + row_wise.comparisons) / meeting,
        "read_once": results["outer"].counts.read / sum(entries),
    }


def _off(ours: Tensor, exact: Tensor) -> float:
    return ((ours - exact).abs().max() / exact.abs().max().clamp(min=torch.finfo(exact.dtype).tiny)).item()
