"""Implements progressive resolution (Tan & Le, EfficientNetV2, ICML 2021, section 4.2): small pictures first, whole
ones at last.

Stage i of M, from 0, each of equally many steps, trains on pictures of side

    S_i = S_0 + (S_e - S_0) i / (M - 1)

in whole patches. A vision Transformer's table of positions is resampled between the patches (Li et al., AutoProg,
CVPR 2022, section 3). Its analogue for text: rows begin short (Li et al., arXiv 2108.06084).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from suite.loop.data import Batch, Data
from suite.loop.run import Run
from suite.loop.sites import Act, Site
from suite.loop.technique import Technique
from suite.model.calls import undisturbed
from suite.model.patches import PatchGrid, patch_grid
from techniques.incremental.shared.any_size import AnySize
from techniques.incremental.shared.stages import planned_sizes, stage_at, staged


def resized(batch: Batch, side: int, patches: int, full: int) -> Batch:
    """Returns a batch with its pictures [batch, channels, ., .] at ``side``, and of what has one value for each of the
    ``full`` patches [batch, full] the first ``patches``; all else as it is."""
    return {name: _resized(tensor, side, patches, full) for name, tensor in batch.items()}


def _resized(tensor: Tensor, side: int, patches: int, full: int) -> Tensor:
    if tensor.ndim == 4:
        return F.interpolate(tensor, size=(side, side), mode="bilinear", align_corners=False, antialias=True)
    return tensor[:, :patches] if tensor.ndim == 2 and tensor.shape[1] == full else tensor


def shortened(rows: Batch, length: int) -> Batch:
    """Returns the first ``length`` tokens of rows [batch, tokens], before anything is masked."""
    return {name: row[:, :length] if row.ndim == 2 else row for name, row in rows.items()}


@dataclass
class ProgressiveResolution(Technique):
    """Trains in ``stages`` equally long stages from ``smallest`` times the whole size on, or those of the given
    ``sizes``: of pixels along a side, or of tokens in a row."""

    smallest: float = 0.5
    stages: int = 4
    sizes: tuple[int, ...] = ()
    zero_strength: ClassVar[Mapping[str, Any]] = {"stages": 1}

    resizes: Act = field(init=False, repr=False, default_factory=Act)
    total: int = field(init=False, default=0)  # examples of the run
    plan: list[int] = field(init=False, default_factory=list)  # the size of each stage
    grid: PatchGrid | None = field(init=False, repr=False, default=None)

    def __post_init__(self) -> None:
        if not 0 < self.smallest <= 1:
            raise ValueError(f"smallest is a share of the whole size, in (0, 1], not {self.smallest}")
        if self.stages < 1:
            raise ValueError(f"stages must be 1 or more, not {self.stages}")
        if list(self.sizes) != sorted(set(self.sizes)) or any(size < 1 for size in self.sizes):
            raise ValueError(f"sizes are rising, such as 4/6/8, not {'/'.join(map(str, self.sizes))}")
        self.stages = len(self.sizes) or self.stages

    def data(self, data: Data, run: Run) -> Data:
        if self.is_reference:
            return data
        self.total = run.recipe.steps * run.recipe.batch_size
        shapes = [tensor.shape for tensor in data.train.tensors.values()]
        if any(len(shape) == 4 for shape in shapes):
            return staged(data, batch=self.smaller)
        self.plan = self.planned(max(shape[1] for shape in shapes if len(shape) == 2), 1)
        return staged(data, examples=self.shorter)

    def model(self, model: nn.Module, run: Run) -> nn.Module:
        if self.is_reference or self.plan:  # rows of any length need no other model
            return model
        if run.recipe.compile:
            raise ValueError("progressive_resolution resamples positions by hooks, which no graph holds: use modern")
        grid = patch_grid(model, partial(run.trial, model))
        plan = self.planned(grid.side, grid.patch)
        AnySize(grid).attach(model)
        self.grid, self.plan = grid, plan
        try:
            with torch.no_grad(), undisturbed(model):
                run.trial(model)
        except (RuntimeError, ValueError, AssertionError) as error:
            name, side = type(model).__name__, plan[0]
            raise ValueError(f"{name} is made for one size of pictures, and fails at {side}x{side}: {error}") from error
        return model

    def planned(self, full: int, unit: int) -> list[int]:
        """Returns the size of each stage. Raises ValueError where ``sizes`` do not fit whole examples of size
        ``full``."""
        if any(size % unit for size in self.sizes) or (self.sizes and self.sizes[-1] != full):
            fitting = f"multiples of the patch, {unit}, up to {full}" if unit > 1 else f"up to {full}"
            raise ValueError(f"sizes of {'/'.join(map(str, self.sizes))} do not fit: give {fitting}, the last {full}")
        return list(self.sizes) or planned_sizes(full, unit, self.smallest, self.stages)

    def smaller(self, batch: Batch, position: int) -> Batch:
        """Returns a batch of pictures, and of what goes with their patches, at its stage's size."""
        if self.grid is None or (side := self.size(position)) == self.grid.side:
            return batch
        return resized(batch, side, (side // self.grid.patch) ** 2, self.grid.grid**2)

    def shorter(self, rows: Batch, position: int) -> Batch:
        """Returns the rows of tokens at their stage's length."""
        return shortened(rows, self.size(position))

    def size(self, position: int) -> int:
        """Returns the size of the examples after ``position``."""
        size = self.plan[stage_at(position, self.total, len(self.plan))]
        if size < self.plan[-1]:
            self.resizes()
        return size

    def sites(self, run: Run) -> Mapping[str, Site]:
        cutter = {self.grid.cutter.path: self.grid.cutter.module} if self.grid else {}
        return {"shrinks the examples": self.resizes, **cutter}
