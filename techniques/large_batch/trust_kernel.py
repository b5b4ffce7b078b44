"""Each tensor's trust ratio from partial norms that another kernel left: the one thing that LARS and LAMB launch apart.

A pass over the parameters leaves for each of its programs two partial sums of squares, of weights and of updates. A
tensor's programs are neighbours, so its sums are two runs of numbers, from ``starts[tensor]`` to
``starts[tensor + 1]``; one program a tensor adds them up in a fixed order (no atomics: the same bits every time) and
leaves the ratio

    coefficient phi(||w||) / (||u|| + decay ||w|| + eps)          phi(z) = min(max(z, low), high)

or 1 where either norm is 0 or not a number. Its traffic is 8 bytes a block of elements: nothing.
"""

# Triton types a kernel's arguments at the launch.
# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
import triton
import triton.language as tl
from torch import Tensor

from suite.kernels.manifest import Budget, Manifest
from suite.kernels.multi_tensor import Group, LaunchTables

CHUNK = 1024
NUM_WARPS = 4
REDUCTION_BYTES = 1024 + 2 * 4 * NUM_WARPS  # a word of each warp for each sum, beside what Hopper keeps for itself
OPTIONS = {"enable_fp_fusion": False}


@triton.jit(do_not_specialize=["programs"])
def ratios_kernel(partials, starts, ratios, programs, coefficient, low, high, decay, eps, CHUNK: tl.constexpr):
    tensor = tl.program_id(0)
    last = tl.load(starts + tensor + 1)
    offsets = tl.arange(0, CHUNK)
    weights = tl.zeros((CHUNK,), tl.float32)
    updates = tl.zeros((CHUNK,), tl.float32)
    for first in range(tl.load(starts + tensor), last, CHUNK):
        mask = first + offsets < last
        weights += tl.load(partials + first + offsets, mask=mask, other=0.0)
        updates += tl.load(partials + programs + first + offsets, mask=mask, other=0.0)
    weight_norm = tl.sqrt_rn(tl.sum(weights))
    update_norm = tl.sqrt_rn(tl.sum(updates))
    length = tl.minimum(tl.maximum(weight_norm, low), high)
    ratio = tl.div_rn(coefficient * length, update_norm + decay * weight_norm + eps)
    tl.store(ratios + tensor, tl.where((weight_norm > 0) & (update_norm > 0), ratio, 1.0))


@dataclass
class Launch:
    """A group of tensors and, int64 [tensors + 1] on its device, where each one's programs begin."""

    group: Group
    starts: Tensor

    def partials(self) -> Tensor:
        """Room for two sums of each program, float32 [2 programs]: the weights' first."""
        return torch.empty(2 * self.group.programs, dtype=torch.float32, device=self.group.table.device)

    def ones(self) -> Tensor:
        """The ratios of tensors that do not adapt, float32 [tensors]."""
        return torch.ones(self.group.tensors, dtype=torch.float32, device=self.group.table.device)

    def ratios(
        self,
        partials: Tensor,
        *,
        coefficient: float = 1.0,
        low: float = 0.0,
        high: float = math.inf,
        decay: float = 0.0,
        eps: float = 0.0,
    ) -> Tensor:
        """The module's formula for each tensor, float32 [tensors]: one launch."""
        ratios = torch.empty(self.group.tensors, dtype=torch.float32, device=partials.device)
        ratios_kernel[(self.group.tensors,)](
            partials, self.starts, ratios, self.group.programs, coefficient, low, high, decay, eps,
            CHUNK=CHUNK, num_warps=NUM_WARPS, **OPTIONS,
        )  # fmt: skip
        return ratios


class TrustTables:
    """Launch tables that also know where each tensor's programs begin; one for each list of parameters."""

    def __init__(self, block: int) -> None:
        self._tables = LaunchTables(block)
        self._launches: list[Launch] = []

    def launches(self, lasting: Sequence[Sequence[Tensor]], passing: Sequence[Sequence[Tensor]]) -> list[Launch]:
        """As `LaunchTables.groups`, whose errors it raises."""
        groups = self._tables.groups(lasting, passing)
        known = len(groups) == len(self._launches)
        if not (known and all(group is launch.group for group, launch in zip(groups, self._launches))):
            self._launches = [self._located(group, lasting[0]) for group in groups]
        return self._launches

    def _located(self, group: Group, tensors: Sequence[Tensor]) -> Launch:
        programs = (-(-tensors[member].numel() // self._tables.block) for member in group.members)
        starts = torch.frombuffer(array("q", accumulate(programs, initial=0)), dtype=torch.int64)
        return Launch(group, starts.to(group.table.device))


RATIOS_MANIFEST = Manifest(
    kernel=ratios_kernel,
    signature={
        "partials": "*fp32",
        "starts": "*i64",
        "ratios": "*fp32",
        "programs": "i32",
        **dict.fromkeys(("coefficient", "low", "high", "decay", "eps"), "fp32"),
    },
    constants={"CHUNK": CHUNK},
    elements_per_program=CHUNK,
    aligned=("partials", "starts", "ratios"),
    num_warps=NUM_WARPS,
    options=OPTIONS,
    budget=Budget(registers=64, shared_bytes=REDUCTION_BYTES),
)
