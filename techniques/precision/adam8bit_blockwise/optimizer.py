"""Implements AdamW with both moments in 8 bits: Adam's step between decoding and encoding, a stretch of blocks at a
time."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from suite.model.calls import lacks_values
from techniques.precision.adam8bit_blockwise.codes import FIRST, SECOND
from techniques.precision.shared.low_bit import LowBitAdamW, decode_blocks, encode_blocks
from techniques.shared.adam import adam_step

SMALLEST_BLOCK, LARGEST_BLOCK = 64, 2048
STRETCH = 2**18
"""Elements that are float32 at a time: few enough for a cache, and for the peak of memory."""


class AdamW8bit(LowBitAdamW):
    """Implements AdamW with 8-bit moments, block by block (Dettmers et al., ICLR 2022): torch's hyper-parameters and
    ``block``, the elements that share a scale, a power of two from 64 to 2048.

    State: ``first_codes`` and ``second_codes``, uint8 of the parameter's shape; ``first_scales`` and ``second_scales``,
    float32, one for each block of what this rank holds: 2 + 8 / block bytes a parameter.
    """

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        *,
        block: int = 2048,
        smallest: int | None = None,
        fused: bool = True,
        maximize: bool = False,
    ) -> None:
        super().__init__(
            params,
            lr,
            betas,
            eps,
            weight_decay,
            smallest=smallest,
            fused=fused,
            maximize=maximize,
            own={"block": block},
        )

    def check(self, group: dict[str, Any]) -> None:
        super().check(group)
        check_block(group["block"])

    def launch(
        self,
        group: dict[str, Any],
        parameters: list[Tensor],
        values: list[Tensor],
        gradients: list[Tensor],
        **fused: Any,
    ) -> None:
        if not self.is_low_bit(parameters[0], group):
            super().launch(group, parameters, values, gradients, **fused)
            return
        from techniques.precision.adam8bit_blockwise import kernel

        block, (beta1, beta2) = group["block"], group["betas"]
        states = [
            moments(self.state[parameter], value, block) for parameter, value in zip(parameters, values, strict=True)
        ]
        kernel.adam8bit_step(
            values,
            gradients,
            list(map(list, zip(*states))),
            self.tables(parameters, kernel.launch_tables),
            step=self.step_of(parameters),
            lr=group["lr"],
            beta1=beta1,
            beta2=beta2,
            eps=group["eps"],
            weight_decay=group["weight_decay"],
            block=block,
            **fused,
        )

    def update_low_bit(
        self, group: dict[str, Any], state: dict[str, Any], value: Tensor, gradient: Tensor, hyper: dict[str, Any]
    ) -> None:
        adam8bit_step(value, gradient, *moments(state, value, group["block"]), block=group["block"], **hyper)


def check_block(block: int) -> None:
    """Raises ValueError where kernels have no such blocks."""
    if not SMALLEST_BLOCK <= block <= LARGEST_BLOCK or block & (block - 1):
        raise ValueError(f"block must be a power of two from {SMALLEST_BLOCK} to {LARGEST_BLOCK}, not {block}")


def moments(state: dict[str, Any], like: Tensor, block: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns the parameter's state: codes and scales of both moments, those of zeros at first."""
    for name, numbers in (("first", FIRST), ("second", SECOND)):
        if f"{name}_codes" not in state:
            state[f"{name}_codes"] = torch.full_like(like, numbers.zero, dtype=torch.uint8)
            state[f"{name}_scales"] = like.new_zeros(-(-like.numel() // block), dtype=torch.float32)
    return state["first_codes"], state["first_scales"], state["second_codes"], state["second_scales"]


def adam8bit_step(
    parameter: Tensor,
    gradient: Tensor,
    first_codes: Tensor,
    first_scales: Tensor,
    second_codes: Tensor,
    second_scales: Tensor,
    *,
    block: int,
    **hyper: Any,
) -> None:
    """Makes the step of section 2 of the paper on one tensor, in place: contiguous float32 and its moments as uint8
    codes of its shape with a float32 scale for each ``block``. ``hyper`` is that of ``adam_step``."""
    p, g, first, second = (tensor.view(-1) for tensor in (parameter, gradient, first_codes, second_codes))
    begins = range(0, len(p), STRETCH)
    if lacks_values(p):  # what is only counted: the stretches between cost no more memory, and no FLOP of a product
        begins = range(0, len(p), max(STRETCH, (len(p) - 1) // STRETCH * STRETCH))
    for begin in begins:
        here, blocks = slice(begin, begin + STRETCH), slice(begin // block, (begin + STRETCH) // block)
        m = decode_blocks(first[here], first_scales[blocks], block, FIRST)
        v = decode_blocks(second[here], second_scales[blocks], block, SECOND)
        adam_step(p[here], g[here], m, v, **hyper)
        first[here], first_scales[blocks] = encode_blocks(m, block, FIRST)
        second[here], second_scales[blocks] = encode_blocks(v, block, SECOND)
