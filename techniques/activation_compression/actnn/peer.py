"""Checks and timings of packing and unpacking, beside torch's operators and its compiler.

The numbers are codes of their own groups, so that rounding at random has no choice: they come back to the bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from suite.kernels.bench import Bench, Inputs, Prepare
from techniques.shared import packed
from techniques.shared import packed_kernel as kernel
from techniques.shared.packed import GROUP, Packed

SAVED = (8 * 1024 * 768,) * 4  # of eight sequences of 1024 tokens in GPT-2's smallest model
SEED = 7
Trip = Callable[[Tensor, int], Tensor]


def on_codes(size: int, bits: int, dtype: torch.dtype, device: torch.device, generator: torch.Generator) -> Tensor:
    """Draws numbers [size] between -2^(bits - 1) and 2^(bits - 1) - 1, both in each group, times a power of two for
    each."""
    codes = torch.randint(2**bits, (size,), generator=generator, device=device)
    codes[::GROUP] = 0
    codes[1::GROUP] = 2**bits - 1
    scales = 2.0 ** torch.randint(-3, 4, (size,), generator=generator, device=device)
    first = torch.arange(size, device=device) // GROUP * GROUP
    return ((codes - 2 ** (bits - 1)) * scales[first]).to(dtype)


def reference(inputs: Inputs) -> Inputs:
    """Returns the activations in float64, where what is not finite spoils its group."""
    returned = []
    for numbers in inputs["activations"]:
        groups = [part.double() for part in numbers.split(GROUP)]
        whole = [group if group.isfinite().all() else torch.full_like(group, torch.nan) for group in groups]
        returned.append(torch.cat(whole) if whole else numbers.double())
    return {"returned": returned}


def by_kernel(rows: Tensor, bits: int) -> Tensor:
    return kernel.unpack(*kernel.pack(rows, bits, SEED), bits, rows.shape[1], rows.dtype)


def by_torch(rows: Tensor, bits: int) -> Tensor:
    """Packs and unpacks all rows at once, whatever memory that takes."""
    codes, least, steps = packed.codes_of(rows, bits, torch.Generator(rows.device).manual_seed(SEED))
    return packed.numbers_of(Packed(codes, least, steps, bits, rows.shape[1], rows.dtype))


def trip(inputs: Inputs, bits: int, through: Trip) -> Callable[[], object]:
    def step() -> None:
        inputs["returned"] = [through(activation[None], bits)[0] for activation in inputs["activations"]]

    return step


def bench(dtype: torch.dtype, bits: int) -> Bench:
    def make(sizes: Sequence[int], device: torch.device, generator: torch.Generator) -> Inputs:
        return {"activations": [on_codes(size, bits, dtype, device, generator) for size in sizes]}

    peers: dict[str, Prepare] = {
        "torch eager": partial(trip, bits=bits, through=by_torch),
        "torch.compile": lambda inputs: trip(inputs, bits, torch.compile(by_torch)),
    }
    return Bench(
        make=make,
        kernel=partial(trip, bits=bits, through=by_kernel),
        reference=reference,
        tolerance=0,
        bytes_per_element=2 * (dtype.itemsize + bits / 8 + 4 / GROUP),
        peers=peers,
        multi_tensor=False,
        timed_sizes=SAVED,
    )


BENCHES = {
    f"{name}_{bits}": bench(dtype, bits)
    for name, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16))
    for bits in (2, 4, 8)
} | {"any length": bench(torch.float32, 2)}
