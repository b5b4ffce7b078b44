"""Checks what recorded steps show of products as sums of outer products, what they read and keep on a model's pruned
MLP, and the modelled time of the paper's own matrices."""

from __future__ import annotations

from collections.abc import Mapping

from suite.reading.judged import judged, judged_as
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


@judged(
    "outer_off",
    "The merged outer products are the product",
    "The two phases, multiply and merge",
    id="merged_equal",
    at_most=1e-13,  # of the largest, in float64
    scope="kernel",
    recipes=["classic"],
)
@judged(
    "pays",
    "Writing and reading all products costs more than reading B again does, entry for entry: the gain is in regular "
    "accesses and not in their number",
    "This entry's, from the counts",
    id="never_pays_without_a_cache",
    kind="counted",
    scope="kernel",
    recipes=["classic"],
)
@judged(
    "kept_off",
    "Every product is kept until it is merged: one for each pair of entries that meet",
    "The two phases, multiply and merge",
    id="products_are_kept",
    kind="counted",
    scope="kernel",
    recipes=["classic"],
)
@judged(
    "bytes_over",
    "12 bytes for each entry read, each product written and read, and each entry of the result, pointers aside",
    "Elements as in TeAAL's model of it: indices of 32 and values of 64 bits",
    id="bytes",
    equals=1.0,
    kind="counted",
    scope="kernel",
    recipes=["classic"],
)
@judged(
    "least_gap",
    "Reported times are 3.3 times the bound or more: what it leaves out is recorded, and not fitted",
    "This entry's bound beside the times that TeAAL's artifact has",
    id="gap",
    at_least=3.3,
    kind="counted",
    scope="kernel",
    recipes=["classic"],
)
@judged(
    "largest_gap",
    "Reported times are 9.6 times the bound at most",
    "This entry's bound beside the times that TeAAL's artifact has",
    at_most=9.6,
    kind="counted",
    scope="kernel",
    recipes=["classic"],
)
@judged_as(of_products, "The two phases, for a dense right operand")
def probes(recording: Recording, own: Outerspace) -> Mapping[str, float]:
    """Includes those of :func:`of_products`; all others are of the product of :func:`operands`, modelled times of the
    paper's five matrices. Claims read ``read_once``, entries read over those that there are, and ``above_reported``,
    the matrices whose bound is above the reported time."""
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
