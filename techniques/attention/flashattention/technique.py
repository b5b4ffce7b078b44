"""Implements FlashAttention (Dao et al., NeurIPS 2022): exact attention by tiles, without the N x N matrix in memory.

    for each tile of queries, over tiles of keys:      S = scale Q K^T          m' = max(m, rowmax S)
                                                       P = exp(S - m')          l <- e^(m - m') l + rowsum P
                                                       O <- e^(m - m') O + P V
    at its end:                                        O / l is written, and L = m + log l, from which the backward pass
                                                       computes P again

The attention of every block becomes that of ``attention.py``: our own Triton kernels on a GPU (``kernel.py``), the same
tiles in torch's operators elsewhere (``tiled.py``). ``tiles.py`` is the first paper's order of loops, with every access
to slow memory counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from suite.loop.run import Run
from suite.loop.sites import Act, Site
from suite.loop.technique import Technique
from suite.model.anatomy import anatomy
from suite.model.attention import AttentionFunction, NotSwappable
from techniques.attention.flashattention.attention import flash_attention
from techniques.attention.shared.taking_over import try_out


@dataclass
class FlashAttention(Technique):
    """Computes every block's attention by our own tiles; a model with one that these do not take is refused."""

    blocks: dict[str, Act] = field(init=False, repr=False, default_factory=dict)
    swapped: Act = field(init=False, repr=False, default_factory=Act)

    def model(self, model: nn.Module, run: Run) -> nn.Module:
        parts = anatomy(model)
        blocks = {block.path: block.module for block in parts.attending_blocks}
        now: list[str] = []
        tried = {path: Act() for path in blocks}
        parts.attention_sites.swap(naming(model, calling(lambda: now and tried[now[-1]]())))  # raises NotSwappable
        with ExitStack() as stack:
            for path, module in blocks.items():
                hook = module.register_forward_pre_hook(lambda *_, path=path: now.append(path))
                stack.callback(hook.remove)
            try_out(parts, tried, lambda: run.trial(model))
        self.blocks = {path: Act(count=1) for path in blocks}
        parts.attention_sites.swap(calling(self.swapped))
        return model

    def sites(self, run: Run) -> Mapping[str, Site]:
        return {**self.blocks, "attention": self.swapped}


def calling(act: Callable[[], object]) -> AttentionFunction:
    """Returns the attention function of a model's blocks, which says with ``act`` that it computes."""

    def attention(
        query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None, causal: bool, scale: float, dropout_p: float
    ) -> Tensor:
        act()
        device = query.device.type
        if torch.is_autocast_enabled(device):  # as torch's own attention: all three in the narrow type
            query, key, value = (operand.to(torch.get_autocast_dtype(device)) for operand in (query, key, value))
        return flash_attention(query, key, value, mask=mask, causal=causal, scale=scale, dropout_p=dropout_p)

    return attention


def naming(model: nn.Module, attention: AttentionFunction) -> AttentionFunction:
    """Returns ``attention``, which names the model where the kernels refuse one of its own."""

    def named(*args: Any, **kwargs: Any) -> Tensor:
        try:
            return attention(*args, **kwargs)
        except ValueError as error:
            raise NotSwappable(
                f"flashattention does not take the attention of {type(model).__name__}: leave it as it is, or take "
                f"another model ({error})"
            ) from error

    return named
