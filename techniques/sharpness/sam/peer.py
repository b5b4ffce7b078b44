"""Checks and timings of SAM's kernels, beside torch's operators, list by list and tensor by tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from suite.kernels.bench import Bench, Inputs, random_lists, with_gradients
from techniques.sharpness.shared import ascent_kernel as kernel

RHO = 100.0  # large, so that bfloat16 parameters show the step


def make(sizes: Sequence[int], device: torch.device, generator: torch.Generator, dtype: torch.dtype) -> Inputs:
    return random_lists(sizes, device, generator, parameters=dtype, gradients=dtype)


def ascended(inputs: Inputs) -> Inputs:
    parameters, gradients = (list(map(Tensor.double, inputs[name])) for name in ("parameters", "gradients"))
    norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
    moved = [p + RHO / (norm + 1e-12) * g for p, g in zip(parameters, gradients)]
    return {"moved": moved if norm.isfinite() else parameters, "parameters": parameters}


def ascend(inputs: Inputs, seed: int | None = None) -> Callable[[], object]:
    tables = kernel.launch_tables()

    def step() -> None:
        inputs["moved"] = kernel.ascend(inputs["parameters"], inputs["gradients"], RHO, tables, seed=seed)

    return step


@torch.no_grad()
def _foreach_ascent(parameters: Sequence[Tensor], gradients: Sequence[Tensor]) -> list[Tensor]:
    factor = RHO / (nn.utils.get_total_norm(gradients) + 1e-12)
    return list(torch._foreach_add(list(parameters), torch._foreach_mul(list(gradients), factor)))


def foreach(inputs: Inputs) -> Callable[[], object]:
    return lambda: _foreach_ascent(inputs["parameters"], inputs["gradients"])


@torch.no_grad()
def _single_ascent(parameters: Sequence[nn.Parameter]) -> list[Tensor]:
    """Ascends as the much copied SAM optimizers have it: one tensor after another."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    factor = RHO / (torch.stack([gradient.norm() for gradient in gradients]).norm() + 1e-12)
    copies = [parameter.clone() for parameter in parameters]
    for parameter, gradient in zip(parameters, gradients):
        parameter.add_(gradient * factor)
    return copies


def single(inputs: Inputs) -> Callable[[], object]:
    return partial(_single_ascent, with_gradients(inputs))


def _bench(dtype: torch.dtype) -> Bench:
    return Bench(
        make=partial(make, dtype=dtype),
        kernel=ascend,
        reference=ascended,
        tolerance=2,  # a sum of two, one a product
        bytes_per_element=4 * dtype.itemsize,
        peers={"torch foreach": foreach, "torch, tensor by tensor": single},
    )


BENCHES = {"ascend_float32": _bench(torch.float32), "ascend_bfloat16": _bench(torch.bfloat16)}
BENCHES["ascend_bfloat16_stochastic"] = replace(BENCHES["ascend_bfloat16"], kernel=partial(ascend, seed=1))
