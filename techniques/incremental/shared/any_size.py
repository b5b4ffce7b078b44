"""Makes a vision Transformer take pictures of any size, its positions resampled between the patches.

For ``progressive_resolution`` and ``autoprog``, whose pictures grow, and ``progressive_patch``, whose grid of patches
does: its table is resampled once a stage, theirs in every pass, so that the model's own stays what it will be.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from suite.model.patches import PatchGrid, picture_of


def resampled(table: Tensor, extra: int, grid: int) -> Tensor:
    """Resamples a table of positions [1, extra + g * g, width] for ``grid`` x ``grid`` patches: bicubic between the
    patches, as it is in the extra rows. The same tensor where the grid is the same."""
    own, rows = table[:, :extra], table[:, extra:]
    old = round(rows.shape[1] ** 0.5)
    if old == grid:
        return table
    picture = rows.float().reshape(1, old, old, -1).permute(0, 3, 1, 2)
    resized = F.interpolate(picture, size=(grid, grid), mode="bicubic", align_corners=False)
    return torch.cat([own, resized.flatten(2).transpose(1, 2).to(table.dtype)], dim=1)


@dataclass
class AnySize:
    """Makes a model of ``grid`` take smaller or larger pictures too, by hooks around its forward pass.

    Meanwhile the tables are resampled, so that gradients go through to the model's own; and what states the grid says
    the other. Pictures of its own size go through as ever.
    """

    grid: PatchGrid
    undo: list[tuple[Any, str, Any]] = field(default_factory=list)

    def attach(self, model: nn.Module) -> None:
        """Registers the hooks; copies of the model have their own."""
        model.register_forward_pre_hook(self.before, with_kwargs=True)
        model.register_forward_hook(self.after, always_call=True)

    def before(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        side = picture_of(args, kwargs).shape[-1]
        if side == self.grid.side:
            return
        for holder, name, value, other in self.grid.stated(side, self.grid.patch):
            self.undo.append((vars(holder), name, value))
            vars(holder)[name] = other
        for path, name, extra in self.grid.tables:
            own = model.get_submodule(path)._parameters
            self.undo.append((own, name, own[name]))
            own[name] = resampled(own[name], extra, side // self.grid.patch)  # type: ignore[arg-type,assignment]

    def after(self, *_: Any) -> None:
        while self.undo:
            holder, name, value = self.undo.pop()
            holder[name] = value
