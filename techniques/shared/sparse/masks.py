"""Keeps masks beside weights: some of a matrix's weights are connections and train, the others are zero and stay zero.

A mask is a boolean buffer of its layer, so that saving a model and copying a block take it along. Masked weights are
zeros in dense tensors: FLOPs, bytes and time as measured do not fall. For the techniques of sparse training (``rigl``,
``set``, ``snip``, ``grasp``, ``lth_imp``, ``svite``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from suite.loop.run import Run
from suite.loop.sites import Act, Site
from suite.loop.technique import Technique
from suite.model.anatomy import Anatomy, Part, anatomy

MASK = "sparsity_mask"  # the buffer beside a masked weight
FROZEN = (
    "sparse training needs weights that train, and none of the blocks' matrices does: leave out the technique that "
    "freezes them, or this one"
)


@dataclass
class Masked(Technique):
    """Is the base of a technique whose method ``model`` masks the attention and MLP matrices of all blocks, where they
    train.

    It keeps them masked: no gradient, no update and no optimizer state outside the masks.
    """

    applied: Act = field(init=False, repr=False, default_factory=Act)

    def after_backward(self, run: Run) -> bool | None:
        if not self.is_reference:
            self.mask_gradients(run)
        return None

    @torch.no_grad()
    def mask_gradients(self, run: Run) -> None:
        """Masks gradients before they are clipped, so that the norm is that of the connections."""
        for weight, mask in masked(run.anatomy):
            if weight.grad is not None:
                weight.grad.mul_(_numbers(mask))
                self.applied()

    @torch.no_grad()
    def after_step(self, run: Run) -> None:
        if not self.is_reference:
            for weight, mask in masked(run.anatomy):
                weight.mul_(_numbers(mask))  # an optimizer may move a weight without a gradient

    def sites(self, run: Run) -> Mapping[str, Site]:
        """Returns the trained matrices. Raises ValueError where all are frozen, or ranks hold shards of their
        gradients."""
        if run.gradients_sharded:
            raise ValueError("sparse training masks whole gradients; it cannot follow a technique that shards them")
        matrices = {id(weight) for weight, _ in masked(run.anatomy)}
        weights = {
            name: trained_parameter
            for name, trained_parameter in run.trained_parameters().items()
            if id(trained_parameter) in matrices
        }
        if not weights:
            raise ValueError(FROZEN)
        return {"masks gradients": self.applied, **weights}

    def probes(self, run: Run) -> dict[str, float]:
        """Computes ``relative_flops``: what a step costs a kernel that computes nothing for zeros, over a dense one."""
        return {} if self.is_reference else {"relative_flops": density(run)}


@dataclass
class Ticket(Masked):
    """Trains the connections of ``masks``, one for each layer, from the parameters ``start`` by name, or the model's
    own."""

    masks: list[Tensor] = field(default_factory=list)
    start: dict[str, Tensor] | None = None

    @torch.no_grad()
    def model(self, model: nn.Module, run: Run) -> nn.Module:
        """Raises ValueError where the masks or parameters are another model's."""
        layers, own = prunable(model), dict(model.named_parameters())
        shapes = [_weight(layer.module).shape for layer in layers]
        if shapes != [mask.shape for mask in self.masks] or (self.start or own).keys() != own.keys():
            raise ValueError(
                "the masks are of the baseline's own layers, which another technique has changed: put the one that "
                "trains to know what to prune first"
            )
        for name, value in (self.start or {}).items():
            own[name].copy_(value)
        for layer, mask in zip(layers, self.masks, strict=True):
            attach(layer.module, mask)
        return model


def check_sparsity(sparsity: float) -> None:
    """Raises ValueError where ``sparsity`` is no share of zeros."""
    if not 0 <= sparsity < 1:
        raise ValueError(f"sparsity is the share of zeros, in [0, 1), not {sparsity}")


def prunable(model: nn.Module) -> list[Part]:
    """Finds the attention and MLP layers of all blocks that are trained, in the model's order; embeddings, norms,
    biases and the head stay dense. Raises ValueError where all layers are frozen."""
    layers = [part for part in anatomy(model).linears if _weight(part.module).requires_grad]
    if not layers:
        raise ValueError(FROZEN)
    return layers


def attach(layer: nn.Module, mask: Tensor) -> None:
    """Puts the boolean ``mask``, of the weight's shape, beside the layer's weight, and zeros what it leaves out.

    Raises ValueError where there is one already.
    """
    if getattr(layer, MASK, None) is not None:
        raise ValueError("two techniques of sparse training cannot be stacked: each masks the same weights; keep one")
    mask = mask.to(_weight(layer).device)
    _weight(layer).data.mul_(mask)
    layer.register_buffer(MASK, mask)


def masked(parts: Anatomy) -> list[tuple[nn.Parameter, Tensor]]:
    """Returns weight and mask of all attention and MLP layers that are trained, in the model's order.

    Raises ValueError where a layer came after the masks.
    """
    pairs: list[tuple[nn.Parameter, Tensor]] = []
    for path, layer in parts.linears:
        if not _weight(layer).requires_grad:
            continue
        mask = getattr(layer, MASK, None)
        if mask is None:
            raise ValueError(f"{path} has no sparsity mask: put sparse training after what made this layer")
        pairs.append((_weight(layer), mask))
    return pairs


def rewire(run: Run, weight: nn.Parameter, mask: Tensor, survivors: Tensor, new: Tensor) -> None:
    """Makes ``new`` the mask. Weights and optimizer state outside of ``survivors`` become 0: those of dropped
    connections, and those with which grown ones start."""
    for tensor in (weight, *slots(run, weight)):
        tensor.mul_(survivors)
    mask.copy_(new)


def slots(run: Run, weight: nn.Parameter) -> list[Tensor]:
    """Returns the optimizer's state tensors that hold one number per entry of ``weight``."""
    state = run.optimizer.state.get(weight, {})
    return [value for value in state.values() if isinstance(value, Tensor) and value.shape == weight.shape]


def density(run: Run) -> float:
    """Computes the share of the masked matrices' weights that are connections."""
    masks = [mask for _, mask in masked(run.anatomy)]
    return sum(int(mask.sum()) for mask in masks) / sum(mask.numel() for mask in masks)


def _numbers(mask: Tensor) -> Tensor:
    """Returns the mask as 0 and 1, in the same memory: torch multiplies by these two to three times as fast as by
    booleans."""
    return mask.view(torch.uint8)


def _weight(layer: Any) -> nn.Parameter:
    weight: nn.Parameter = layer.weight
    return weight
