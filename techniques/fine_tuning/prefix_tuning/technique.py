"""Prefix-tuning (Li & Liang, ACL 2021, section 4): keys and values before every layer's own are all that trains.

With Q, K and V of the text in layer j, its attention becomes

    attention(Q, [K_j; K], [V_j; V])        K_j, V_j [l, d] seen by every query

Trained as they are, these do badly (section 4.3): one MLP makes those of all layers, and is dropped after training,

    (K_j, V_j)_i = W_j tanh(U P'_i + u) + w_j        P' [l, d], U [512, d], W_j [2 d, 512]

so that 2 L l d numbers are kept. The text keeps its own positions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from suite.loop.run import Run
from suite.loop.sites import Site
from suite.loop.technique import Technique
from suite.model.anatomy import Anatomy, anatomy, in_features
from suite.model.attention import AttentionFunction, eager, fused
from suite.model.calls import undisturbed
from techniques.fine_tuning.shared.frozen import freeze

UNSWAPPED = (RuntimeError, ValueError, TypeError, AssertionError)


def behind_prefix(
    attention: AttentionFunction,
    prefix: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Tensor | None,
    causal: bool,
    scale: float,
    dropout_p: float,
) -> Tensor:
    """Computes ``attention`` over ``prefix`` [2, l, heads * head_dim], keys and values, and then over its own
    arguments, as :class:`AttentionFunction` has them. Every query sees all of the prefix."""
    ahead = prefix.to(key.dtype).unflatten(-1, (key.shape[1], -1)).transpose(1, 2)
    keys, values = (tensor.expand(len(key), -1, -1, -1) for tensor in ahead)
    if causal:
        mask = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool, device=key.device).tril()
    if mask is not None:
        mask = F.pad(mask.expand(*mask.shape[:-1], key.shape[2]), (prefix.shape[1], 0), value=mask.dtype == torch.bool)
    key, value = torch.cat([keys, key], dim=2), torch.cat([values, value], dim=2)
    return attention(query, key, value, mask=mask, causal=False, scale=scale, dropout_p=dropout_p)


def linear(outputs: int, inputs: int, generator: torch.Generator) -> tuple[nn.Parameter, nn.Parameter]:
    """Draws a weight [outputs, inputs] and a bias as torch's linear layers, and the authors', begin."""
    bound = inputs**-0.5
    weight = nn.init.kaiming_uniform_(torch.empty(outputs, inputs), math.sqrt(5), generator=generator)
    return nn.Parameter(weight), nn.Parameter(torch.empty(outputs).uniform_(-bound, bound, generator=generator))


class Inner(nn.Module):
    """Computes tanh(U P' + u) [l, hidden], which all layers share."""

    def __init__(self, length: int, width: int, hidden: int, generator: torch.Generator) -> None:
        super().__init__()
        self.source = nn.Parameter(torch.empty(length, width).normal_(generator=generator))
        self.weight, self.bias = linear(hidden, width, generator)

    def forward(self) -> Tensor:
        return torch.tanh(F.linear(self.source, self.weight, self.bias))


class Prefix(nn.Module):
    """Makes a layer's keys and values [2, l, size] by the MLP."""

    def __init__(self, inner: Inner, size: int, generator: torch.Generator) -> None:
        super().__init__()
        self.inner = inner
        self.weight, self.bias = linear(2 * size, len(inner.bias), generator)

    def forward(self) -> Tensor:
        return F.linear(self.inner(), self.weight, self.bias).unflatten(-1, (2, -1)).movedim(1, 0)


class KeptPrefix(nn.Module):
    """Holds a layer's keys and values [2, l, size], without the MLP."""

    def __init__(self, rows: Tensor) -> None:
        super().__init__()
        self.rows = nn.Parameter(rows)

    def forward(self) -> Tensor:
        return self.rows


def prefixes(model: nn.Module) -> dict[str, Prefix]:
    """Returns the prefixes in training, by the names of their layers' attention."""
    return {path.rpartition(".")[0]: module for path, module in model.named_modules() if isinstance(module, Prefix)}


@torch.no_grad()
def drop_mlp(model: nn.Module) -> nn.Module:
    """Puts what the MLP has made in its place; returns ``model``, which computes as before."""
    for path, prefix in prefixes(model).items():
        model.get_submodule(path).prefix = KeptPrefix(prefix())
    return model


_handed_over: list[Tensor] = []  # the prefix of the layer whose self-attention is about to be computed


def _hand_over(module: Any, args: Any) -> None:
    _handed_over[:] = [module.prefix()]


def _attend(attention: AttentionFunction, *qkv: Tensor, **settings: Any) -> Tensor:
    """Cross-attention, which runs behind a layer's self-attention, has no prefix."""
    if not _handed_over:
        return attention(*qkv, **settings)
    return behind_prefix(attention, _handed_over.pop(), *qkv, **settings)


EAGER, FUSED = partial(_attend, eager), partial(_attend, fused)


def attach(parts: Anatomy, length: int, hidden: int, use_fused: bool, generator: torch.Generator) -> None:
    """Gives the self-attention of every block a prefix, from now on."""
    parts.attention_sites.swap(FUSED if use_fused else EAGER)
    inner = Inner(length, parts.width, hidden, generator)
    for block in parts.attending_blocks:
        if block.attention_output is None:
            raise ValueError(f"{block.path} has no output layer of its attention, which tells how large its values are")
        prefix = Prefix(inner, in_features(block.attention_output.module), generator)
        block.attention.module.add_module("prefix", prefix.to(next(parts.model.parameters()).device))
        block.attention.module.register_forward_pre_hook(_hand_over)


@dataclass
class PrefixTuning(Technique):
    """``length`` is l, 0 for full fine-tuning; ``hidden`` the MLP's width: 512, and 800 for the paper's summaries."""

    length: int = 10
    hidden: int = 512
    zero_strength: ClassVar[Mapping[str, Any]] = {"length": 0}

    def __post_init__(self) -> None:
        if self.length < 0:
            raise ValueError(f"length is 1 or more, or 0 for full fine-tuning, not {self.length}")
        if self.hidden < 1:
            raise ValueError(f"hidden, the MLP's width, is 1 or more, not {self.hidden}")

    def model(self, model: nn.Module, run: Run) -> nn.Module:
        if not self.length:
            return model
        parts = anatomy(model)
        freeze(parts)
        attach(parts, self.length, self.hidden, run.recipe.fused_attention, run.generator)
        try:
            with torch.no_grad(), undisturbed(model):
                run.trial(model)
        except UNSWAPPED as error:
            raise ValueError(f"{type(model).__name__} cannot attend to a prefix of {self.length}: {error}") from error
        return model

    def sites(self, run: Run) -> Mapping[str, Site]:
        sites: dict[str, Site] = {}
        for path, prefix in prefixes(run.model).items():
            sites |= {f"{path}.prefix.{name}": parameter for name, parameter in prefix.named_parameters()}
            sites[f"{path}.prefix"] = prefix
        return sites
