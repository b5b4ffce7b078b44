"""Gathers tokens that are kept at random, in less than a pass over all of them: the masking of masked autoencoders.

Noise is drawn for each token and sorted; the tokens of its first K places are kept, in that order (``random_masking``
of He et al., arXiv 2111.06377, section 3, and of Li et al., FLIP, arXiv 2212.00794). So each row keeps exactly K, each
subset is as probable as any other, and the complement is what stands behind.

On a GPU one kernel ranks the noise, reads the tokens that are kept, adds their positions and writes them; its backward
pass scatters (:mod:`techniques.token_masking.shared.kept_kernel`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.compiler import is_compiling

TAKEN = (torch.float32, torch.bfloat16)
"""What the kernel takes."""


def kept_indices(noise: Tensor, places: range, leading: int = 0) -> Tensor:
    """Tells which tokens stand at the ``places`` of the sorted noise, int64 [batch, leading + len(places)].

    ``noise`` [batch, tokens] is finite; of equal values the first comes first. ``leading`` more tokens stand before
    those with noise (a class token): all are kept.
    """
    order = noise.argsort(dim=1, stable=True)[:, places.start : places.stop]
    first = torch.arange(leading, device=noise.device).expand(len(noise), -1)
    return torch.cat([first, order + leading], dim=1)


def kept_tokens(
    tokens: Tensor, noise: Tensor, places: range, *, positions: Tensor | None = None, leading: int = 0
) -> Tensor:
    """Returns the tokens at the ``places`` of the sorted noise, their positions added: [batch, leading + len(places),
    width].

    ``tokens`` are [batch, leading + tokens, width], ``positions`` [leading + tokens, width]; all else as in
    :func:`kept_indices`. The dtype is the wider of the two. Raises ValueError for places that leave no token, or that
    the noise does not have.
    """
    if not len(places) or places.step != 1 or not 0 <= places.start < places.stop <= noise.shape[1]:
        raise ValueError(f"of {noise.shape[1]} tokens the places {places} are none: keep one or more of them")
    if not is_compiling() and launchable(tokens, noise, positions):
        output: Tensor = KeptTokens.apply(tokens, positions, noise, places, leading)
        return output
    index = kept_indices(noise, places, leading)
    chosen = tokens.gather(1, index[..., None].expand(-1, -1, tokens.shape[2]))
    return chosen if positions is None else chosen + positions[index]


def launchable(tokens: Tensor, noise: Tensor, positions: Tensor | None) -> bool:
    """Tells whether the kernel takes these tensors."""
    streamed = (tokens,) if positions is None else (tokens, positions)
    return tokens.is_cuda and noise.dtype == torch.float32 and all(tensor.dtype in TAKEN for tensor in streamed)


class KeptTokens(torch.autograd.Function):
    """Runs the kernel's two passes. ``apply(tokens, positions, noise, places, leading)``: as :func:`kept_tokens`."""

    @staticmethod
    def forward(
        ctx: Any, tokens: Tensor, positions: Tensor | None, noise: Tensor, places: range, leading: int
    ) -> Tensor:
        from techniques.token_masking.shared import kept_kernel

        output, rows = kept_kernel.gathered(tokens, positions, noise, places, leading)
        ctx.save_for_backward(rows)
        ctx.of_tokens = tokens.dtype
        ctx.of_positions = positions.dtype if positions is not None and ctx.needs_input_grad[1] else None
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None, None, None, None]:
        from techniques.token_masking.shared import kept_kernel

        (rows,) = ctx.saved_tensors
        of_tokens, of_positions = kept_kernel.scattered(gradient.contiguous(), rows, ctx.of_tokens, ctx.of_positions)
        return of_tokens, of_positions, None, None, None
