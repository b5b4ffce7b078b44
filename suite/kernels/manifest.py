"""Has what a kernel's file declares about its compilation, and the machine code that it may become.

A module of kernels has a dictionary ``MANIFESTS``: name -> `Manifest`. The gates (`suite.kernels.gates`) compile each
for a GPU that need not be there, and hold the machine code against its `Budget`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

LANE_INSTRUCTIONS_PER_BYTE = 7.8
"""What an H200 issues (132 SMs, 128 lanes, 1.98 GHz) while it moves one byte at the 4.3 TB/s that a copy reaches:
a memory-bound kernel with more instructions than that is bound by them."""


@dataclass(frozen=True)
class Budget:
    """Sets limits on machine code; the defaults are a GPU's own (Hopper), and forbid spills.

    ``wide_loads`` and ``wide_stores`` are the exact numbers of 16-byte global accesses in the code. For straight-line
    code they are known (bytes a thread moves / 16), so an access that lost its width is caught, and so is a list that
    is read twice.
    """

    registers: int = 255
    spills: int = 0
    shared_bytes: int = 227 * 1024
    wide_loads: int | None = None
    wide_stores: int | None = None
    instructions_per_element: float | None = None
    needs_hgmma: bool = False


@dataclass(frozen=True)
class Manifest:
    """Describes one compilation of ``kernel`` (a ``@triton.jit`` function).

    ``signature`` maps run-time arguments to Triton's types ("*fp32", "i64", "fp32"), or named tuples of such,
    ``constants`` the constexpr ones to values; together they are all of the kernel's arguments. ``aligned`` names
    arguments that are multiples of 16. A part of a tuple is called ``sizes.groups``, and is "constexpr" in the
    signature where the constants have it.
    ``options`` are compiler options beside ``num_warps`` and ``num_stages``. ``elements_per_program`` is the number of
    elements of work that instructions are counted for.
    """

    kernel: Any
    signature: Mapping[str, Any]
    constants: Mapping[str, Any]
    elements_per_program: int
    aligned: tuple[str, ...] = ()
    num_warps: int = 4
    num_stages: int = 3
    options: Mapping[str, Any] = field(default_factory=dict)
    budget: Budget = Budget()
