"""What recorded steps show of the library's products, and of three orders of sparse times sparse products: one result,
and what each takes, on a model's pruned MLP."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from suite.reading.recording import Recording
from techniques.shared.sparse.pruned import records as records
from techniques.sparse_matmul.shared.dataflows import dense, expanded, gustavson, in_rows, inner, outer, rows_of
from techniques.sparse_matmul.shared.product_probes import of_products, operands
from techniques.sparse_matmul.spgemm.technique import Spgemm


def probes(recording: Recording, own: Spgemm) -> Mapping[str, float]:
    """Those of :func:`of_products`; of the product of :func:`operands`: ``inner_off``, ``gustavson_off``,
    ``outer_off``, ``expanded_off``, ``library_off``: the largest error beside the dense product, of the largest;
    ``multiplications_off``: of each order, beside the pairs of entries that meet; ``comparisons_over``: the inner
    product's over its multiplications; ``row_wise_operations``: entries of B that Gustavson's order reads and indices
    that it compares, over the multiplications; ``read_once``: entries of both operands that the outer product reads,
    over those that there are."""
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
