"""Checks and timings of FlashAttention's kernels, beside every fused attention that is installed.

Timed is a head of 128 components over 8192 tokens, where tensor cores are the floor, and ViT's 197 tokens by 64, where
memory is. A backward pass has 5 products to compute, of which the kernels compute 7.

What torch's own flash kernel is for the same target, beside what the gates say of ours: torch 2.15's code for sm_90 is
FlashAttention-2's, with Ampere's HMMA and no HGMMA. By cuobjdump, for bfloat16 and heads of 128, all variants: forth,
by tiles of 128 x 64 and four warps, 255 registers and 64 to 376 bytes of stack a thread; by 64 x 64, 180 to 202 and
none; back, by 64 x 128 and eight warps, 255 and 8 to 32 bytes; by 64 x 64, 245 to 255 and up to 32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from suite.kernels.bench import Bench, Inputs, Prepare, random_lists
from techniques.attention.flashattention import kernel
from techniques.attention.flashattention.tiled import Attention, dropout_mask

WIDTHS = (64, 47, 24, 7, 3, 1)  # of a head, the first that a size allows
LONG, LONG_64, SINGLE = (2, 16, 8192, 128), (2, 16, 8192, 64), (2, 16, 4096, 64)  # batch, heads, tokens, width
VIT = (256, 12, 197, 64)
WHOLE = (1, 2, 384, 128)  # tiles of every kernel
SHAPES = {math.prod(shape): shape for shape in (LONG, LONG_64, VIT, SINGLE, WHOLE)}
CHECKED = (0, 47 * 11, 64 * 150, math.prod(WHOLE))
DROPPED = 0.1
OPERANDS = ("query", "key", "value")
Function = Callable[[Tensor, Tensor, Tensor], Tensor]
BF16, F32 = torch.bfloat16, torch.float32


def shaped(tensor: Tensor) -> Tensor:
    """Lays a tensor out as [batch, heads, tokens, width], the heads of a token together as a layer has them."""
    size = tensor.numel()
    width = next(width for width in WIDTHS if size % width == 0)
    batch, heads, tokens, width = SHAPES.get(size, (1, 1, size // width, width))
    return tensor.view(batch, tokens, heads, width).transpose(1, 2)


def operands(inputs: Inputs) -> list[tuple[Tensor, Tensor, Tensor]]:
    lists = (map(shaped, inputs[name]) for name in OPERANDS)
    return list(zip(*lists, strict=True))


def whole(tensor: Tensor) -> Tensor:
    """Returns the numbers in the order of :func:`shaped`'s argument."""
    return tensor.transpose(1, 2).reshape(-1)


def added(tokens: int, like: Tensor) -> Tensor:
    """Builds a mask [1, 1, tokens, tokens] that is added to scores: no row is another's, and rows lie otherwise than
    columns do, so that an address by the wrong one's stride shows."""
    random = torch.Generator(like.device).manual_seed(tokens)
    columns = torch.randn(tokens, tokens + 3, generator=random, device=like.device)
    return columns[:, :tokens].T[None, None]


def probabilities(query: Tensor, key: Tensor, causal: bool, mask: Tensor | None = None) -> Tensor:
    """Computes softmax(Q K^T / sqrt(d) + mask), causal if asked for."""
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    if mask is not None:
        scores = scores + mask
    if causal:
        visible = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~visible, -math.inf)
    return scores.softmax(-1)


def settings(query: Tensor, causal: bool, masked: bool = False, dropped: bool = False) -> Attention:
    mask = added(query.shape[2], query).expand(*query.shape[:3], -1) if masked else None
    seed = torch.tensor([2**40 + 3], device=query.device) if dropped else None
    return Attention(mask, causal, 1 / math.sqrt(query.shape[-1]), DROPPED if dropped else 0.0, seed)


def forward_bench(shape: tuple[int, ...], causal: bool, dtype: torch.dtype, dropped: bool = False) -> Bench:
    def make(sizes: Sequence[int], device: torch.device, generator: torch.Generator) -> Inputs:
        return random_lists(sizes, device, generator, value=dtype, query=dtype, key=dtype)

    def prepare(inputs: Inputs) -> Callable[[], object]:
        def run() -> None:
            passes = [kernel.forward(*parts, settings(parts[0], causal, False, dropped)) for parts in operands(inputs)]
            inputs["output"] = [whole(output) for output, _ in passes]

        return run

    def reference(inputs: Inputs) -> Inputs:
        outputs = []
        for query, key, value in ([part.double() for part in parts] for parts in operands(inputs)):
            p = probabilities(query, key, causal)
            if dropped:
                tokens, form = slice(0, p.shape[2]), settings(query, causal, False, dropped)
                p = p * dropout_mask(form, p[:, :, None], tokens, tokens)[:, :, 0] / (1 - form.dropout_p)
            outputs.append(whole(p @ value))
        return {"output": outputs}

    return Bench(
        make=make,
        kernel=prepare,
        reference=reference,
        tolerance=2.0 if dtype.itemsize == 2 else 40.0,
        bytes_per_element=4 * dtype.itemsize + 4 / shape[3],
        peers={} if dropped else {name: peer(each, backward=False) for name, each in functions(causal).items()},
        multi_tensor=False,
        timed_sizes=(math.prod(shape),),
        checked_sizes=CHECKED[:-1] if dropped else CHECKED,
        flops_per_element=4 * shape[2] / (2 if causal else 1),
    )


def backward_bench(shape: tuple[int, ...], causal: bool, dtype: torch.dtype, masked: bool = False) -> Bench:
    def make(sizes: Sequence[int], device: torch.device, generator: torch.Generator) -> Inputs:
        return random_lists(sizes, device, generator, gradients=dtype, query=dtype, key=dtype, value=dtype)

    def prepare(inputs: Inputs) -> Callable[[], object]:
        calls = [(parts, settings(parts[0], causal, masked)) for parts in operands(inputs)]
        saved = [(*parts, *kernel.forward(*parts, form), form) for parts, form in calls]
        gradients = [shaped(gradient) for gradient in inputs["gradients"]]

        def run() -> None:
            results = [
                kernel.backward(query, key, value, output, logarithms, gradient, form)
                for (query, key, value, output, logarithms, form), gradient in zip(saved, gradients, strict=True)
            ]
            for name, own in zip(("d_query", "d_key", "d_value"), zip(*results, strict=True), strict=True):
                inputs[name] = [whole(gradient) for gradient in own]

        return run

    def reference(inputs: Inputs) -> Inputs:
        expected: Inputs = {"d_query": [], "d_key": [], "d_value": []}
        for parts, gradient in zip(operands(inputs), inputs["gradients"], strict=True):
            query, key, value = (part.double() for part in parts)
            mask = added(query.shape[2], query) if masked else None
            p, d_out = probabilities(query, key, causal, mask), shaped(gradient).double()
            ds = p * (d_out @ value.mT - (d_out * (p @ value)).sum(-1, keepdim=True)) / math.sqrt(query.shape[-1])
            for name, product in zip(expected, (ds @ key, ds.mT @ query, p.mT @ d_out), strict=True):
                expected[name].append(whole(product))
        return expected

    return Bench(
        make=make,
        kernel=prepare,
        reference=reference,
        # FlashAttention-3's rule: twice the unfused computation's, 6.1 to 9.3 units at WHOLE; float32 as forth
        tolerance=12.0 if dtype.itemsize == 2 else 40.0,
        bytes_per_element=8 * dtype.itemsize + 12 / shape[3],
        peers={} if masked else {name: peer(each, backward=True) for name, each in functions(causal).items()},
        multi_tensor=False,
        timed_sizes=(math.prod(shape),),
        checked_sizes=CHECKED[:-1] if masked or dtype == F32 else CHECKED,
        flops_per_element=10 * shape[2] / (2 if causal else 1),
    )


# peers --------------------------------------------------------------------------------------------------------------


def functions(causal: bool) -> dict[str, Callable[[], Function]]:
    """Returns, by name, what imports or compiles a peer, and raises where it is not there."""
    backends = {
        "flash": SDPBackend.FLASH_ATTENTION,
        "cuDNN": SDPBackend.CUDNN_ATTENTION,
        "memory-efficient": SDPBackend.EFFICIENT_ATTENTION,
    }
    return {
        **{f"SDPA {name}": partial(of_backend, backend, causal) for name, backend in backends.items()},
        "FlexAttention": partial(flex, causal),
        "flash-attn 2": partial(flash_attn, "flash_attn", causal),
        "flash-attn 3": partial(flash_attn, "flash_attn_interface", causal),
        "flash-attn 4": partial(flash_attn, "flash_attn.cute", causal),
    }


def of_backend(backend: SDPBackend, causal: bool) -> Function:
    def attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(query, key, value, is_causal=causal)

    return attention


@cache
def flex(causal: bool) -> Function:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    compiled: Any = torch.compile(flex_attention, dynamic=False)
    masks: dict[int, Any] = {}

    def attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        tokens = query.shape[2]
        if causal and tokens not in masks:
            masks[tokens] = create_block_mask(
                lambda batch, head, row, column: row >= column, None, None, tokens, tokens, query.device.type
            )
        output: Tensor = compiled(query, key, value, block_mask=masks.get(tokens))
        return output

    return attention


def flash_attn(module: str, causal: bool) -> Function:
    function: Any = __import__(module, fromlist=["flash_attn_func"]).flash_attn_func

    def attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        output = function(*(operand.transpose(1, 2) for operand in (query, key, value)), causal=causal)
        return (output[0] if isinstance(output, tuple) else output).transpose(1, 2)

    return attention


def peer(source: Callable[[], Function], backward: bool) -> Prepare:
    def prepare(inputs: Inputs) -> Callable[[], object]:
        function = source()
        gradients: AbstractContextManager[Any] = nullcontext() if backward else torch.no_grad()
        if not backward:

            def forward() -> None:
                with gradients:
                    for parts in operands(inputs):
                        function(*parts)

            return forward
        leaves = [[part.detach().requires_grad_() for part in parts] for parts in operands(inputs)]
        outputs = [function(*parts) for parts in leaves]
        d_outputs = [shaped(gradient) for gradient in inputs["gradients"]]

        def run() -> None:
            for parts, output, gradient in zip(leaves, outputs, d_outputs, strict=True):
                torch.autograd.grad(output, parts, gradient, retain_graph=True)

        return run

    return prepare


BENCHES = {
    "forward": forward_bench(LONG, False, BF16),
    "causal": forward_bench(LONG, True, BF16),
    "vit": forward_bench(VIT, False, BF16),
    "float32": forward_bench(SINGLE, False, F32),
    "dropout": forward_bench(LONG_64, False, BF16, dropped=True),
    "masked": backward_bench(SINGLE, False, F32, masked=True),
    "float32_backward": backward_bench(SINGLE, False, F32),
    "backward": backward_bench(LONG, False, BF16),
    "backward_causal": backward_bench(LONG, True, BF16),
}
