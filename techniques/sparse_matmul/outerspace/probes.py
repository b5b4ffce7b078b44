"""What recorded steps show of products as sums of outer products, what they read and keep on a model's pruned MLP, and
the modelled time of the paper's own matrices."""

from __future__ import annotations

from collections.abc import Mapping

from suite.reading.recording import Recording
from techniques.shared.sparse.pruned import records as records
from techniques.sparse_matmul.outerspace.technique import Outerspace
from techniques.sparse_matmul.outerspace.traffic import bound_s, outer_pays, traffic_bytes
from techniques.sparse_matmul.shared.dataflows import dense, gustavson, outer, rows_of
from techniques.sparse_matmul.shared.product_probes import of_products, operands

REPORTED = (
    (4986, 8.0e-3, 7.608e-3),
    (9987, 2.0e-3, 3.652e-3),
    (19937, 5.0e-4, 2.530e-3),
    (39888, 1.3e-4, 1.791e-3),
    (79730, 3.1e-5, 1.715e-3),
)
"""Rows, density, and seconds that the paper reports for squares of uniform matrices (digitised by TeAAL's authors)."""


def probes(recording: Recording, own: Outerspace) -> Mapping[str, float]:
    """Those of :func:`of_products`; of the product of :func:`operands`: ``outer_off``: the largest error beside
    the dense product, of the largest; ``read_once``: entries read over those that there are; ``kept_off``: products
    kept for merging, less the pairs of entries that meet; ``bytes_over``: modelled bytes over 12 for each entry read,
    written or read again, pointers aside; ``pays``: whether products cost less than reading B again;
    ``above_reported``: of the paper's five matrices those whose bound is above the reported time; ``least_gap``,
    ``largest_gap``: of reported times over the bound."""
    a, b = operands(recording)
    rows_a, rows_b = rows_of(a), rows_of(b)
    product, other = outer(rows_a, rows_b), gustavson(rows_a, rows_b)
    exact = a @ b
    entries = int((a != 0).sum()), int((b != 0).sum())
    meeting = sum(int((a[:, k] != 0).sum()) * int((b[k] != 0).sum()) for k in range(a.shape[1]))
    result = sum(map(len, product.rows))
    pointers = 4 * (3 * (len(a) + 1) + 2 * entries[0])
    moved = traffic_bytes(len(a), *entries, product.counts.stored, result) - pointers
    gaps = [seconds / bound_s(rows, density) for rows, density, seconds in REPORTED]
    return {
        **of_products(recording, own),
        "outer_off": ((dense(product.rows, b.shape[1]) - exact).abs().max() / exact.abs().max()).item(),
        "read_once": product.counts.read / sum(entries),
        "kept_off": product.counts.stored - meeting,
        "bytes_over": moved / (12 * (sum(entries) + 2 * meeting + result)),
        "pays": outer_pays(product.counts.stored, other.counts.read - entries[0]),
        "above_reported": sum(gap < 1 for gap in gaps),
        "least_gap": min(gaps),
        "largest_gap": max(gaps),
    }
