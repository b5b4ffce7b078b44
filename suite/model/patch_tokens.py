"""Finds where the patches of a picture enter a model's blocks, as tokens behind those of no patch (a class token).

Found in one pass: the convolution outside the blocks whose kernel is its stride cuts a picture into patches, and the
stack whose hidden states begin with its weights gets them. Of a model of pictures and texts that is the image tower.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn

from suite.model.anatomy import Part, anatomy
from suite.model.calls import Forward
from suite.model.inputs import beginnings

MOST_LEADING = 8  # class, distillation and register tokens


class Entrance(NamedTuple):
    """Describes the first block that gets the patches of a picture, behind ``leading`` other tokens, and how many they
    are."""

    block: Part
    leading: int
    patches: int


def patch_entrance(model: nn.Module, forward: Forward) -> Entrance:
    """Returns the entrance of ``model``, which ``forward`` shows some pictures. Raises ValueError with the reason where
    its blocks get no tokens of whole patches, or not all of them."""
    stacks, name = anatomy(model).stacks, type(model).__name__
    inside = tuple(f"{stack.path}." for stack in stacks)
    cutters = [
        module
        for path, module in model.named_modules()
        if isinstance(module, nn.Conv2d) and not path.startswith(inside) and module.kernel_size == module.stride
    ]
    if len(cutters) != 1:
        raise ValueError(f"{name} does not cut pictures into patches, side by side: use a plain vision Transformer")
    (cutter,) = cutters
    cut: list[int] = []

    def note(_: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        cut.append(output[0, 0].numel())

    hook = cutter.register_forward_hook(note)
    try:
        begun = beginnings(model, stacks, forward)
    finally:
        hook.remove()
    for stack, (hidden, parameters) in zip(stacks, begun, strict=True):
        if any(parameter is cutter.weight for parameter in parameters):
            if hidden.ndim != 3 or not 0 <= hidden.shape[1] - cut[-1] <= MOST_LEADING:
                raise ValueError(
                    f"the blocks of {name} get hidden states {list(hidden.shape)} of {cut[-1]} patches a picture: use "
                    "a model that gives them a token for each patch"
                )
            first = stack.blocks[0]
            return Entrance(Part(first.path, first.module), hidden.shape[1] - cut[-1], cut[-1])
    raise ValueError(f"no patch of a picture reaches the blocks of {name}: use a plain vision Transformer")
