"""Launches FlashAttention's kernels: which tiles, which path; and what is refused.

Operands are [batch, heads, length, width], by any strides whose last is 1 (others are copied), or packed sequences of
uneven lengths, [1, heads, all rows, width], with :class:`Packed`. The Hopper path needs a GPU of capability 9.0 or
more, 16 bits a number, and addresses and strides that are multiples of 16 bytes; all else takes the plain path.
Triton's interpreter has both.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from suite.kernels.manifest import Budget, Manifest
from suite.kernels.portable import INTERPRET
from techniques.attention.flashattention.backward_kernel import keys_kernel, queries_kernel
from techniques.attention.flashattention.forward_kernel import (
    Dropout,
    MaskStrides,
    Sizes,
    Spans,
    Strides,
    forward_kernel,
)
from techniques.attention.flashattention.tiled import Attention, by_tokens, threshold

INTERPRETED = bool(INTERPRET.value)
WIDEST = 256  # head
NARROWEST = 16  # of a tensor core's operand; narrower heads are filled up
ALIGNED_BYTES = 16
F32 = torch.float32
POINTERS = {torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.float16: "*fp16"}


class Packed(NamedTuple):
    """Describes sequences one after the other: int32 [sequences + 1], where each begins, and the most rows of one."""

    q_starts: Tensor
    k_starts: Tensor
    longest_query: int
    longest_key: int


class Tiles(NamedTuple):
    """Holds the rows (queries) and columns (keys) of a program's tile, its warps, how many tiles are loaded ahead, and
    whether the copy engine loads them."""

    rows: int
    columns: int
    warps: int
    stages: int
    tma: bool = False


class Plan(NamedTuple):
    """Holds the tiles of the three kernels; ``causal``: of a causal forward pass, where others are faster."""

    forward: Tiles
    queries: Tiles
    keys: Tiles
    causal: Tiles | None = None


PLAIN = {
    64: Plan(Tiles(128, 64, 4, 3), Tiles(128, 64, 8, 2), Tiles(64, 128, 8, 2)),
    128: Plan(Tiles(128, 64, 8, 3), Tiles(128, 64, 8, 2), Tiles(64, 128, 8, 2)),
    256: Plan(Tiles(64, 32, 8, 2), Tiles(64, 32, 8, 2), Tiles(32, 32, 8, 2)),
}
HOPPER = {  # the fastest that an H200 ran with Triton 3.6; 256 was only checked
    64: Plan(Tiles(128, 64, 4, 3), Tiles(128, 64, 4, 3, True), Tiles(64, 64, 4, 2, True), Tiles(128, 128, 8, 2, True)),
    128: Plan(Tiles(128, 128, 8, 3), Tiles(128, 64, 8, 3, True), Tiles(64, 64, 4, 2, True), Tiles(128, 64, 4, 2, True)),
    256: Plan(Tiles(128, 64, 8, 2, True), Tiles(64, 32, 8, 2, True), Tiles(32, 32, 8, 2, True)),
}
SINGLE = {  # float32
    64: Plan(Tiles(64, 32, 4, 1), Tiles(64, 32, 4, 2), Tiles(16, 64, 4, 2)),
    128: Plan(Tiles(32, 32, 8, 2), Tiles(32, 32, 8, 2), Tiles(16, 32, 8, 2)),
    256: Plan(Tiles(32, 16, 8, 1), Tiles(32, 16, 8, 1), Tiles(16, 32, 8, 1)),
}


def filled(width: int) -> int:
    """Returns the power of two that a head of ``width`` is filled up to."""
    return max(NARROWEST, triton.next_power_of_2(width))


def refuse(query: Tensor, key: Tensor, value: Tensor, scale: float) -> None:
    """Raises ValueError for what the kernels do not take."""
    width = query.shape[-1]
    if not 1 <= width <= WIDEST or {key.shape[-1], value.shape[-1]} != {width}:
        raise ValueError(
            f"the kernels take heads of 1 to {WIDEST} components, as many in queries, keys and values, not "
            f"{width}, {key.shape[-1]} and {value.shape[-1]}: split the heads, or leave attention as it is"
        )
    if query.dtype not in POINTERS or {key.dtype, value.dtype} != {query.dtype}:
        raise ValueError(
            "the kernels take queries, keys and values of one type, float32, bfloat16 or float16, not "
            f"{query.dtype}, {key.dtype} and {value.dtype}: cast them"
        )
    if not scale > 0:
        raise ValueError(f"the kernels take a scale above 0, not {scale:g}: multiply the queries by its sign")


def hopper(*tensors: Tensor) -> bool:
    """Tells whether these run on the Hopper path."""
    first = tensors[0]
    if first.dtype.itemsize != 2 or not _has_copy_engine(first.device):
        return False
    return all(
        tensor.data_ptr() % ALIGNED_BYTES == 0
        and tensor.stride(-1) == 1
        and all(
            stride * tensor.itemsize % ALIGNED_BYTES == 0
            for size, stride in zip(tensor.shape[:-1], tensor.stride(), strict=False)
            if size > 1
        )
        for tensor in tensors
    )


def _has_copy_engine(device: torch.device) -> bool:
    return INTERPRETED or (device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0))


def plan_of(*tensors: Tensor) -> Plan:
    """Returns the tiles and the path for these operands, queries first."""
    table = HOPPER if hopper(*tensors) else PLAIN
    if tensors[0].dtype == torch.float32:
        table = SINGLE
    return table[max(64, filled(tensors[0].shape[-1]))]


def precision() -> str:
    """Tells how float32 is multiplied: by one product of tensor cores if torch's may be, else by three, near enough to
    one of float32."""
    return "tf32" if torch.backends.cuda.matmul.allow_tf32 else "tf32x3"


def forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    form: Attention,
    packed: Packed | None = None,
    key_lengths: Tensor | None = None,
    plan: Plan | None = None,
) -> tuple[Tensor, Tensor]:
    """Computes :func:`techniques.attention.flashattention.tiled.forward` by kernels. ``key_lengths``, int32 [batch],
    are of sequences that are filled up at their ends. Raises ValueError as :func:`refuse` does."""
    refuse(query, key, value, form.scale)
    q, k, v = (_by_rows(operand) for operand in (query, key, value))
    output = _like(q, packed)
    logarithms = q.new_full(q.shape[:-1], float("-inf"), dtype=torch.float32)
    if not q.numel():
        return output, logarithms
    plan = plan or plan_of(q, k, v)
    common, constants = _arguments(q, k, form, packed, key_lengths)
    sizes = common["sizes"]
    tiles = plan.causal if form.causal and plan.causal else plan.forward
    programs = triton.cdiv(sizes.queries, tiles.rows) * sizes.batches * sizes.heads
    with torch.cuda.device_of(q):
        forward_kernel[(programs,)](
            q=q,
            k=k,
            v=v,
            o=output,
            logarithms=logarithms,
            **_strides(q=q, k=k, v=v, o=output),
            **common,
            **constants,
            **_options(tiles, q.device),
        )
    return output, logarithms


def backward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    logarithms: Tensor,
    d_out: Tensor,
    form: Attention,
    packed: Packed | None = None,
    key_lengths: Tensor | None = None,
    plan: Plan | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Computes :func:`techniques.attention.flashattention.tiled.backward` by kernels."""
    q, k, v, o, d = (_by_rows(operand) for operand in (query, key, value, output, d_out))
    uneven = packed if packed is not None else key_lengths
    dq, dk, dv = _like(q, packed), _like(k, uneven), _like(v, uneven)
    if not q.numel() or not k.numel():
        return dq.zero_(), dk.zero_(), dv.zero_()
    plan = plan or plan_of(q, k, v, d)
    common, constants = _arguments(q, k, form, packed, key_lengths)
    deltas = torch.empty_like(logarithms)
    sizes = common["sizes"]
    planes = sizes.batches * sizes.heads
    with torch.cuda.device_of(q):
        tiles = plan.queries
        queries_kernel[(triton.cdiv(sizes.queries, tiles.rows) * planes,)](
            q=q,
            k=k,
            v=v,
            o=o,
            d_out=d,
            dq=dq,
            logarithms=logarithms,
            deltas=deltas,
            **_strides(q=q, k=k, v=v, o=o, d=d, dq=dq),
            **common,
            **constants,
            **_options(tiles, q.device),
        )
        tiles = plan.keys
        keys_kernel[(triton.cdiv(sizes.keys, tiles.columns) * planes // sizes.groups,)](
            q=q,
            k=k,
            v=v,
            d_out=d,
            dk=dk,
            dv=dv,
            logarithms=logarithms,
            deltas=deltas,
            **_strides(q=q, k=k, v=v, d=d, dk=dk, dv=dv),
            **common,
            **constants,
            **_options(tiles, q.device),
        )
    return dq, dk, dv


def _by_rows(tensor: Tensor) -> Tensor:
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _like(tensor: Tensor, uneven: Any) -> Tensor:
    """Allocates a tensor like this one, with 0 where not every row is written."""
    return by_tokens(tensor) if uneven is None else by_tokens(tensor).zero_()


def _strides(**tensors: Tensor) -> dict[str, Strides]:
    """Returns the strides of batch, head and row. Packed sequences are many in a single batch; of a single row a
    descriptor wants a stride that is aligned."""
    of_one = Strides(0, 0, ALIGNED_BYTES)
    return {
        f"{name}_at": Strides(
            *(
                stride if size > 1 else alone
                for alone, size, stride in zip(of_one, tensor.shape, tensor.stride(), strict=False)
            )
        )
        for name, tensor in tensors.items()
    }


def _arguments(
    q: Tensor, k: Tensor, form: Attention, packed: Packed | None, key_lengths: Tensor | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns what all kernels get: arguments, and constants."""
    mask, spans = form.mask, Spans(k_lengths=key_lengths)
    batches, queries, keys = q.shape[0], q.shape[2], k.shape[2]
    if packed is not None:
        spans = Spans(packed.q_starts, packed.q_starts.diff(), packed.k_starts, packed.k_starts.diff())
        batches, queries, keys = len(packed.q_starts) - 1, packed.longest_query, packed.longest_key
    common = {
        "mask": mask,
        "mask_at": MaskStrides() if mask is None else MaskStrides(*mask.stride()),
        "spans": spans,
        "dropout": Dropout(form.seed, 1 - form.dropout_p, threshold(form.dropout_p)),
        "l_at": Strides(0 if packed is not None else q.shape[1] * q.shape[2], q.shape[2], 1),
        "sizes": Sizes(batches, q.shape[1], q.shape[1] // k.shape[1], queries, keys),
        "scale": form.scale,
    }
    return common, {
        "CAUSAL": form.causal,
        "KEYS": mask is not None and mask.stride(2) == 0,
        "ADDED": mask is not None and mask.dtype != torch.bool,
        "DROPPED": form.seed is not None,
        "D": q.shape[-1],
        "DIM": filled(q.shape[-1]),
        "PRECISION": precision(),
    }


def _options(tiles: Tiles, device: torch.device) -> dict[str, Any]:
    """Returns the options of a launch. Descriptors that a kernel makes stand in memory that it is lent."""
    if tiles.tma and device.type == "cuda":
        triton.set_allocator(lambda size, alignment, stream: torch.empty(size, dtype=torch.int8, device=device))
    return {
        "ROWS": tiles.rows,
        "COLUMNS": tiles.columns,
        "TMA": tiles.tma,
        "num_warps": tiles.warps,
        "num_stages": tiles.stages,
    }


def _manifest(
    kernel: Any,
    tiles: Tiles,
    width: int,
    instructions_per_element: float,
    *,
    dtype: torch.dtype = torch.bfloat16,
    causal: bool = False,
    dropped: bool = False,
    masked: bool = False,
    spills: int = 0,
) -> Manifest:
    """Describes the kernel for heads that each have their own keys, which Triton compiles in; ``masked``: by a mask
    that is added."""
    constants: dict[str, Any] = {
        **{f"spans.{part}": None for part in Spans._fields},
        "sizes.groups": 1,
        "l_at.row": 1,
        "CAUSAL": causal,
        "KEYS": False,
        "ADDED": masked,
        "DROPPED": dropped,
        "D": width,
        "DIM": filled(width),
        "ROWS": tiles.rows,
        "COLUMNS": tiles.columns,
        "TMA": tiles.tma,
        "PRECISION": "tf32x3",
        **({} if dropped else {"dropout.seed": None}),
        **({} if masked else {"mask": None}),
    }
    pointers = dict.fromkeys(("q", "k", "v", "o", "d_out", "dq", "dk", "dv"), POINTERS[dtype])
    pointers |= dict.fromkeys(("logarithms", "deltas", "mask"), "*fp32")
    strides = dict.fromkeys((name for name in kernel.arg_names if name.endswith("_at")), _types_of(Strides, "i32"))
    types = {
        **pointers,
        **strides,
        "l_at": _types_of(Strides, "i32", "i32", "constexpr"),
        "mask_at": _types_of(MaskStrides, "i32"),
        "spans": _types_of(Spans, "constexpr"),
        "dropout": _types_of(Dropout, "*i64" if dropped else "constexpr", "fp32", "i32"),
        "sizes": _types_of(Sizes, "i32", "i32", "constexpr", "i32", "i32"),
        "scale": "fp32",
    }
    aligned = [f"{name}.{part}" for name in strides for part in Strides._fields if name != "l_at" or part != "row"]
    signature = {name: types[name] for name in kernel.arg_names if name in types and name not in constants}
    return Manifest(
        kernel=kernel,
        signature=signature,
        constants=constants,
        elements_per_program=tiles.rows * tiles.columns,
        aligned=(*(name for name in pointers if name in signature), *(["dropout.seed"] if dropped else []), *aligned),
        num_warps=tiles.warps,
        num_stages=tiles.stages,
        budget=Budget(instructions_per_element=instructions_per_element, needs_hgmma=True, spills=spills),
    )


def _types_of(of: Any, *types: str) -> Any:
    """Returns the named tuple with Triton's types in its places; a single one stands in all of them."""
    return of(*(types * len(of._fields) if len(types) == 1 else types))


# Instructions are of all paths through the code, over one tile's scores: what is unrolled, or done twice, shows. Some
# spill, and were faster on an H200 all the same than what does not: two of their programs share a multiprocessor. Those
# with a mask, and dropout, spill as they are: nobody has timed them.
MANIFESTS = {
    "forward": _manifest(forward_kernel, PLAIN[128].forward, 128, 72),
    "dropout": _manifest(forward_kernel, PLAIN[64].forward, 64, 112, dropped=True, spills=10),
    "forward:hopper": _manifest(forward_kernel, HOPPER[128].forward, 128, 48),
    "causal": _manifest(forward_kernel, HOPPER[128].causal or HOPPER[128].forward, 128, 54, causal=True, spills=60),
    "vit": _manifest(forward_kernel, HOPPER[64].forward, 64, 42),
    "float32": _manifest(forward_kernel, SINGLE[64].forward, 64, 190, dtype=F32),
    "masked": _manifest(forward_kernel, SINGLE[64].forward, 64, 335, dtype=F32, masked=True),
    "masked:queries": _manifest(queries_kernel, SINGLE[64].queries, 64, 370, dtype=F32, masked=True, spills=140),
    "masked:keys": _manifest(keys_kernel, SINGLE[64].keys, 64, 395, dtype=F32, masked=True, spills=30),
    "float32_backward:keys": _manifest(keys_kernel, SINGLE[64].keys, 64, 290, dtype=F32),
    "backward": _manifest(queries_kernel, HOPPER[128].queries, 128, 72),
    "backward:keys": _manifest(keys_kernel, HOPPER[128].keys, 128, 72, spills=40),
    "backward_causal:keys": _manifest(keys_kernel, HOPPER[128].keys, 128, 108, causal=True, spills=60),
}
