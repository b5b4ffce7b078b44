"""Has what techniques share that keep some pairs of queries and keys, and leave the others out of the softmax.

A technique says which pairs of one attention it keeps (:meth:`MaskedAttention.pair_mask`). Every attention of the
model's blocks then runs over these, by the function that :mod:`suite.model.attention` puts there: :class:`KeptPairs` in
training and evaluation, :class:`KeptInEvaluation` in evaluation alone, where the paper approximates a model that was
trained without it.
Which block computes is told by a hook on its attention module; what a technique knows of a block stands in buffers of
that module, so that copies of the model, saved states and resumed runs have it. Attention outside of these modules
(of a decoder over an encoder) stays dense. At attachment one pass is tried: what does not fit the model is said then.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from suite.loop.run import Run
from suite.loop.sites import Act, Site
from suite.loop.technique import Technique
from suite.model.anatomy import anatomy
from suite.model.attention import AttentionFunction, eager
from suite.model.calls import lacks_values
from techniques.attention.shared.kept_pairs import Pairs, kept_attention, pairs_of, worth
from techniques.attention.shared.taking_over import try_out


@dataclass
class MaskedAttention(Technique):
    """Serves as the base of a technique that masks attention."""

    takes: ClassVar[str] = "chooses the pairs that attend"
    acts: dict[str, Act] = field(init=False, repr=False, default_factory=dict)
    now: tuple[str, nn.Module] | None = field(init=False, repr=False, default=None)  # the attention that computes
    came: Tensor | None = field(init=False, repr=False, default=None)  # its input [batch, tokens, model width]
    function: AttentionFunction = field(init=False, repr=False)  # the one that models get
    seen: list[Mapping[str, float]] | None = field(init=False, repr=False, default=None)  # while masks are described

    def __post_init__(self) -> None:
        self.function = masked_by(self)

    def pair_mask(self, layer: nn.Module, pairs: Pairs) -> Tensor:
        """Returns bool [batch, heads, queries, keys]: the pairs that the attention module ``layer`` keeps, visible ones
        only. Called without gradients."""
        raise NotImplementedError

    def prepared(self, layer: nn.Module, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the queries and keys of the attention module ``layer`` as its scores get them: as they are."""
        return query, key

    def attach(self, model: nn.Module) -> None:
        """Puts masked attention into all blocks of ``model``. Raises NotSwappable where it computes its own."""
        parts = anatomy(model)
        for block in parts.attending_blocks:
            self.follow(block.attention.path, block.attention.module)
        parts.attention_sites.swap(self.function)

    def tried(self, model: nn.Module, run: Run) -> None:
        """Tries one pass with the technique's own masks. Raises ValueError where it does not fit the model."""
        parts = anatomy(model)
        called = {block.path: self.acts[block.attention.path] for block in parts.attending_blocks}
        try_out(parts, called, lambda: run.trial(model))

    def follow(self, path: str, attention: nn.Module) -> tuple[RemovableHandle, RemovableHandle]:
        """Notes when an attention module computes. Closures, which copies of the module share."""

        def begins(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self.now = (path, module)
            self.came = next(
                argument for argument in (*args, *kwargs.values()) if isinstance(argument, Tensor)
            ).detach()

        def ends(*_: Any) -> None:
            self.now = self.came = None

        return attention.register_forward_pre_hook(begins, with_kwargs=True), attention.register_forward_hook(ends)

    def attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        mask: Tensor | None,
        causal: bool,
        scale: float,
        dropout_p: float,
    ) -> Tensor:
        """Computes attention as the function of the model's blocks
        (:class:`suite.model.attention.AttentionFunction`)."""
        if self.now is None or not query.shape[-2] * key.shape[-2]:
            return eager(query, key, value, mask=mask, causal=causal, scale=scale, dropout_p=dropout_p)
        path, layer = self.now
        if key.shape[1] == 1:  # one for all heads
            key, value = (operand.expand(-1, query.shape[1], -1, -1) for operand in (key, value))
        query, key = self.prepared(layer, query, key)
        pairs = pairs_of(query, key, mask, causal, scale)
        with torch.no_grad(), torch.autocast(query.device.type, enabled=False):
            pair_mask = self.pair_mask(layer, pairs)
            if self.seen is not None:
                self.seen.append(self.described(pairs, value, pair_mask))
        if path in self.acts:
            self.acts[path]()
        return self.attend(pairs, value, pair_mask, dropout_p)

    def attend(self, pairs: Pairs, value: Tensor, mask: Tensor, dropout_p: float) -> Tensor:
        """Computes attention over the pairs in ``mask``, in the dtype of ``value``."""
        return kept_attention(pairs, value, mask, dropout_p)

    def sites(self, run: Run) -> Mapping[str, Site]:
        return self.acts

    def described(self, pairs: Pairs, value: Tensor, mask: Tensor) -> Mapping[str, float]:
        """Returns what :meth:`probes` says of one mask: the fields of :class:`Worth`, the ``tokens`` of its rows, and
        what a subclass adds."""
        return {**worth(pairs, value, mask)._asdict(), "tokens": float(pairs.longest)}

    def probes(self, run: Run) -> Mapping[str, float]:
        """Returns the means over the blocks' masks for a validation batch."""
        if self.is_reference:
            return {}
        batch = run.data.held_out("validation", run.baseline.recipe_of(run.job.setting).batch_size)[0]
        seen: list[Mapping[str, float]] = []
        with run.predicting() as predict:
            self.seen = seen
            try:
                predict({name: tensor.to(run.device) for name, tensor in batch.items()})
            finally:
                self.seen = None
        return {name: fmean(call[name] for call in seen) for name in seen[0]}


@dataclass
class KeptPairs(MaskedAttention):
    """Serves as the base of a technique whose model trains and is evaluated over the pairs that it keeps."""

    def model(self, model: nn.Module, run: Run) -> nn.Module:
        if not self.is_reference:
            self.acts = {block.attention.path: Act() for block in anatomy(model).attending_blocks}
            self.attach(model)
            self.equip(model, run)
            self.tried(model, run)
        return model

    def equip(self, model: nn.Module, run: Run) -> None:
        """Gives the attention modules what the masks need beyond what :meth:`attach` puts there."""


@dataclass
class KeptInEvaluation(MaskedAttention):
    """Serves as the base of a technique that approximates the attention of a model which was trained without it."""

    def model(self, model: nn.Module, run: Run) -> nn.Module:
        if not self.is_reference:
            parts = anatomy(model)
            self.acts = {block.attention.path: Act("run") for block in parts.attending_blocks}
            with parts.attention(self.function), ExitStack() as hooks:  # what is refused is refused before training
                if not any(map(lacks_values, model.parameters())):  # masks are made of values
                    for block in parts.attending_blocks:
                        for handle in self.follow(block.attention.path, block.attention.module):
                            hooks.callback(handle.remove)
                    with torch.no_grad():
                        self.tried(model, run)
        return model

    def evaluated(self, model: nn.Module, run: Run) -> nn.Module:
        if self.is_reference:
            return model
        approximate = copy.deepcopy(model)
        self.attach(approximate)
        self.calibrate(approximate.eval(), run)
        return approximate

    def calibrate(self, model: nn.Module, run: Run) -> None:
        """Sets what the technique learns from training data for the masks of this copy, once training is over."""


def masked_by(own: MaskedAttention) -> AttentionFunction:
    """Returns the technique's attention as a function of its own, by which transformers may know it."""

    def attention(*args: Any, **kwargs: Any) -> Tensor:
        return own.attention(*args, **kwargs)

    return attention
