"""ActNN: the forward pass is exact, and what it saves for the backward pass is packed in two bits a number on average.

Chen, Zheng, Yao, Wang, Stoica, Mahoney & Gonzalez, "ActNN: Reducing Training Memory Footprint via 2-Bit Activation
Compressed Training" (ICML 2021, arXiv 2104.14129), sections 4.1 and 4.2:

    forward     layer l, sample n:    R_n = max - min of each group of 256 numbers
                                      C_n = G / (4 I) ||R_n||^2 E||grad||^2             I: rows of a sample
                                      b_n: least sum C_n / (2^b_n - 1)^2 of b_l bits on average
                                      save each number in b_n bits, rounded at random
    backward    unpack; note E||grad||^2 of the layer's output
    then        b_l: the mean over samples of the least sum over all layers and samples, of ``bits`` on average
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor
from torch._subclasses import FakeTensor

from suite.loop.run import Run
from suite.loop.sites import Act, Site
from suite.loop.technique import Technique
from techniques.activation_compression.shared.bit_allocation import allocated
from techniques.activation_compression.shared.saved_tensors import PRODUCTS, Packing, Saved
from techniques.shared.packed import GROUP, WIDTHS, Rows, packed_rows, ranges

LEVELS: Mapping[str, int] = {"L0": 32, "L1": 4, "L2": 4, "L3": 2}  # with their bits
ENOUGH = 8  # bits, for what fused attention and the loss save


class Layer(NamedTuple):
    """Holds what a step shows of a layer: C_n of each sample but for the gradient, and the length of a sample."""

    spreads: list[float]
    length: int


def spreads(rows: Tensor, summed: int) -> list[float]:
    """Computes G ||R_n||^2 / (4 I) of each sample of ``rows`` [samples, length]: of I rows of ``summed`` numbers
    each."""
    return (ranges(rows).square().sum(1) * (GROUP * summed / (4 * rows.shape[1]))).tolist()


def layer_bits(layers: Mapping[str, Layer], gradients: Mapping[str, float], bits: float) -> dict[str, float]:
    """Computes b_l of each layer, for E||grad||^2 of each; ``bits`` are the mean over all numbers."""
    costs = [spread * gradients[key] for key, layer in layers.items() for spread in layer.spreads]
    weights = [layer.length for layer in layers.values() for _ in layer.spreads]
    widths = iter(allocated(costs, weights, bits * sum(weights)))
    return {key: fmean(next(widths) for _ in layer.spreads) for key, layer in layers.items()}


@dataclass
class ActNN(Technique):
    """Implements ActNN, whose ``level`` L0 packs nothing, L1 the operands of products, L2 all activations, each in
    ``bits``; L3 all, adaptively in ``bits`` on average. None for the level's own: 4, 4 and 2."""

    takes: ClassVar[str] = "packs what the passes save"
    level: Literal["L0", "L1", "L2", "L3"] = "L3"
    bits: float | None = None
    zero_strength: ClassVar[Mapping[str, Any]] = {"level": "L0"}

    averages: dict[str, float] = field(init=False, repr=False, default_factory=dict)  # b_l
    layers: dict[str, Layer] = field(init=False, repr=False, default_factory=dict)  # of this step
    squares: dict[str, Tensor] = field(init=False, repr=False, default_factory=dict)  # of the gradients of this step
    packs: Act = field(init=False, repr=False, default_factory=Act)

    def __post_init__(self) -> None:
        self.mean_bits = LEVELS[self.level] if self.bits is None else self.bits
        if self.level == "L3" and not 1 <= self.mean_bits <= ENOUGH:
            raise ValueError(f"bits of level L3 are a mean of 1, 2, 4 and 8: from 1 to 8, not {self.mean_bits:g}")
        if self.level in ("L1", "L2") and self.mean_bits not in WIDTHS:
            raise ValueError(f"all numbers of level {self.level} have 1, 2, 4 or 8 bits, not {self.mean_bits:g}")

    def around_step(self, run: Run) -> AbstractContextManager[Any]:
        if self.is_reference:
            return nullcontext()
        if run.recipe.compile:
            raise ValueError("actnn packs what single operators save, which torch.compile fuses: use the recipe modern")
        self.layers, self.squares = {}, {}
        adaptive = self.level == "L3"

        def keep(saved: Saved) -> Rows | None:
            return self.keep(saved, len(run.indices), run.generator)

        return Packing(run.model, keep, self.note if adaptive else None)

    def keep(self, saved: Saved, batch: int, generator: torch.Generator) -> Rows | None:
        """Returns a layer's activations, packed; None where the level leaves them whole."""
        if self.level == "L1" and saved.function not in PRODUCTS:
            return None
        self.packs()
        rows = saved.numbers.view(batch if saved.first % batch == 0 else 1, -1)
        if saved.sensitive:
            return packed_rows(rows, [ENOUGH] * len(rows), generator)
        if self.level != "L3":
            return packed_rows(rows, [int(self.mean_bits)] * len(rows), generator)
        if isinstance(rows, FakeTensor):  # which has no values: all samples are alike
            costs = [1.0] * len(rows)
        else:
            costs = spreads(rows, saved.row)
            self.layers[saved.key] = Layer(costs, rows.shape[1])
        mean = self.averages.get(saved.key, self.mean_bits)
        return packed_rows(rows, allocated(costs, [1] * len(rows), mean * len(rows)), generator)

    def note(self, key: str, gradient: Tensor) -> None:
        """Adds to the squares of the gradients that meet a layer's activations in the backward pass."""
        square = gradient.detach().float().square().sum()
        self.squares[key] = self.squares[key] + square if key in self.squares else square

    def after_step(self, run: Run) -> None:
        layers = {key: layer for key, layer in self.layers.items() if key in self.squares}
        if layers:
            squares = torch.stack([self.squares[key] for key in layers]).tolist()
            gradients = {key: square / len(layers[key].spreads) for key, square in zip(layers, squares, strict=True)}
            self.averages |= layer_bits(layers, gradients, self.mean_bits)

    def sites(self, run: Run) -> Mapping[str, Site]:
        return {"packs what is saved": self.packs}

    def state(self) -> dict[str, Any]:
        return {"averages": self.averages}

    def restore(self, state: dict[str, Any], run: Run) -> None:
        self.averages = dict(state["averages"])
