"""Has the authors' cost model of a layer's attention on the array, also without its slip. Modelled, and nothing
measured.

64 x 16 elements at 1 GHz do 2048 GFLOP/s. Projections of queries, keys and values are dense; products of scores and
values take their density over the load balance. The released script divides the output projection by the density too,
which no sparse attention shortens; both leave out what the prediction takes.
"""

from __future__ import annotations

FLOPS = 2048e9  # a second; a multiply-add is two


def layer_s(tokens: int, density: float, balance: float, width: int = 768, *, as_released: bool = False) -> float:
    """Returns the seconds of one layer's attention for one sequence. Raises ValueError for a share outside (0, 1]."""
    if not (0 < density <= 1 and 0 < balance <= 1):
        raise ValueError(f"density and balance are shares in (0, 1], not {density:g} and {balance:g}")
    projections, output, products = 6 * tokens * width**2, 2 * tokens * width**2, 4 * tokens**2 * width
    sparse, dense = (products + output, projections) if as_released else (products, projections + output)
    return (dense + sparse * density / balance) / FLOPS
