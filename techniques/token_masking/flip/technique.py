"""FLIP: an image tower trains on some of each picture's patches (Li et al., CVPR 2023, arXiv 2212.00794, section 3).

A share r of the patches, drawn anew for each picture in each pass, is left out behind the position embedding; nothing
stands in for them, and nothing is reconstructed. Tokens of no patch stay. At the end comes a short phase without
masking, which closes the gap to evaluation, where every patch is seen:

    noise ~ U(0, 1) for each patch      blocks(cls, x_i + p_i of the floor(L (1 - r)) patches of the lowest noise)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import torch
from torch import nn

from suite.loop.run import Run
from suite.loop.sites import Act, Site
from suite.loop.technique import Technique
from suite.model.calls import undisturbed
from suite.model.patch_tokens import Entrance, patch_entrance
from suite.model.segments import split_hidden
from techniques.token_masking.shared.kept import kept_tokens

ROUNDING = 1e-9  # 0.9 of 10 patches leaves one: 10 (1 - 0.9) is a little less in floats


def kept_patches(patches: int, drop: float) -> int:
    """Computes floor(L (1 - r)). Raises ValueError where that is none."""
    count = math.floor(patches * (1 - drop) + ROUNDING)
    if count < 1:
        raise ValueError(
            f"a drop of {drop} leaves none of {patches} patches: choose at most {1 - 1 / patches:.4g}, which leaves one"
        )
    return count


@contextmanager
def dropping(entrance: Entrance, drop: float, did: Callable[[], object] = lambda: None) -> Iterator[None]:
    """While active, the blocks behind ``entrance`` get floor(L (1 - drop)) patches of each picture, at random, and all
    tokens before the patches. ``did`` is called when they are left out. Noise is torch's own, as dropout's is."""

    def enters(block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        hidden, others, rest = split_hidden(args, kwargs)
        patches = hidden.shape[1] - entrance.leading
        noise = torch.rand(len(hidden), patches, device=hidden.device)
        visible = kept_tokens(hidden, noise, range(kept_patches(patches, drop)), leading=entrance.leading)
        did()
        return (visible, *others), rest

    hook = entrance.block.module.register_forward_pre_hook(enters, with_kwargs=True)
    try:
        yield
    finally:
        hook.remove()


@dataclass
class Flip(Technique):
    """``drop`` is the share r of the patches that is left out; the last share ``tune`` of the steps sees all."""

    drop: float = 0.5
    tune: float = 0.1
    zero_strength: ClassVar[Mapping[str, Any]] = {"drop": 0.0}

    left_out: Act = field(init=False, repr=False, default_factory=Act)
    entrance: Entrance | None = field(init=False, repr=False, default=None)

    def __post_init__(self) -> None:
        if not 0 <= self.drop < 1:
            raise ValueError(f"drop is the share of the patches to leave out, in [0, 1), not {self.drop}")
        if not 0 <= self.tune < 1:
            raise ValueError(f"tune is the share of the steps that see every patch, in [0, 1), not {self.tune}")

    def model(self, model: nn.Module, run: Run) -> nn.Module:
        if self.is_reference:
            return model
        if run.baseline.modality != "image":
            raise ValueError(f"flip leaves out patches of pictures, which {run.baseline.id} has none of")
        if run.recipe.compile:
            raise ValueError("flip's hook comes and goes with its phases, which no graph holds: use modern")
        forward = partial(run.trial, model)
        self.entrance = patch_entrance(model, forward)
        kept_patches(self.entrance.patches, self.drop)
        try:
            with torch.no_grad(), undisturbed(model), dropping(self.entrance, self.drop):
                forward()
        except (RuntimeError, ValueError, IndexError, AssertionError) as error:
            raise ValueError(
                f"the blocks of {type(model).__name__} need every patch at its place (windows, positions in their "
                f"attention), and fail without some: {str(error).splitlines()[0]}"
            ) from error
        return model

    def whole_from(self, steps: int) -> int:
        """Returns the first of ``steps`` steps, from 0, in which all patches are seen."""
        return round((1 - self.tune) * steps)

    def around_step(self, run: Run) -> AbstractContextManager[Any]:
        if self.entrance is None or run.step >= self.whole_from(run.recipe.steps):
            return nullcontext()
        return dropping(self.entrance, self.drop, self.left_out)

    def sites(self, run: Run) -> Mapping[str, Site]:
        entered = {self.entrance.block.path: self.entrance.block.module} if self.entrance else {}
        return {"leaves patches out": self.left_out, **entered}
