"""Checks and timings of the cast to eight bits, beside torch's operators.

The list that is cast is called ``gradients``, whose values need not be finite. Its matrices are as wide as their sizes
allow; timed is what waits between the two layers of an MLP of GPT-2's smallest model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from suite.kernels.bench import Bench, Inputs, Prepare, random_lists
from techniques.precision.fp8_hybrid import kernel

WIDTHS = (3072, 48, 3, 1)
TIMED = 8 * 1024 * 3072
SCALE = 299.25  # so that E4M3 clips normal numbers beyond 1.5
HALF_A_STEP = 0.5 + 2.0**-16  # the rounding to eight bits, and that of the scaled number before it
Cast = Callable[[Tensor, torch.dtype, Tensor], tuple[Tensor, Tensor, Tensor, Tensor]]


def matrix(tensor: Tensor) -> Tensor:
    return tensor.view(-1, next(width for width in WIDTHS if tensor.numel() % width == 0))


def ours(x: Tensor, dtype: torch.dtype, known: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    seen = torch.zeros((), device=x.device)
    return *kernel.cast_both(x, dtype, known, 0, seen), seen


def torchs(x: Tensor, dtype: torch.dtype, known: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    largest, amax = torch.finfo(dtype).max, x.abs().amax().float()
    scale = torch.where(known > 0, known, largest / amax)
    rows = (x.float() * scale).clamp(-largest, largest).to(dtype)
    return rows, rows.T.contiguous(), 1 / scale, amax


def bench(read: torch.dtype, written: torch.dtype, delayed: bool) -> Bench:
    known = SCALE if delayed else 0.0

    def make(sizes: Sequence[int], device: torch.device, generator: torch.Generator) -> Inputs:
        return random_lists(sizes, device, generator, gradients=read)

    def step(cast: Cast) -> Prepare:
        def prepare(inputs: Inputs) -> Callable[[], object]:
            scale = torch.tensor(known, device=inputs["gradients"][0].device)

            def run() -> None:
                drawn = [(matrix(x), cast(matrix(x), written, scale)) for x in inputs["gradients"]]
                inputs["rows"] = [rows for _, (rows, *_) in drawn]
                inputs["columns"] = [columns[:, : len(x)] for x, (_, columns, *_) in drawn]
                inputs["inverses"] = [inverse for _, (_, _, inverse, _) in drawn]
                inputs["seen"] = [seen.nan_to_num(torch.inf, torch.inf) for *_, (*_, seen) in drawn]

            return run

        return prepare

    def reference(inputs: Inputs) -> Inputs:
        largest = torch.finfo(written).max
        expected: Inputs = {"rows": [], "columns": [], "inverses": [], "seen": []}
        for tensor in inputs["gradients"]:
            x = matrix(tensor).double().nan_to_num(torch.nan, torch.nan, torch.nan)
            amax = x.abs().nan_to_num(torch.inf).amax() if x.numel() else torch.zeros((), device=x.device)
            own = (largest / amax.float()).item() if 0 < amax < torch.inf else 1.0  # a scale is a float32
            scale = 1.0 if not x.numel() else known or own
            rows = (x * scale).clamp(-largest, largest)
            expected["rows"].append(rows)
            expected["columns"].append(rows.T.clone())
            expected["inverses"].append(torch.tensor(1 / scale, dtype=torch.float64, device=x.device))
            expected["seen"].append(amax.double())
        return expected

    return Bench(
        make=make,
        kernel=step(ours),
        reference=reference,
        tolerance=HALF_A_STEP,
        bytes_per_element=read.itemsize * (1 if delayed else 2) + 2 * written.itemsize,
        peers={"torch": step(torchs)},
        multi_tensor=False,
        timed_sizes=(TIMED,),
    )


BF16, F32, E4M3, E5M2 = torch.bfloat16, torch.float32, torch.float8_e4m3fn, torch.float8_e5m2
BENCHES = {
    "delayed": bench(BF16, E4M3, True),
    "gradient": bench(BF16, E5M2, True),
    "weight": bench(F32, E4M3, True),
    "dynamic": bench(BF16, E4M3, False),
}
