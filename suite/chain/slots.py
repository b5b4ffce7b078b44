"""Places of saved values: a storage on the device, or in the second tier, whose views autograd's nodes ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from suite.chain.tiers import StoredTensor, Tier


class Keep(torch.autograd.Function):
    """Saves a tensor as any node does, so that hooks around the model (a user's, a meter's) see it, and a write in
    place is noticed."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, anchor: Tensor) -> Tensor:
        ctx.save_for_backward(tensor)
        return anchor.view_as(anchor)

    @staticmethod
    def backward(ctx: Any, *_: Any) -> None:  # nothing flows here
        raise NotImplementedError


class Slot:
    """Holds a storage on the device, or in the second tier; ``version`` of the tensor, where a write in place to it
    would change a gradient."""

    def __init__(self, tensor: Tensor, version: int | None = None) -> None:
        self.tensor: Tensor | None = tensor
        self.version = version
        self.holder: Tensor | None = None
        self.stored: StoredTensor | None = None

    def keep(self) -> None:
        """Hands the tensor to autograd's saved-tensor hooks, as of what a forward pass leaves behind."""
        if self.tensor is not None and self.holder is None:
            with torch.enable_grad():
                self.holder = Keep.apply(self.tensor, torch.empty(0, requires_grad=True))
            self.tensor = None

    def __del__(self) -> None:
        if self.stored is not None:  # of a pass that did not go back
            self.stored.free()

    @property
    def on_device(self) -> bool:
        return self.tensor is not None or self.holder is not None

    def get(self) -> Tensor:
        if self.holder is not None:
            (saved,) = self.holder.grad_fn.saved_tensors  # type: ignore[union-attr]
            return saved
        if self.tensor is None:
            assert self.stored is not None
            self.tensor, self.stored, self.version = self.stored.take(), None, None
        if self.version is not None and self.tensor._version != self.version:
            raise RuntimeError(
                f"one of the variables needed for gradient computation has been modified by an inplace operation: it "
                f"is of shape {list(self.tensor.shape)}, at version {self.tensor._version}, and was saved at "
                f"{self.version}"
            )
        return self.tensor

    def offload(self, tier: Tier) -> None:
        self.stored = tier.store(self.get())
        self.tensor = self.holder = None

    def wait(self) -> None:
        if self.stored is not None:
            self.stored.wait()

    def prefetch(self) -> None:
        if self.tensor is None and self.holder is None and self.stored is not None:
            self.stored.fetch()


class Packed(NamedTuple):
    slot: Slot
    size: torch.Size
    stride: tuple[int, ...]
    offset: int

    def tensor(self) -> Tensor:
        return self.slot.get().as_strided(self.size, self.stride, self.offset)


def unpacked(packed: Any) -> Tensor:
    if isinstance(packed, Tensor):
        return packed
    return packed.tensor() if isinstance(packed, Packed) else packed()


def key_of(tensor: Tensor) -> tuple[int, torch.dtype]:
    """Returns one key for all views of a storage that have its type."""
    return tensor.untyped_storage()._cdata, tensor.dtype
