"""Launches one kernel for any number of tensors (multi-tensor apply): a program finds its tensor in a table of
addresses.

An optimizer's step is elementwise over lists of tensors (parameters, momenta, gradients) of which there are hundreds,
many tiny. A launch for each would cost more than the arithmetic. Here the grid runs over fixed-size blocks of all of
them together, and two device tensors say what each program works on:

    table   int64 [lists + 1, tensors]   address of each tensor, list by list; the last row: elements of each tensor
    blocks  int64 [programs]             tensor << 32 | chunk

A kernel plugs in with `over_block`, which hands its own function the block's pointers, or with the device functions
beneath. `LaunchTables` keeps the tables between steps and uploads only the rows that changed.
"""

# Triton types a kernel's arguments at the launch.
# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter, is_

import torch
import triton
import triton.language as tl
from torch import Tensor

from suite.device.pinned import staged
from suite.kernels.portable import INTERPRET

VECTOR_BYTES = tl.constexpr(16)
"""The widest load of a thread, and the alignment that it needs."""


@triton.jit
def block(blocks, BLOCK: tl.constexpr):
    """Returns this program's tensor, and the index of its first element there (int64: tensors may exceed 2**31
    elements)."""
    packed = tl.load(blocks + tl.program_id(0))
    return packed >> 32, (packed & 0xFFFFFFFF) * BLOCK


@triton.jit
def address(table, row, tensor, tensors):
    """Returns the address of ``tensor`` in the list that is the table's ``row``, int64."""
    return tl.load(table + row * tensors + tensor)


@triton.jit
def elements(table, LISTS: tl.constexpr, tensor, tensors):
    """Returns the number of elements of ``tensor``, int64."""
    return tl.load(table + LISTS * tensors + tensor)


@triton.jit
def vectorizable(addresses_or, remaining, BLOCK: tl.constexpr):
    """Tells whether the block is whole and all its addresses (given by their bitwise or) are aligned for 16-byte
    accesses.

    Uniform over the program. Asked here and not on the host, so that a gradient which moves to a misaligned address
    between two steps costs nothing to notice.
    """
    return (remaining >= BLOCK) & (addresses_or % VECTOR_BYTES == 0)


@triton.jit
def pointer(address, DTYPE: tl.constexpr, ALIGNED: tl.constexpr):
    """Returns ``address`` as a pointer to ``DTYPE``; ``ALIGNED`` promises 16-byte alignment, and is what makes loads
    wide."""
    start = address.to(tl.pointer_type(DTYPE))
    if ALIGNED:
        # On the cast, which is this call's own: on ``address`` the promise would be lost, or bind the other path too.
        start = tl.multiple_of(start, VECTOR_BYTES)
    return start


@triton.jit
def addresses(table, ROWS: tl.constexpr, tensor, tensors):
    """Returns the addresses of ``tensor`` in the lists that are the table's ``ROWS``, and their bitwise or."""
    column = ()
    bits = 0
    for number in tl.static_range(len(ROWS)):
        column += (address(table, ROWS[number], tensor, tensors),)  # type: ignore[assignment]
        bits |= column[number]
    return column, bits


@triton.jit
def pointers(addresses, first, ROWS: tl.constexpr, DTYPES: tl.constexpr, ALIGNED: tl.constexpr):
    """Returns a `pointer` to the element ``first`` at each of the ``addresses``, whose lists are the table's
    ``ROWS``."""
    starts = ()
    for number in tl.static_range(len(ROWS)):
        starts += (pointer(addresses[number], DTYPES[ROWS[number]], ALIGNED) + first,)  # type: ignore[assignment]
    return starts


@triton.jit
def over_block(
    function: tl.constexpr,
    arguments,
    table,
    blocks,
    tensors,
    ROWS: tl.constexpr,
    DTYPES: tl.constexpr,
    BLOCK: tl.constexpr,
    PIECE: tl.constexpr,
):
    """Calls ``function(pointers, place, *arguments)`` over this program's block, by wide accesses if it is
    `vectorizable`.

    ``pointers`` are to the block's first elements in the lists ``ROWS``; ``DTYPES`` are those of all the table's lists.
    ``place`` is the tensor's number, the index of its element that the pointers are to, offsets from there, and a mask.
    """
    tensor, first = block(blocks, BLOCK)
    column, bits = addresses(table, ROWS, tensor, tensors)
    remaining = elements(table, len(DTYPES), tensor, tensors) - first
    if vectorizable(bits, remaining, BLOCK):
        place = (tensor, first, tl.arange(0, BLOCK), tl.full((BLOCK,), True, tl.int1))
        function(pointers(column, first, ROWS, DTYPES, True), place, *arguments)
    else:
        # In smaller pieces: a short tensor costs no more of them than it fills, and the registers stay the fast path's.
        for start in range(0, BLOCK, PIECE):
            if start < remaining:
                offsets = start + tl.arange(0, PIECE)
                place = (tensor, first, offsets, offsets < remaining)
                function(pointers(column, first, ROWS, DTYPES, False), place, *arguments)


def pack_blocks(sizes: Iterable[int], block: int) -> array[int]:
    """Returns ``tensor << 32 | chunk`` for each ``block`` elements, or part of it, of tensors with ``sizes``
    elements."""
    packed = array("q")
    for tensor, size in enumerate(sizes):
        packed.extend(range(tensor << 32, (tensor << 32) + -(-size // block)))
    return packed


@dataclass
class Group:
    """Describes one launch: the tensors of one device and one combination of dtypes (``dtypes``, by row of the
    table)."""

    dtypes: tuple[torch.dtype, ...]
    members: list[int]
    table: Tensor
    blocks: Tensor

    @property
    def tensors(self) -> int:
        return len(self.members)

    @property
    def programs(self) -> int:
        return self.blocks.numel()

    @cached_property
    def starts(self) -> Tensor:
        """Returns where each tensor's programs begin, and the last one's end: int64 [tensors + 1], on the device."""
        return torch.searchsorted(self.blocks >> 32, torch.arange(self.tensors + 1, device=self.blocks.device))


class LaunchTables:
    """Keeps the launch tables of lists of tensors that are mostly the same from step to step.

    ``block`` is the number of elements that a program works on. One instance serves one optimizer's parameter group. It
    keeps references to the lasting lists (parameters, state), which the optimizer owns anyway, and never to the passing
    ones (gradients), whose memory must be free to go between steps.

    Addresses are read at every step: ``p.data = ...`` moves a tensor without making a new one, and a new tensor may
    have an old one's ``id``. So are dtype, size and contiguity of passing tensors, which may be others in the same
    memory, or the same laid out anew. The rest is read again when something of that differs; so a lasting tensor that
    gets another size, dtype or layout must be another object, or move. Each reading costs the host some 50 ns a tensor.
    """

    def __init__(self, block: int) -> None:
        if block <= 0 or block & (block - 1):
            raise ValueError(f"block is {block}: give a power of two, as Triton's ranges need")
        self.block = block
        self._lasting: list[list[Tensor]] = []
        self._addresses: list[list[int]] = []
        self._passing_layouts: list[tuple[list[torch.dtype], list[int]]] = []
        self._passing_devices: list[list[int]] = []
        self._groups: list[Group] = []

    def groups(self, lasting: Sequence[Sequence[Tensor]], passing: Sequence[Sequence[Tensor]]) -> list[Group]:
        """Returns the launches for equally long lists of contiguous tensors: rows are the lasting lists, then the
        passing ones.

        In the usual case (one device, one dtype in each list) that is one group; none where all tensors are empty.

        Raises ValueError for lists of unequal length, for tensors that differ in size or device within a column, are
        not contiguous or without memory of their own, or are repeated within a lasting list (two programs would race),
        and RuntimeError for device tensors under the interpreter.
        """
        addresses = [list(map(Tensor.data_ptr, tensors)) for tensors in (*lasting, *passing)]
        layouts = [(list(map(_dtype, tensors)), list(map(_size_bytes, tensors))) for tensors in passing]
        if (
            not self._keeps(lasting)
            or layouts != self._passing_layouts
            or addresses[: len(lasting)] != self._addresses[: len(lasting)]
            or not self._follow(len(lasting), passing, addresses)
        ):
            self._lasting = []  # so that a list which is refused now is looked at again next time
            self._build([*lasting, *passing], addresses, len(lasting))
            self._passing_devices = list(map(_devices, passing))
            self._lasting = [list(tensors) for tensors in lasting]
        self._addresses, self._passing_layouts = addresses, layouts
        return self._groups

    def _keeps(self, lasting: Sequence[Sequence[Tensor]]) -> bool:
        return len(lasting) == len(self._lasting) and all(
            len(new) == len(old) and all(map(is_, new, old)) for new, old in zip(lasting, self._lasting)
        )

    def _follow(self, first_row: int, passing: Sequence[Sequence[Tensor]], addresses: list[list[int]]) -> bool:
        """Upload the passing lists that moved; False where more than their addresses changed."""
        moved = []
        for row, (tensors, devices) in enumerate(zip(passing, self._passing_devices), first_row):
            if not all(map(Tensor.is_contiguous, tensors)):
                return False
            if addresses[row] != self._addresses[row]:
                if _devices(tensors) != devices:
                    return False
                moved.append(row)
        for row in moved:
            for group in self._groups:
                values = array("q", (addresses[row][member] for member in group.members))
                group.table[row].copy_(_staged(values, group.table.device), non_blocking=True)
        return True

    def _build(self, lists: list[Sequence[Tensor]], addresses: list[list[int]], lasting: int) -> None:
        _check(lists, addresses, lasting)
        sizes = list(map(Tensor.numel, lists[0]))
        groups: dict[tuple[torch.device, tuple[torch.dtype, ...]], list[int]] = {}
        for tensor, dtypes in enumerate(zip(*(map(_dtype, tensors) for tensors in lists))):
            if sizes[tensor]:
                groups.setdefault((lists[0][tensor].device, dtypes), []).append(tensor)
        self._groups = []
        for (device, dtypes), members in groups.items():
            rows = array("q", (row[member] for row in (*addresses, sizes) for member in members))
            blocks = pack_blocks((sizes[member] for member in members), self.block)
            self._groups.append(
                Group(
                    dtypes=dtypes,
                    members=members,
                    table=_uploaded(rows, device).view(len(lists) + 1, len(members)),
                    blocks=_uploaded(blocks, device),
                )
            )


_dtype = attrgetter("dtype")
_size_bytes = attrgetter("nbytes")


def _devices(tensors: Sequence[Tensor]) -> list[int]:
    """Returns the devices' numbers, because comparing ``torch.device`` objects takes twice the time."""
    return list(map(Tensor.get_device, tensors))


def _check(lists: list[Sequence[Tensor]], addresses: list[list[int]], lasting: int) -> None:
    lengths = [len(tensors) for tensors in lists]
    if len(set(lengths)) != 1:
        raise ValueError(f"the lists have {lengths} tensors: give as many of each, leaving out what has no gradient")
    for column, tensors in enumerate(zip(*lists)):
        if len({tensor.shape for tensor in tensors}) != 1:
            raise ValueError(
                f"tensors {column} have shapes {[tuple(tensor.shape) for tensor in tensors]}: make them equal"
            )
        if len({tensor.device for tensor in tensors}) != 1:
            raise ValueError(f"tensors {column} are on {[str(tensor.device) for tensor in tensors]}: move them to one")
        for row, tensor in enumerate(tensors):
            if not tensor.is_contiguous():
                raise ValueError(
                    f"tensor {column} of list {row} has strides {tensor.stride()} for shape {tuple(tensor.shape)}: "
                    "give contiguous tensors"
                )
            if tensor.numel() and not addresses[row][column]:
                raise ValueError(
                    f"tensor {column} of list {row} ({type(tensor).__name__}) has no memory of its own: "
                    "give local tensors, e.g. DTensor.to_local()"
                )
            if INTERPRET.value and tensor.device.type != "cpu":
                raise RuntimeError(
                    f"kernels are interpreted in this process, which cannot follow addresses on {tensor.device}: "
                    "unset TRITON_INTERPRET, or use CPU tensors"
                )
    for row in range(lasting):
        filled = [address for address, tensor in zip(addresses[row], lists[row]) if tensor.numel()]
        if len(set(filled)) != len(filled):
            raise ValueError(f"list {row} has the same tensor twice, which would be updated twice: give each once")


def _staged(values: array[int], device: torch.device) -> Tensor:
    return staged(torch.frombuffer(values, dtype=torch.int64), device)


def _uploaded(values: array[int], device: torch.device) -> Tensor:
    return _staged(values, device).to(device, non_blocking=True)
