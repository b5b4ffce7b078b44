"""Kernels for the gates' own tests: one within its budget, each other with one fault that a gate must see."""

from typing import Any

import triton
import triton.language as tl

from suite.kernels.manifest import Budget, Manifest
from suite.kernels.portable import dot, narrow


@triton.jit
def _copy(source, target, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(target + offsets, tl.load(source + offsets))


@triton.jit
def _rereading(source, target, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(source + offsets)
    tl.debug_barrier()  # else the compiler sees that it has the values already
    tl.store(target + offsets, x + tl.load(source + offsets))


@triton.jit
def _narrowing(source, target, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.store(target + offsets, narrow(tl.load(source + offsets), target.dtype.element_ty))


@triton.jit
def _product(a, b, c, BLOCK: tl.constexpr):
    rows = tl.arange(0, BLOCK)
    cells = rows[:, None] * BLOCK + rows[None, :]
    acc = dot(tl.load(a + cells), tl.load(b + cells), tl.zeros((BLOCK, BLOCK), tl.float32))
    tl.store(c + cells, narrow(acc, c.dtype.element_ty))


_WIDE = Budget(registers=64, shared_bytes=0, wide_loads=2, wide_stores=2, instructions_per_element=8)


def _copying(aligned: tuple[str, ...], kernel: Any = _copy) -> Manifest:
    return Manifest(
        kernel=kernel,
        signature={"source": "*fp32", "target": "*fp32"},
        constants={"BLOCK": 1024},
        elements_per_program=1024,
        aligned=aligned,
        budget=_WIDE,
    )


MANIFESTS = {
    "aligned": _copying(("source", "target")),
    "unaligned": _copying(()),
    "rereading": _copying(("source", "target"), _rereading),
    "narrowing": Manifest(
        kernel=_narrowing,
        signature={"source": "*fp32", "target": "*bf16"},
        constants={"BLOCK": 1024},
        elements_per_program=1024,
        aligned=("source", "target"),
        budget=Budget(wide_loads=2, wide_stores=1, instructions_per_element=8),
    ),
    "product": Manifest(
        kernel=_product,
        signature={"a": "*bf16", "b": "*bf16", "c": "*bf16"},
        constants={"BLOCK": 64},
        elements_per_program=64 * 64,
        aligned=("a", "b", "c"),
        budget=Budget(needs_hgmma=True),
    ),
}
