"""Holds what the optimizers with low-bit states share: blocks with a scale each, and AdamW around them (for
``adam8bit_blockwise`` and ``adam4bit_rank1``).

A step decodes the moments, makes Adam's step in float32, and encodes them again (Dettmers et al., 2110.02861,
section 2; Li et al., 2309.01507, Algorithm 1). The update is made from the moments as they are before they are encoded.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from suite.kernels.optimizer import rate_of
from suite.loop.technique import ParameterGroups
from suite.model.anatomy import Anatomy
from techniques.precision.shared.dynamic_map import DynamicMap
from techniques.shared.adam import Adam

SMALLEST_SCALE = 2.0**-126
"""Of a block that is not all zeros: what is smaller has no reciprocal in float32."""


NOTHING = 2**62
"""As the least size of a low-bit parameter: none is."""


def reciprocal(scales: Tensor) -> Tensor:
    """Computes 1 / ``scales``, and 0 for those of all-zero blocks: every element of such a block gets the code of 0."""
    return torch.where(scales >= SMALLEST_SCALE, scales.reciprocal(), 0.0)


def encode_blocks(x: Tensor, block: int, numbers: DynamicMap) -> tuple[Tensor, Tensor]:
    """Returns codes, uint8 [n], and scales, float32 [ceil(n / block)], of flat float32 ``x``: each block of ``block``
    elements, the last perhaps shorter, over its own largest magnitude (2110.02861, section 2.1)."""
    blocks = pad(x, (0, -len(x) % block)).view(-1, block)
    scales = blocks.abs().amax(1)
    return numbers.encode(blocks * reciprocal(scales)[:, None]).view(-1)[: len(x)], scales


def decode_blocks(codes: Tensor, scales: Tensor, block: int, numbers: DynamicMap) -> Tensor:
    """Returns float32 [n] from what `encode_blocks` gives."""
    blocks = numbers.decode(pad(codes, (0, -len(codes) % block))).view(-1, block)
    return blocks.mul_(scales[:, None]).view(-1)[: len(codes)]


class LowBitAdamW(Adam):
    """Implements AdamW that keeps the moments of large parameters in few bits, those of others in float32.

    Large are parameters of ``smallest`` elements or more, by default :attr:`least`, unless their group says
    ``"low_bit": False`` (embeddings). Subclasses say in :meth:`update_low_bit` how one of them is updated.
    """

    least: ClassVar[int] = 4096

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        *,
        smallest: int | None = None,
        fused: bool = True,
        maximize: bool = False,
        own: Mapping[str, Any] | None = None,
    ) -> None:
        self._own = {"low_bit": True, "smallest": self.least if smallest is None else smallest, **(own or {})}
        super().__init__(params, lr, betas, eps, weight_decay, decay="decoupled", fused=fused, maximize=maximize)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        self.defaults.update(self._own)
        super().add_param_group({**self._own, **param_group})

    def check(self, group: dict[str, Any]) -> None:
        super().check(group)
        check_smallest(group["smallest"])

    def is_low_bit(self, parameter: Tensor, group: dict[str, Any]) -> bool:
        """Tells whether the moments of this parameter have few bits. A query."""
        return bool(group["low_bit"]) and parameter.numel() >= group["smallest"] and not parameter.dtype.itemsize > 4

    def split_by(self, parameter: Tensor, group: dict[str, Any]) -> Hashable:
        return self.is_low_bit(parameter, group)

    def update(
        self, group: dict[str, Any], parameters: list[Tensor], values: list[Tensor], gradients: list[Tensor]
    ) -> None:
        if not self.is_low_bit(parameters[0], group):
            super().update(group, parameters, values, gradients)
            return
        beta1, beta2 = group["betas"]
        hyper: dict[str, Any] = {
            "step": self.step_of(parameters).item(),
            "learning_rate": rate_of(group),
            "beta1": beta1,
            "beta2": beta2,
            "eps": group["eps"],
            "weight_decay": group["weight_decay"],
            "decay": "decoupled",
        }
        for parameter, value, gradient in zip(parameters, values, gradients, strict=True):
            whole = value.contiguous()
            self.update_low_bit(group, self.state[parameter], whole, gradient.contiguous(), hyper)
            if whole is not value:
                value.copy_(whole)

    def update_low_bit(
        self, group: dict[str, Any], state: dict[str, Any], value: Tensor, gradient: Tensor, hyper: dict[str, Any]
    ) -> None:
        """Makes Adam's step on one parameter, contiguous float32, and its ``state``, in place; ``hyper`` is that of
        ``adam_step``."""
        raise NotImplementedError


def check_smallest(smallest: int) -> None:
    """Raises ValueError for a least size of low-bit parameters below 1."""
    if smallest < 1:
        raise ValueError(f"smallest, the elements of a parameter with low-bit moments, is 1 or more, not {smallest}")


def embeddings_apart(groups: ParameterGroups, parts: Anatomy) -> ParameterGroups:
    """Returns the groups, with the embedding tables in groups of their own that stay 32-bit."""
    tables = {id(part.module.weight) for part in parts.embeddings}
    split: ParameterGroups = []
    for group in groups:
        embeddings = [parameter for parameter in group["params"] if id(parameter) in tables]
        rest = [parameter for parameter in group["params"] if id(parameter) not in tables]
        split += [group | {"params": rest}] if rest else []
        split += [group | {"params": embeddings, "low_bit": False}] if embeddings else []
    return split
