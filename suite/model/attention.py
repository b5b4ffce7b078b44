"""Puts another attention function into an existing model, and fused or eager attention at will.

A block computes attention in one of three ways, found by what its code refers to: through transformers'
AttentionInterface (chosen by name in the configuration), through ``F.scaled_dot_product_attention`` behind a
``fused_attn`` flag (timm), or through ``F.scaled_dot_product_attention`` outright. Swapping touches this model's
modules only; torch stays as it is, so the new function may itself call ``F.scaled_dot_product_attention``. Nothing is
intercepted at run time: a swap costs a few attribute assignments, and a step costs nothing more.
"""

from __future__ import annotations

import inspect
import itertools
import math
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SDPA = "scaled_dot_product_attention"


OWN_TERMS = {"softcap": "a soft cap on its scores", "s_aux": "sinks beside its keys"}
"""What transformers hands to an attention function beyond softmax(scale Q K^T + mask) V, by its name there."""


class NotSwappable(ValueError):
    """Is raised where the model's attention cannot be changed from outside."""


class AttentionFunction(Protocol):
    """Computes attention of queries [batch, heads, queries, head_dim] over keys and values [batch, heads, keys,
    head_dim].

    ``mask`` broadcasts to [batch, heads, queries, keys]: bool (True takes part) or added to the scores, or None.
    ``causal`` (only with ``mask`` None) lets query i see keys 0..i. Scores are ``scale`` · query · key. ``dropout_p``
    is the probability of dropping an attention weight, 0 in evaluation. Keys and values of grouped-query attention
    come repeated to the queries' heads. Returns [batch, heads, queries, head_dim] in the queries' dtype.
    """

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        mask: Tensor | None,
        causal: bool,
        scale: float,
        dropout_p: float,
    ) -> Tensor: ...


def eager(
    query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None, causal: bool, scale: float, dropout_p: float
) -> Tensor:
    """Computes softmax(scale · Q Kᵀ + mask) V with materialised scores (Vaswani et al., 2017, eq. 1)."""
    scores = (query * scale) @ key.transpose(-2, -1)
    if causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if mask is not None:
        # not -inf: a query that may see nothing would become nan
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min) if mask.dtype == torch.bool else scores + mask
    return F.dropout(scores.softmax(-1).to(value.dtype), dropout_p) @ value


def fused(
    query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None, causal: bool, scale: float, dropout_p: float
) -> Tensor:
    """Computes attention as :func:`eager` has it, by torch's kernels."""
    return F.scaled_dot_product_attention(query, key, value, mask, dropout_p, causal, scale=scale)


class AttentionSites:
    """Holds the places in a model where its blocks compute attention.

    ``named`` are the configurations that choose transformers' function by name, ``flagged`` the modules with a
    ``fused_attn`` flag, ``direct`` all modules that call ``F.scaled_dot_product_attention`` themselves.
    """

    def __init__(self, model: nn.Module, blocks: Sequence[nn.Module]) -> None:
        self.model_name = type(model).__name__
        inside = [module for block in blocks for module in block.modules()]
        self.direct: list[Any] = [module for module in inside if SDPA in _names(module)]
        self.flagged: list[Any] = [
            module for module in self.direct if isinstance(getattr(module, "fused_attn", None), bool)
        ]
        through_interface = [module for module in inside if _uses_interface(module)]
        # masks are made above the blocks, by the configurations there: all of the model's must agree
        configurations = [vars(module).get("config") for module in model.modules()] if through_interface else []
        choosing: dict[int, Any] = {id(c): c for c in configurations if hasattr(c, "_attn_implementation")}
        self.named = list(choosing.values())
        # of these, what torch's function leaves out would be left out without a word
        self.own_kind = any(getattr(m, "_supports_sdpa", True) is False for m in model.modules() if "config" in vars(m))
        covered = {id(module) for module in (*self.direct, *through_interface)}
        self.complete = all(any(id(module) in covered for module in block.modules()) for block in blocks)

    def swap(self, function: AttentionFunction) -> None:
        """Makes ``function`` compute every block's attention; raises NotSwappable."""
        self._require("its attention function cannot be swapped")
        if self.named:
            self._choose(_registered(function))  # type: ignore[arg-type]
        for module in self.flagged:
            module.fused_attn = True
        for module in self.direct:
            original = inspect.unwrap(type(module).forward)
            module.forward = types.MethodType(_with_sdpa(original, function), module)  # type: ignore[arg-type]

    @contextmanager
    def swapped(self, function: AttentionFunction) -> Iterator[None]:
        """Does :meth:`swap` for a while; what was there before comes back."""
        names = [configuration._attn_implementation for configuration in self.named]
        flags = [module.fused_attn for module in self.flagged]
        forwards = [vars(module).get("forward") for module in self.direct]
        self.swap(function)
        try:
            yield
        finally:
            self._restore(names, flags, forwards)

    def set_fused(self, on: bool) -> None:
        """Sets fused (``F.scaled_dot_product_attention``) or eager attention; undoes a swap.

        Raises NotSwappable where fused attention is asked of a model that has none; such a model is always eager.
        """
        if not self.complete and not on:
            return
        self._require("it has no fused attention: use the recipe with eager attention (classic)")
        fused_name = _registered(fused) if self.own_kind and self.named else "sdpa"
        self._restore(
            [fused_name if on else "eager"] * len(self.named), [on] * len(self.flagged), [None] * len(self.direct)
        )
        if not on:
            for module in self.direct:
                if module not in self.flagged:
                    forward = _with_sdpa(inspect.unwrap(type(module).forward), eager)
                    module.forward = types.MethodType(forward, module)

    def _require(self, otherwise: str) -> None:
        if not self.complete:
            raise NotSwappable(
                f"{self.model_name} computes attention with its own code, neither through transformers' "
                f"AttentionInterface nor through F.{SDPA}: {otherwise}"
            )

    def _choose(self, name: str) -> None:
        for configuration in self.named:
            configuration._attn_implementation = name

    def _restore(self, names: Sequence[str], flags: Sequence[Any], forwards: Sequence[Any]) -> None:
        for configuration, name in zip(self.named, names, strict=True):
            configuration._attn_implementation = name
        for module, flag in zip(self.flagged, flags, strict=True):
            module.fused_attn = flag
        for module, forward in zip(self.direct, forwards, strict=True):
            if forward is not None:
                module.forward = forward
            elif _is_swapped(module):
                del module.forward


def _code(module: nn.Module) -> types.CodeType | None:
    return getattr(inspect.unwrap(type(module).forward), "__code__", None)


def _is_swapped(module: nn.Module) -> bool:
    """Tells whether the module has a forward of its own that is the class's code with other globals."""
    own = getattr(vars(module).get("forward"), "__func__", None)
    return own is not None and own.__code__ is _code(module)


def _names(module: nn.Module) -> tuple[str, ...]:
    """Returns the globals and attributes that the module's forward refers to."""
    code = _code(module)
    return code.co_names if code is not None else ()


# transformers -------------------------------------------------------------------------------------------------------


def _uses_interface(module: nn.Module) -> bool:
    """Tells whether the module's forward refers to an AttentionInterface."""
    library = sys.modules.get("transformers.modeling_utils")  # a model of that library has imported it
    if library is None or _code(module) is None:
        return False
    scope = inspect.unwrap(type(module).forward).__globals__
    return any(isinstance(scope.get(name), library.AttentionInterface) for name in _names(module))


_numbers = itertools.count()


@cache
def _registered(function: Any) -> str:
    """Returns the name under which transformers knows ``function``, with scaled_dot_product_attention's kind of
    masks."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

    def forward(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        dropout: float = 0.0,
        scaling: float | None = None,
        is_causal: bool | None = None,
        position_bias: Tensor | None = None,
        **others: Any,
    ) -> tuple[Tensor, None]:
        for name, term in OWN_TERMS.items():
            if others.get(name) is not None:
                raise NotSwappable(
                    f"{type(module).__name__} computes attention with {term} ({name}), which no other attention "
                    "function has: leave its attention as it is, or take a model without"
                )
        groups = query.shape[1] // key.shape[1]
        if groups > 1:
            key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
        causal = is_causal if is_causal is not None else getattr(module, "is_causal", True)
        causal = bool(causal) and attention_mask is None and query.shape[2] > 1
        if position_bias is not None:
            attention_mask, causal = _biased(position_bias, attention_mask, causal), False
        scale = scaling if scaling is not None else 1 / math.sqrt(query.shape[-1])
        output = function(query, key, value, mask=attention_mask, causal=causal, scale=scale, dropout_p=dropout)
        return output.transpose(1, 2).contiguous(), None

    name = f"leantrain_{next(_numbers)}"
    AttentionInterface.register(name, forward)
    AttentionMaskInterface.register(name, ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])
    return name


def _biased(bias: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
    """Returns a relative-position bias (T5) and a mask as one additive mask."""
    if causal:
        mask = torch.ones(bias.shape[-2:], dtype=torch.bool, device=bias.device).tril()
    if mask is None:
        return bias
    return bias.masked_fill(~mask, torch.finfo(bias.dtype).min) if mask.dtype == torch.bool else bias + mask


# F.scaled_dot_product_attention -------------------------------------------------------------------------------------


@cache
def _with_sdpa(forward: Any, function: Any) -> Callable[..., Any]:
    """Returns a function of the same code as ``forward``, in whose globals ``function`` stands for
    scaled_dot_product_attention."""

    def sdpa(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        if enable_gqa:
            groups = query.shape[1] // key.shape[1]
            key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
        factor = scale if scale is not None else 1 / math.sqrt(query.shape[-1])
        return function(query, key, value, mask=attn_mask, causal=is_causal, scale=factor, dropout_p=dropout_p)

    functional = _altered(F, **{SDPA: sdpa})
    network = _altered(nn, functional=functional)
    stand_ins: dict[int, Any] = {
        id(F.scaled_dot_product_attention): sdpa,
        id(F): functional,
        id(nn): network,
        id(torch): _altered(torch, nn=network),
    }
    referred = inspect.unwrap(forward)
    scope = {name: stand_ins.get(id(value), value) for name, value in referred.__globals__.items()}
    scope.pop("__name__", None)  # torch.compile looks globals up in the module of that name, where nothing is swapped
    copy = types.FunctionType(referred.__code__, scope, forward.__name__, referred.__defaults__, referred.__closure__)
    copy.__kwdefaults__ = referred.__kwdefaults__
    return copy


def _altered(module: types.ModuleType, **changes: Any) -> types.ModuleType:
    """Returns a copy of a module's namespace with some names bound to something else."""
    copy = types.ModuleType(module.__name__)
    copy.__dict__.update(vars(module))
    copy.__dict__.update(changes)
    return copy
