"""Checks and timings of 1-bit packing with error feedback, beside torch's operators, eager and compiled.

A list's tensor is a matrix of the bench's own columns, or a vector.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from suite.kernels.bench import Bench, Inputs, Prepare, random_lists
from techniques.communication.onebit_sgd import kernel
from techniques.communication.onebit_sgd.technique import one_bit, two_valued

WIDTH = 768  # of GPT-2's smallest model, whose matrices have 768 rows, 3072 and 50257
SQUARE, TALL, TABLE = WIDTH * WIDTH, kernel.MOST_ROWS * WIDTH, 50257 * WIDTH
Packing = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def columns_of(size: int, checked: int) -> int:
    """Returns the columns of a tensor of that many entries: the model's where it is timed."""
    return WIDTH if size in (SQUARE, TALL, TABLE) else checked


def make(columns: int, sizes: Sequence[int], device: torch.device, generator: torch.Generator) -> Inputs:
    """Draws whole rows, at least one."""
    whole = [max(1, size // columns_of(size, columns)) * columns_of(size, columns) for size in sizes]
    return random_lists(whole, device, generator, gradients=torch.float32, errors=torch.float32)


def matrices(inputs: Inputs, columns: int) -> list[tuple[Tensor, Tensor]]:
    """Returns the gradients and memories, [rows, columns]; of one column, vectors."""
    pairs = zip(inputs["gradients"], inputs["errors"], strict=True)
    shaped = ((g, e, (-1, columns_of(len(g), columns))) for g, e in pairs)
    return [(g, e) if columns == 1 else (g.view(shape), e.view(shape)) for g, e, shape in shaped]


def reference(inputs: Inputs, columns: int) -> Inputs:
    """Computes the reference column by column; what is not finite spoils its column."""
    results: Inputs = {"errors": [], "sent": []}
    for g, e in matrices(inputs, columns):
        wanted = (g.double() + e.double()).view(len(g), -1)
        upper = wanted >= 0
        means = [torch.where(side, wanted, 0.0).sum(0) / side.sum(0).clamp(min=1) for side in (~upper, upper)]
        sent = torch.where(upper, means[1], means[0])
        spoilt = ~wanted.isfinite().all(0)
        for column in spoilt.nonzero().flatten().tolist():
            own = wanted[:, column]
            for side in (~upper[:, column], upper[:, column]):
                sent[side, column] = ((side.double() * own).sum() / side.sum().clamp(min=1)).item()
        results["sent"].append(sent.flatten())
        results["errors"].append((wanted - sent).flatten())
    return results


def step(inputs: Inputs, columns: int, through: Packing) -> Callable[[], object]:
    """Returns a step that computes bits and means, one after the other."""
    drawn = matrices(inputs, columns)

    def run() -> None:
        inputs["packed"] = [part for g, e in drawn for part in through(g, e)]

    return run


def unpack(inputs: Inputs, columns: int) -> None:
    parts = inputs.pop("packed")
    drawn = matrices(inputs, columns)
    packed = zip(parts[::2], parts[1::2], drawn, strict=True)
    inputs["sent"] = [two_valued(means, bits, gradient.shape).flatten() for means, bits, (gradient, _) in packed]


def by_torch(gradient: Tensor, errors: Tensor) -> tuple[Tensor, Tensor]:
    errors += gradient
    message = one_bit(errors)
    errors -= two_valued(*message, errors.shape)
    return message


def bench(columns: int, checked: Sequence[int], timed: Sequence[int], moved: float) -> Bench:
    peers: dict[str, Prepare] = {
        "torch eager": partial(step, columns=columns, through=by_torch),
        "torch.compile": lambda inputs: step(inputs, columns, torch.compile(by_torch, dynamic=True)),
    }
    return Bench(
        make=partial(make, columns),
        kernel=partial(step, columns=columns, through=kernel.pack),
        reference=partial(reference, columns=columns),
        tolerance=16,  # a sum of up to 2^14 entries by halves, its mean and a difference
        bytes_per_element=moved,
        peers=peers,
        multi_tensor=False,
        unpack=partial(unpack, columns=columns),
        checked_sizes=checked,
        timed_sizes=timed,
    )


ONCE, TWICE = 12 + 1 / 8, 20 + 1 / 8  # bytes an entry: gradient, memory there and back, a bit; both read once more
BENCHES = {
    "matrix": bench(32, [32, 96, 32 * 127, 32 * 513, 40 * 1024], [SQUARE] * 48, ONCE),
    "tall": bench(8, [8 * 1025, 8 * kernel.MOST_ROWS], [TALL] * 16, ONCE),
    "very tall": bench(8, [8 * (kernel.MOST_ROWS + 5)], [TABLE], TWICE),
    "vector": bench(1, [1, 7, 513, kernel.HELD, kernel.HELD + 9], [4 * WIDTH] * 400, ONCE),
}
