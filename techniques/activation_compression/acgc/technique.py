"""AC-GC: activations are kept in as few bits as an error bound on the gradients allows.

Evans & Aamodt, "AC-GC: Lossy Activation Compression with Guaranteed Convergence" (NeurIPS 2021), as in the
authors' autoquant.py. Gradients may be off by e^2 of their squared norm: E |g'|^2 <= (1 + e^2) V^2. Of a convolution
whose input x has N C H W values and whose filters are R x S with stride T they allow each value an error of

    dx^2 = e^2 |g_W|^2 / (2 N C H W (R S / T^2) |g_y|^2)        summed over the layers that read x, above and below

A linear layer is the case R = S = T = 1, with tokens for N H W (an adaptation): g_W = g_y^T x, so that, by
Cauchy-Schwarz, |g_y^T dx|^2 <= |g_y|^2 |dx|^2 <= |g_y|^2 N C H W dx^2. A channel whose largest value is m has, in
fixed point,

    f = clip(trunc(-log2(dx) + log2(m) - 1), 1, 15)   bits behind the point, and one for the sign

|g_W| and |g_y| are measured in every 100th step, and the means of the last ten measurements are used.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from suite.loop.run import Run
from suite.loop.sites import Act, Site
from suite.loop.technique import Technique
from techniques.activation_compression.acgc import bit_planes
from techniques.activation_compression.shared.saved_tensors import Place, linears, packing

MOST = 15  # bits behind the point
LEAST_NORM = 1e-16  # of squared norms
LEAST_VALUE = 1e-6  # added to a channel's largest


def allowed_error(error: float, of_weights: float, of_outputs: float, values: int) -> float:
    """Computes dx^2 from e^2, the squared norms of the gradients of the weights and of the outputs, and x's number of
    values."""
    return error * max(of_weights, LEAST_NORM) / (2 * values * max(of_outputs, LEAST_NORM))


def fraction_bits(allowed: float, largest: Tensor) -> Tensor:
    """Computes f of each channel, int32 [C], from dx^2 and the channels' largest absolute values [C]."""
    bits = -0.5 * math.log2(allowed) + (largest.double() + LEAST_VALUE).log2() - 1
    return bits.trunc().clamp(1, MOST).int()


def fixed_point(x: Tensor, largest: Tensor, bits: Tensor) -> Tensor:
    """Returns ``x`` [C, T] as int32 in [0, 2^(f + 1)), its least value at 0."""
    unit = 2.0 ** bits[:, None]
    scaled = x * (unit / (largest[:, None] + LEAST_VALUE))
    return (scaled.round().clamp(-unit, unit - 1) + unit).int()


def restored(codes: Tensor, largest: Tensor, bits: Tensor) -> Tensor:
    """Returns float32 [C, T]: the inverse of :func:`fixed_point` but for its rounding."""
    unit = 2.0 ** bits[:, None]
    return (codes - unit) * ((largest[:, None] + LEAST_VALUE) / unit)


@dataclass(frozen=True, eq=False)
class Planes:
    """Holds a tensor [..., C] in fixed point: bit planes of its channels, their f and their largest values."""

    planes: Tensor
    bits: Tensor
    largest: Tensor
    rows: tuple[int, ...]
    columns: int
    dtype: torch.dtype
    reader: str

    def numbers(self) -> Tensor:
        codes = bit_planes.unpacked(self.planes, self.bits, self.rows, self.columns)
        return restored(codes, self.largest, self.bits).T.to(self.dtype).flatten()


@dataclass
class ACGC(Technique):
    """Implements AC-GC, where ``error`` is e^2; ``interval`` the steps from one measurement of gradient norms to the
    next, ``history`` how many are averaged. Before the first, all is kept in 16 bits. With ``bits`` (signs included)
    every value has that many and nothing is measured: what the paper compares with, and what can be counted at any size
    without values."""

    error: float = 0.5
    interval: int = 100
    history: int = 10
    bits: int | None = None

    norms: dict[str, list[list[float]]] = field(init=False, repr=False, default_factory=dict)  # |g_W|^2, |g_y|^2
    readers: dict[str, list[str]] = field(init=False, repr=False, default_factory=dict)  # that share the first's input
    acts: dict[str, Act] = field(init=False, repr=False, default_factory=dict)
    of_outputs: dict[str, Tensor] = field(init=False, repr=False, default_factory=dict)  # this step's
    totals: list[int] = field(init=False, repr=False, default_factory=lambda: [0, 0])  # bits, values of the last step

    def __post_init__(self) -> None:
        if not 0 < self.error < math.inf:
            raise ValueError(f"error is e^2, the allowed share of a squared gradient norm: above 0, not {self.error}")
        if self.bits is not None and not 2 <= self.bits <= MOST + 1:
            raise ValueError(f"bits are 2 to {MOST + 1} a value, or none for what the error allows; not {self.bits}")
        if self.interval < 1 or self.history < 1:
            raise ValueError(
                f"norms are measured every so many steps, and so many measurements averaged: interval and history are "
                f"1 or more, not {self.interval} and {self.history}"
            )

    @contextmanager
    def around_step(self, run: Run) -> Iterator[None]:
        shared: dict[str, list[str]] = {}
        block_of = {part.path: block.path for block in run.anatomy.every_block for part in block.linears}
        self.totals = [0, 0]

        def pack(tensor: Tensor, place: Place) -> Planes:
            self.acts.setdefault(block_of[place.module], Act())()
            shared[place.module] = [place.module]
            return self.packed(tensor, place.module)

        def again(planes: Planes, place: Place) -> None:
            if place.module not in shared[planes.reader]:
                shared[planes.reader].append(place.module)

        with packing(run, linears(run.anatomy), pack, again), self.measuring(run):
            yield
        self.readers = shared

    def packed(self, tensor: Tensor, reader: str) -> Planes:
        """Packs ``tensor`` [..., C], which the linear layer ``reader`` reads first."""
        x = tensor.reshape(-1, tensor.shape[-1]).T.float()
        largest = x.abs().amax(1)
        allowed = self.allowed(self.readers.get(reader, [reader]), tensor.numel())
        if allowed is None:
            count = self.bits or MOST + 1
            bits, rows = torch.full_like(largest, count - 1, dtype=torch.int32), [len(x)] * count
        else:
            bits = fraction_bits(allowed, largest)
            rows = bit_planes.rows_of_planes(bits + 1)
        self.totals = [self.totals[0] + sum(rows) * x.shape[1], self.totals[1] + tensor.numel()]
        planes = bit_planes.packed(fixed_point(x, largest, bits), bits, rows)
        return Planes(planes, bits.to(torch.uint8), largest, tuple(rows), x.shape[1], tensor.dtype, reader)

    def allowed(self, readers: list[str], values: int) -> float | None:
        """Returns dx^2 of what these linear layers read; None before their norms are known."""
        if not all(reader in self.norms for reader in readers):
            return None
        of_weights, of_outputs = (
            sum(math.fsum(norm[k] for norm in self.norms[reader]) / len(self.norms[reader]) for reader in readers)
            for k in range(2)
        )
        return allowed_error(self.error, of_weights, of_outputs, values)

    @contextmanager
    def measuring(self, run: Run) -> Iterator[None]:
        """Collects |g_y|^2 of all linear layers in every ``interval``-th step."""
        self.of_outputs = {}
        handles = []
        if self.bits is None and run.step % self.interval == 0:
            for path, module in (saver.part for saver in linears(run.anatomy)):
                handles.append(module.register_forward_hook(lambda _, __, y, path=path: self.hear(path, y)))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def hear(self, path: str, output: Tensor) -> None:
        def add(gradient: Tensor) -> None:
            self.of_outputs[path] = self.of_outputs.get(path, 0.0) + gradient.float().square().sum()

        if output.requires_grad:
            output.register_hook(add)

    def after_backward(self, run: Run) -> None:
        for path, of_outputs in self.of_outputs.items():
            weight: nn.Parameter = run.model.get_submodule(path).weight  # type: ignore[assignment]
            # what is computed from other parameters has no gradient of its own: its layer goes on with 16 bits
            if weight.is_leaf and weight.grad is not None:
                measured = [weight.grad.float().square().sum().item(), of_outputs.item()]
                if all(map(math.isfinite, measured)):
                    self.norms[path] = [*self.norms.get(path, []), measured][-self.history :]
        self.of_outputs = {}

    def probes(self, run: Run) -> Mapping[str, float]:
        """Returns the bits of a value, signs included, in the last step."""
        bits, values = self.totals
        return {"bits": bits / values}

    def sites(self, run: Run) -> Mapping[str, Site]:
        self.acts = {block.path: Act() for block in run.anatomy.every_block}
        return self.acts

    def state(self) -> dict[str, Any]:
        return {"norms": self.norms, "readers": self.readers, "kept": self.totals}

    def restore(self, state: dict[str, Any], run: Run) -> None:
        self.norms, self.readers, self.totals = state["norms"], state["readers"], state["kept"]
