"""Tells how many tokens stand before those of the patches in a vision Transformer's rows: class tokens, registers.

Where a row is as long as there are patches, or longer, what is more stands before them. A masked auto-encoder's row is
shorter; there its table of positions, with a row for each patch, says how many others there are.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import NamedTuple

import torch
from torch import Tensor, nn

from suite.model.anatomy import Anatomy
from suite.model.calls import Forward, undisturbed
from suite.model.patches import MOST_EXTRA, POSITIONS
from suite.model.segments import split_hidden


class PictureRow(NamedTuple):
    """Describes what the main stack reads of a picture: ``leading`` tokens before its patches, each of which was made
    of ``inputs`` numbers (channels x height x width of a patch)."""

    leading: int
    inputs: int


def picture_row(parts: Anatomy, forward: Forward) -> PictureRow:
    """Returns the row of a picture that ``forward`` shows the model. Raises ValueError where the main stack reads no
    plain row of patches."""
    name, first = type(parts.model).__name__, parts.blocks[0].module
    inside = tuple(f"{stack.path}." for stack in parts.stacks)
    cutters = [
        module
        for path, module in parts.model.named_modules()
        if isinstance(module, nn.Conv2d) and not path.startswith(inside) and module.kernel_size == module.stride
    ]
    if len(cutters) != 1:
        raise ValueError(f"{name} does not cut pictures into patches, side by side: use a plain vision Transformer")
    (cutter,) = cutters
    patches: list[int] = []
    rows: list[torch.Size] = []

    def note_row(_: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        rows.append(split_hidden(args, kwargs)[0].shape)

    def note_patches(_: nn.Module, args: object, output: Tensor) -> None:
        patches.append(output.shape[2:].numel())

    with ExitStack() as stack, torch.no_grad():
        stack.enter_context(undisturbed(parts.model))
        stack.callback(first.register_forward_pre_hook(note_row, with_kwargs=True).remove)
        stack.callback(cutter.register_forward_hook(note_patches).remove)
        parts.model.eval()
        forward()
    if len(rows) != 1 or len(patches) != 1 or len(rows[0]) != 3:
        raise ValueError(f"the blocks of {name} read no rows [batch, tokens, width]: use a plain vision Transformer")
    leading = rows[0][1] - patches[0]
    if leading < 0:
        counts = {table.shape[1] - patches[0] for table in _tables(parts.model, inside)} & set(range(MOST_EXTRA + 1))
        if len(counts) != 1:
            raise ValueError(f"cannot tell how many tokens of {name} are no patches: it has no one table of positions")
        (leading,) = counts
    return PictureRow(leading, cutter.weight[0].numel())


def _tables(model: nn.Module, inside: tuple[str, ...]) -> list[Tensor]:
    return [
        parameter
        for path, parameter in model.named_parameters()
        if not path.startswith(inside) and POSITIONS.search(path) and parameter.ndim == 3
    ]
