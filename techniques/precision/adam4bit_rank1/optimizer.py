"""Implements AdamW with both moments in 4 bits: Adam's step between decoding and encoding, a matrix at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from suite.kernels.sharded import local
from techniques.precision.adam4bit_rank1.codes import (
    BLOCK,
    FIRST,
    decode_rank1,
    encode_rank1,
    packed,
    unpacked,
)
from techniques.precision.shared.low_bit import LowBitAdamW, decode_blocks, encode_blocks
from techniques.shared.adam import adam_step


class AdamW4bit(LowBitAdamW):
    """Implements AdamW with 4-bit moments (Li, Chen & Zhu, NeurIPS 2023): torch's hyper-parameters. Those of two
    dimensions or more, [first, all others], and of ``smallest`` elements or more have them.

    State: ``first_codes`` and ``second_codes``, two a byte, flat; ``first_scales``, float32, one for 128 elements;
    ``second_rows`` and ``second_columns``, float32: 1 + 4 / 128 + 4 (n + m) / (n m) bytes a parameter.
    """

    least: ClassVar[int] = 4097

    def is_low_bit(self, parameter: Tensor, group: dict[str, Any]) -> bool:
        return parameter.ndim >= 2 and super().is_low_bit(parameter, group)

    def launches(self, group: dict[str, Any], parameters: Sequence[Tensor]) -> bool:
        if self.is_low_bit(parameters[0], group):  # the kernel counts columns in 32 bits, and takes no empty shard
            parts = list(map(local, parameters))
            if any(not len(part) or part.numel() // len(part) >= 2**31 for part in parts):
                return False
        return super().launches(group, parameters)

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
        from techniques.precision.adam4bit_rank1 import kernel

        beta1, beta2 = group["betas"]
        states = [moments(self.state[parameter], value) for parameter, value in zip(parameters, values, strict=True)]
        kernel.adam4bit_step(
            values,
            gradients,
            list(map(list, zip(*states))),
            self.tables(parameters, kernel.Tables),
            step=self.step_of(parameters),
            lr=group["lr"],
            beta1=beta1,
            beta2=beta2,
            eps=group["eps"],
            weight_decay=group["weight_decay"],
            **fused,
        )

    def update_low_bit(
        self, group: dict[str, Any], state: dict[str, Any], value: Tensor, gradient: Tensor, hyper: dict[str, Any]
    ) -> None:
        if not value.numel():  # another rank has all of it
            return
        p, g, count = value.view(len(value), -1), gradient.view(len(value), -1), value.numel()
        codes, scales, second, rows, columns = moments(state, value)
        m = decode_blocks(unpacked(codes, count), scales, BLOCK, FIRST).view_as(p)
        v = decode_rank1(unpacked(second, count).view_as(p), rows, columns)
        adam_step(p, g, m, v, **hyper)
        codes, state["first_scales"] = encode_blocks(m.view(-1), BLOCK, FIRST)
        second, state["second_rows"], state["second_columns"] = encode_rank1(v)
        state["first_codes"], state["second_codes"] = packed(codes), packed(second)


def moments(state: dict[str, Any], like: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Returns the parameter's state: codes and scales of both moments, those of zeros at first."""
    if "first_codes" not in state:
        count, rows = like.numel(), len(like)
        state["first_codes"] = packed(like.new_full((count,), FIRST.zero, dtype=torch.uint8))
        state["second_codes"] = torch.zeros_like(state["first_codes"])
        sizes = {"first_scales": -(-count // BLOCK), "second_rows": rows, "second_columns": count // rows}
        state |= {name: like.new_zeros(size, dtype=torch.float32) for name, size in sizes.items()}
    names = "first_codes", "first_scales", "second_codes", "second_rows", "second_columns"
    first, scales, second, rows_of, columns = (state[name] for name in names)
    return first, scales, second, rows_of, columns
