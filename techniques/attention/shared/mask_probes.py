"""Tells what a recorded step shows of masked attention, beside softmax over the kept pairs in float64, written here.

The masks are those of a pass like the step's: at its parameters, buffers and random state. Whether they are the right
ones is for each technique's own probes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from suite.reading.judged import judged
from suite.reading.recording import Recording
from techniques.attention.shared.masking import KeptInEvaluation, KeptPairs, MaskedAttention
from techniques.shared.plain import apart, filled, gradients_of, plain_model

Added = Callable[[Any], Tensor]


class Seen(NamedTuple):
    """Records one attention of a pass: its module and that one's input, its queries and keys as scores get them, its
    values, which pairs it kept, what came out."""

    layer: nn.Module
    came: Tensor
    query: Tensor
    key: Tensor
    value: Tensor
    visible: Tensor
    scale: float
    mask: Tensor
    output: Tensor

    @property
    def scores(self) -> Tensor:
        """Returns the scores, float64, -inf where a pair may not attend."""
        scores = self.query.double() @ self.key.double().transpose(-2, -1) * self.scale
        return scores.masked_fill(~self.visible, -math.inf)


def of_masks(recording: Recording, own: KeptPairs, added: Added | None = None) -> tuple[list[Seen], dict[str, float]]:
    """Returns the attentions of the recorded step's pass, and :func:`shown` of them, with ``gradient_roundings``: of
    the step's gradients from those through the same masks as constants."""
    trace = recording.trace
    with as_before(recording), watched(own) as seen:
        recording.gradients_at(trace.before.parameters, added=added)
    masks = iter([call.mask for call in seen])

    def definition(
        query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None, causal: bool, scale: float, dropout_p: float
    ) -> Tensor:
        if own.now is not None:
            query, key = own.prepared(own.now[1], query, key)
        scores = query.double() @ key.double().transpose(-2, -1) * scale
        return (_softmax(scores, next(masks)) @ value.double()).to(query.dtype)

    own.attention = definition  # type: ignore[method-assign]
    try:
        with as_before(recording):
            expected = recording.gradients_at(trace.before.parameters, added=added)
    finally:
        del own.attention  # the method comes back
    roundings = apart(
        trace.of("backward")[0].gradients, {name: gradient.double() for name, gradient in expected.items()}
    )
    return seen, {**shown(seen), "gradient_roundings": roundings}


def in_evaluation(recording: Recording, own: KeptInEvaluation) -> tuple[list[Seen], dict[str, float]]:
    """Returns the attentions of the evaluated model for the recorded batch, and :func:`shown` of them, with
    ``training_roundings``: of the step's gradients from the baseline's own."""
    trace = recording.trace
    with recording.run.predicting() as predict, watched(own) as seen:
        predict(trace.batch)
    plain = filled(plain_model(recording), trace.before.parameters)
    roundings = apart(trace.of("backward")[0].gradients, gradients_of(recording, trace, plain))
    return seen, {**shown(seen), "training_roundings": roundings}


@judged(
    "output_off",
    "Attention is softmax(Q K^T / sqrt(d)) V in full precision over the kept pairs",
    id="exact_on_kept_pairs",
    at_most=1e-5,  # of the largest output, in float32: sums of tens of terms
    recipes=["classic"],
)
@judged(
    "hidden_kept",
    "No padding and no future token is kept",
    "This entry's: the paper's models are masked before",
    id="nothing_hidden",
    recipes=["classic"],
)
@judged(
    "masks_left",
    "Attentions leave pairs out: the masks are no formality",
    id="leaves_pairs_out",
    above=0.5,
    recipes=["classic"],
)
def shown(seen: Sequence[Seen]) -> dict[str, float]:
    """Returns ``output_off``: the largest error of the outputs, of the largest; ``hidden_kept``: kept pairs that may
    not attend; ``masks_left``: the share of attentions that leave a visible pair out."""
    return {
        "output_off": max(_off(call) for call in seen),
        "hidden_kept": sum(int((call.mask & ~call.visible).sum()) for call in seen),
        "masks_left": sum(bool((call.visible & ~call.mask).any()) for call in seen) / len(seen),
    }


@contextmanager
def watched(own: MaskedAttention) -> Iterator[list[Seen]]:
    """Records every attention of the passes that run meanwhile."""
    seen: list[Seen] = []
    attention, pair_mask, masks = own.attention, own.pair_mask, []

    def keeps(layer: nn.Module, pairs: Any) -> Tensor:
        mask = pair_mask(layer, pairs)
        masks.append((pairs, mask))
        return mask

    def attends(query: Tensor, key: Tensor, value: Tensor, **arguments: Any) -> Tensor:
        assert own.now is not None and own.came is not None
        layer, came = own.now[1], own.came
        output = attention(query, key, value, **arguments)
        pairs, mask = masks.pop()
        visible = _visible(query, key, arguments["mask"], arguments["causal"])
        q, k, v, o = (operand.detach() for operand in (pairs.query, pairs.key, value, output))
        seen.append(Seen(layer, came, q, k, v, visible, arguments["scale"], mask, o))
        return output

    own.pair_mask, own.attention = keeps, attends  # type: ignore[method-assign]
    try:
        yield seen
    finally:
        del own.pair_mask, own.attention


@contextmanager
def as_before(recording: Recording) -> Iterator[None]:
    """Gives the model the buffers of the recorded step's begin meanwhile; parameters are for Recording to set."""
    before: Mapping[str, Tensor] = recording.trace.before.buffers
    own = dict(recording.run.model.named_buffers())
    copies = {name: value.clone() for name, value in own.items()}
    with torch.no_grad():
        for name, value in own.items():
            value.copy_(before[name])
    try:
        yield
    finally:
        with torch.no_grad():
            for name, value in own.items():
                value.copy_(copies[name])


def _visible(query: Tensor, key: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
    shape = (*query.shape[:-1], key.shape[-2])
    if mask is None:
        every = torch.ones(shape, dtype=torch.bool)
        return every.tril() if causal else every
    return (mask if mask.dtype == torch.bool else mask == 0).expand(shape)


def _softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """Computes the softmax, in which rows that keep nothing are 0."""
    largest = scores.masked_fill(~mask, -math.inf).amax(-1, keepdim=True)
    weights = torch.exp(scores - largest.clamp(min=torch.finfo(scores.dtype).min)) * mask
    return weights / weights.sum(-1, keepdim=True).clamp(min=torch.finfo(scores.dtype).tiny)


def _off(seen: Seen) -> float:
    expected = _softmax(seen.scores.masked_fill(~seen.visible, 0.0), seen.mask) @ seen.value.double()
    return ((seen.output.double() - expected).abs().max() / expected.abs().max()).item()
