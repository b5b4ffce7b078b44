"""Masked autoencoder: the encoder sees the visible patches alone (He et al., CVPR 2022, arXiv 2111.06377, section 3).

Noise is drawn for each patch; the int(L (1 - r)) of the lowest noise stay, with their positions, and the encoder gets
those. Mask tokens join behind it, in a lightweight decoder. In the paper's ablation (table 1c, "encoder w/ [M]") the
encoder gets every patch's place: those that are masked as a learned token plus their position,

    encoder(cls, x_i + p_i of visible i)                                    the paper's
    encoder(cls, x_i + p_i of visible i, [M] + p_j of masked j)             ``encoder=all``

and all of its outputs go on to the decoder. That is what the saving is measured against.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from suite.loop.run import Run
from suite.loop.sites import Act, Site
from suite.loop.technique import Technique
from suite.model.anatomy import anatomy
from suite.model.calls import Forward, calls
from suite.model.patches import Table, patch_grid
from suite.model.segments import split_hidden
from techniques.token_masking.shared.kept import kept_tokens

TOKEN_STD = 0.02  # of a fresh token, as the decoder's own


def with_mask_tokens(visible: Tensor, token: Tensor, positions: Tensor, noise: Tensor, leading: int) -> Tensor:
    """Returns what an encoder of all places gets, [batch, leading + patches, width]: ``visible`` [batch, leading +
    kept, width], then ``token`` [width] with the ``positions`` [patches, width] of the masked patches, in the order of
    their ``noise`` [batch, patches]. That is the order in which a decoder puts all patches back."""
    count, patches = visible.shape[1] - leading, noise.shape[1]
    if count == patches:
        return visible
    tokens = token.expand(len(noise), patches, -1)
    masked = kept_tokens(tokens, noise, range(count, patches), positions=positions)
    return torch.cat([visible, masked.to(visible.dtype)], dim=1)


class MaskTokens(nn.Module):
    """Holds the token that stands for masked patches in an encoder, and the hooks that put it there.

    ``table`` has the positions that the encoder adds, behind its ``leading`` rows of other tokens.
    """

    def __init__(self, table: Table, width: int) -> None:
        super().__init__()
        self.table = table
        self.token = nn.Parameter(torch.empty(width).normal_(std=TOKEN_STD))
        self.now: tuple[Tensor, Tensor] | None = None  # the pass's noise, and positions of the patches

    def begins(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Runs before the model's forward pass: positions are read anew, as another technique may resample them."""
        path, name, leading = self.table
        self.now = noise_of(args, kwargs), model.get_submodule(path)._parameters[name][0, leading:]  # type: ignore[index]

    def enters(self, block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Puts mask tokens in their places before the encoder's first block."""
        visible, others, rest = split_hidden(args, kwargs)
        assert self.now is not None
        noise, positions = self.now
        return (with_mask_tokens(visible, self.token, positions, noise, self.table.extra), *others), rest


def noise_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor:
    """Finds the noise [batch, patches] among a model's arguments. Raises ValueError where there is none."""
    matrices = [
        argument for argument in (*args, *kwargs.values()) if isinstance(argument, Tensor) and argument.ndim == 2
    ]
    if len(matrices) != 1:
        raise ValueError("the model gets no noise to draw its mask with: mae is for masked autoencoders (-b mae)")
    return matrices[0]


class Masking(NamedTuple):
    """Counts ``patches`` of a picture, those that the encoder gets, and the tokens that stand before them."""

    patches: int
    visible: int
    leading: int


def masking(model: nn.Module, forward: Forward) -> Masking:
    """Finds what one pass shows. Raises ValueError where the model is no masked autoencoder, or leaves out all, or
    none."""
    stacks = anatomy(model).stacks
    if len(stacks) != 2:
        raise ValueError(f"{type(model).__name__} has no encoder and decoder: mae is for masked autoencoders")
    counts: list[int] = []
    hook = model.register_forward_pre_hook(
        lambda _, args, kwargs: counts.append(noise_of(args, kwargs).shape[1]), with_kwargs=True
    )
    try:
        passed = calls(model, [stack.blocks[0] for stack in stacks], forward)
    finally:
        hook.remove()
    inside, behind = (split_hidden(call.args, dict(call.kwargs))[0].shape[1] for call in passed)
    patches = counts[0]
    leading = behind - patches
    if inside == leading:
        raise ValueError(
            f"all {patches} patches are masked, so that the encoder has nothing to see: choose a mask ratio r of at "
            f"most {1 - 1 / patches:.4g}, which leaves int({patches} (1 - r)) = 1"
        )
    if inside == behind:
        raise ValueError(f"none of the {patches} patches is masked, so that nothing is predicted: raise the mask ratio")
    return Masking(patches, inside - leading, leading)


@dataclass
class Mae(Technique):
    """``encoder`` says whether it gets the ``visible`` patches, or ``all``, masked ones as mask tokens."""

    encoder: Literal["visible", "all"] = "visible"
    zero_strength: ClassVar[Mapping[str, Any]] = {"encoder": "all"}  # its reference

    left_out: Act = field(init=False, repr=False, default_factory=Act)

    def model(self, model: nn.Module, run: Run) -> nn.Module:
        forward = partial(run.trial, model)
        masking(model, forward)
        if self.encoder == "visible":
            self.left_out()  # the model does so by itself
            return model
        main = anatomy(model).main
        tables = patch_grid(model, forward).tables
        table = next(
            table for table in tables if model.get_parameter(f"{table.path}.{table.name}").shape[2] == main.width
        )
        tokens = MaskTokens(table, main.width).to(run.device)
        model.add_module("encoder_mask_tokens", tokens)
        model.register_forward_pre_hook(tokens.begins, with_kwargs=True)
        main.blocks[0].module.register_forward_pre_hook(tokens.enters, with_kwargs=True)
        return model

    def sites(self, run: Run) -> Mapping[str, Site]:
        blocks: dict[str, Site] = {block.path: block.module for block in run.anatomy.blocks}
        return {**blocks, "leaves masked patches out of the encoder": self.left_out}
