"""Progressive patch size: a vision Transformer trains on few large patches first, and on many small ones at last.

Pictures keep their size. From a patch of p pixels to one of p*, the kernel w that embeds a patch is PI-resized (Beyer
et al., FlexiViT, CVPR 2023, section 3.4): with B the matrix of resizing a patch from p to p*,

    w* = (B^T)^+ w = argmin E (<x, w> - <B x, w*>)^2,    so that <x, w> = <B x, w*> where p* > p

and the table of positions is resampled to the new grid of patches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from suite.loop.run import Run
from suite.loop.sites import Act, Site
from suite.loop.technique import Technique
from suite.model.anatomy import Part, anatomy
from suite.model.patches import PatchGrid, patch_grid
from techniques.incremental.shared.any_size import resampled
from techniques.incremental.shared.carried import readopt
from techniques.incremental.shared.stages import stage_at


def resizing(old: int, new: int) -> Tensor:
    """Returns the linear resizing, antialiased, of ``old`` pixels to ``new``, as a matrix float64 [new, old]."""
    rows = torch.eye(old, dtype=torch.float64)[None, None]
    return F.interpolate(rows, size=(old, new), mode="bilinear", align_corners=False, antialias=True)[0, 0].T


def pi_resized(kernel: Tensor, patch: int) -> Tensor:
    """Computes the kernel [width, channels, p, p] for patches of ``patch`` pixels: (B^T)^+ along both sides, B being
    separable. The same tensor where the patch is the same."""
    if patch == kernel.shape[-1]:
        return kernel
    inverse = torch.linalg.pinv(resizing(kernel.shape[-1], patch).T).to(kernel.device)
    return (inverse @ kernel.double() @ inverse.T).to(kernel.dtype)


@dataclass
class ProgressivePatch(Technique):
    """Trains in ``stages`` equally long stages, each with patches half as large as the one before; or those of
    ``patches``, pixels along a side."""

    stages: int = 2
    patches: tuple[int, ...] = ()
    zero_strength: ClassVar[Mapping[str, Any]] = {"stages": 1}

    growth: Act = field(init=False, repr=False, default_factory=lambda: Act(due="run"))
    plan: list[int] = field(init=False, default_factory=list)  # the patch of each stage
    grid: PatchGrid | None = field(init=False, repr=False, default=None)

    def __post_init__(self) -> None:
        if self.stages < 1:
            raise ValueError(f"stages must be 1 or more, not {self.stages}")
        if list(self.patches) != sorted(set(self.patches), reverse=True) or any(patch < 1 for patch in self.patches):
            raise ValueError(f"patches are falling, such as 8/4/2, not {'/'.join(map(str, self.patches))}")
        self.stages = len(self.patches) or self.stages

    def model(self, model: nn.Module, run: Run) -> nn.Module:
        if self.is_reference:
            return model
        if run.mesh is not None:
            raise ValueError("progressive_patch changes the model while it trains: use it in a single process")
        if run.baseline.modality != "image":
            raise ValueError(f"progressive_patch needs pictures, which {run.baseline.id} has none of")
        self.grid = patch_grid(model, partial(run.trial, model))
        self.plan = self.planned(self.grid.side, self.grid.patch)
        self.regrid(model, self.plan[0])
        try:
            run.trial(model)
        except (RuntimeError, ValueError, AssertionError) as error:
            raise ValueError(f"{type(model).__name__} is made for one size of patches: {error}") from error
        return model

    def planned(self, side: int, patch: int) -> list[int]:
        """Returns the patch of each stage. Raises ValueError where one does not divide the pictures' side."""
        plan = list(self.patches) or [patch * 2**halvings for halvings in range(self.stages - 1, -1, -1)]
        if plan[-1] != patch or any(side % patch for patch in plan):
            fitting = [divisor for divisor in range(side, patch - 1, -1) if side % divisor == 0]
            raise ValueError(
                f"patches of {'/'.join(map(str, plan))} do not fit pictures of {side}: choose of "
                f"{', '.join(map(str, fitting))}, the last {patch}"
            )
        return plan

    @torch.no_grad()
    def regrid(self, model: nn.Module, patch: int) -> None:
        """Cuts pictures into patches of ``patch`` pixels from now on."""
        assert self.grid is not None
        old: Any = self.grid.cutter.module
        like = {"device": old.weight.device, "dtype": old.weight.dtype}
        new = nn.Conv2d(old.in_channels, old.out_channels, patch, patch, bias=old.bias is not None, **like)
        new.weight.copy_(pi_resized(old.weight, patch))
        new.bias = old.bias
        anatomy(model).replace(self.grid.cutter.path, new.train(old.training))
        for path, name, extra in self.grid.tables:
            own = model.get_submodule(path)._parameters
            table: Any = own[name]
            own[name] = nn.Parameter(resampled(table, extra, self.grid.side // patch), table.requires_grad)
        for holder, name, _, other in list(self.grid.stated(self.grid.side, patch)):
            setattr(holder, name, other)
        self.grid = replace(self.grid, cutter=Part(self.grid.cutter.path, new), patch=patch)

    def after_step(self, run: Run) -> None:
        if self.grid is None:
            return
        patch = self.plan[stage_at(run.step, run.recipe.steps, len(self.plan))]
        if patch < self.grid.patch:
            self.regrid(run.model, patch)
            readopt(run)
            self.growth()

    def sites(self, run: Run) -> Mapping[str, Site]:
        cutter = {self.grid.cutter.path: self.grid.cutter.module} if self.grid else {}
        return {"smaller patches": self.growth, **cutter}

    def state(self) -> dict[str, Any]:
        return {"patch": self.grid.patch if self.grid else 0}

    def restore(self, state: dict[str, Any], run: Run) -> None:
        if self.grid is not None and state["patch"] != self.grid.patch:
            self.regrid(run.model, state["patch"])
            readopt(run)
