"""Tells what a recorded step over the masks shows of ViTCoD: masks from the average attention of the training examples
again, auto-encoders over heads written out here, and the reordered two parts beside attention as it was."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from suite.loop.data import mixed_seed
from suite.loop.run import Run
from suite.reading.judged import judged, judged_as
from suite.reading.recording import Recording
from techniques.attention.shared.kept_pairs import Pairs
from techniques.attention.shared.mask_probes import Seen, of_masks, shown
from techniques.attention.vitcod.cost import total_cycles
from techniques.attention.vitcod.masks import polarised, split_attention
from techniques.attention.vitcod.technique import KEY, MASK, QUERY, AutoEncoder, Vitcod

OF_ITS_BASELINES = True  # whose attention takes whole queries, with a causal mask or none
INFORMATION, BATCHES, WEIGHT, SHARED = 0.5, 8, 1e-4, 0.25
DEIT_TINY = (
    (1, 2250),
    (1, 395),
    (70, 2478),
    (1, 940),
    (1, 1400),
    (20, 1787),
    (17, 1333),
    (1, 1550),
    (1, 460),
    (9, 770),
    (10, 1040),
    (31, 601),
)
"""Dense columns, and pairs outside of them, of the 12 layers at 95 % sparsity, from the authors' log."""


def records(run: Run, own: Vitcod) -> bool:
    """Tells whether it is the step after masks are made at half of the run."""
    return run.step == max(1, round(0.5 * run.recipe.steps))


@judged(
    "misplaced",
    "Each row of a mask keeps the fewest largest entries of average attention that hold the share of its sum, and "
    "class tokens",
    "Section IV; the authors' gen_mask.py",
    id="masks",
    recipes=["classic"],
    note="beside rows within a rounding of the share",
)
@judged("changed_over_examples", "One mask for all inputs", "Section IV", id="fixed", recipes=["classic"])
@judged(
    "split_off",
    "The full columns and the sparse rest, in another order and merged, give the same output",
    "Section IV, split and conquer",
    id="two_parts",
    at_most=1e-5,  # of the largest output, in float32
    scope="kernel",
    recipes=["classic"],
)
@judged(
    "polarised_off",
    "Tokens that more than a quarter of the queries keep come first, all others after them",
    "The authors' reorder.py",
    id="polarised",
    scope="kernel",
    recipes=["classic"],
)
@judged_as(shown, "Section IV")
@judged(
    "gradient_roundings",
    "A step's gradients are those of attention through the masks as constants",
    "The authors' code, with its loss of the auto-encoders",
    id="mask_is_constant",
    at_most=1000.0,  # sums of up to a million terms, in roundings of a tensor's norm
    recipes=["classic"],
)
def probes(recording: Recording, own: Vitcod) -> Mapping[str, float]:
    """Includes those of :func:`of_masks`, for the auto-encoders and their loss as written here. Claims read
    ``coded_size``, numbers between the auto-encoders over those of queries and keys of 12 heads, and
    ``modelled_cycles`` of DeiT-Tiny by the released simulator."""
    trace, errors = recording.trace, []

    def prepared(layer: nn.Module, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        of_query, of_key = _coded(layer.get_submodule(QUERY), query), _coded(layer.get_submodule(KEY), key)
        errors.append(_norms(query - of_query, key - of_key))
        return of_query, of_key

    def added(_: Any) -> Tensor:
        total = WEIGHT * torch.stack(errors).sum()
        errors.clear()
        return total

    own.prepared = prepared  # type: ignore[method-assign]
    try:
        seen, shown = of_masks(recording, own, added)
        averages = _averages(recording)
    finally:
        del own.prepared  # the method comes back
    masks = [trace.before.buffers[f"{block.attention.path}.{MASK}"] for block in recording.run.anatomy.attending_blocks]
    coder: Any = AutoEncoder(12)
    return {
        **shown,
        "misplaced": sum(_misplaced(*pair, own.leading) for pair in zip(masks, averages, strict=True)),
        "changed_over_examples": sum(bool((call.mask != call.mask[:1]).any()) for call in seen),
        "coded_size": coder[0].out_features / 12,
        "split_off": max(_split_off(call) for call in seen),
        "polarised_off": sum(_polarised_off(mask) for layer in masks for mask in layer),
        "modelled_cycles": total_cycles(DEIT_TINY),
    }


def _norms(one: Tensor, other: Tensor) -> Tensor:
    return one.square().sum().sqrt() + other.square().sum().sqrt()


def _coded(coder: Any, x: Tensor) -> Tensor:
    """Runs the auto-encoder head by head."""
    first, second = coder
    few = torch.einsum("fh,bhnd->bfnd", first.weight, x) + first.bias[None, :, None, None]
    return torch.einsum("hf,bfnd->bhnd", second.weight, few) + second.bias[None, :, None, None]


@torch.no_grad()
def _averages(recording: Recording) -> list[Tensor]:
    """Computes the average attention of each layer over the training examples at the recorded step's parameters,
    float64."""
    run, own = recording.run, recording.run.anatomy
    maps: list[list[Tensor]] = [[] for _ in own.attending_blocks]
    layers = [block.attention.module for block in own.attending_blocks]
    calls = [0]

    def attention(
        query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None, causal: bool, scale: float, dropout_p: float
    ) -> Tensor:
        number = calls[0] % len(layers)
        calls[0] += 1
        query, key = (
            _coded(layers[number].get_submodule(name), x).double() for name, x in ((QUERY, query), (KEY, key))
        )
        scores = query @ key.transpose(-2, -1) * scale
        if causal:
            sees = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
            scores = scores.masked_fill(~sees, -math.inf)
        maps[number].append(scores.softmax(-1))
        return (maps[number][-1] @ value.double()).to(value.dtype)

    size = run.recipe.batch_size
    run.model.eval()
    with recording.at(recording.trace.before.parameters), own.attention(attention):
        for batch in range(BATCHES):
            examples, _ = run.data.batch(mixed_seed(run.seed, 2), batch * size, size)
            run.baseline.forward(run.model, examples)
    run.model.train()
    return [torch.cat(tensor).mean(0) for tensor in maps]


def _misplaced(mask: Tensor, average: Tensor, leading: int) -> int:
    """Counts misplaced pairs row by row: the fewest largest entries that hold the share."""
    wrong = 0
    for flags, row, place in zip(mask.flatten(0, 1), average.flatten(0, 1), range(mask[..., 0].numel()), strict=True):
        token = place % mask.shape[-1]
        expected, total, near = torch.zeros_like(flags), 0.0, False
        for index in row.argsort(descending=True).tolist():
            near |= abs(total - INFORMATION * row.sum().item()) < 1e-5
            if total >= INFORMATION * row.sum().item():
                break
            expected[index], total = True, total + row[index].item()
        expected[:leading] = True
        expected |= token < leading
        ties = row.sort().values.diff().abs().min() < 1e-7  # of hidden keys, too, which are all 0
        seen = row > 0
        wrong += (
            0
            if near or (ties and (expected & seen).sum() == (flags & seen).sum())
            else int((expected != flags)[seen].sum())
        )
    return wrong


def _split_off(call: Seen) -> float:
    worst = 0.0
    for head in range(call.query.shape[1]):
        query, key, value = (x[0, head].double() for x in (call.query, call.key, call.value))
        pairs = Pairs(query, key, call.visible[0, head], None, call.scale)
        ours = split_attention(pairs, value, call.mask[0, head], SHARED)
        expected = call.output[0, head].double()
        worst = max(worst, ((ours - expected).abs().max() / call.output.abs().max()).item())
    return worst


def _polarised_off(mask: Tensor) -> int:
    order, count = polarised(mask, SHARED)
    keepers = mask.sum(0)[order] / len(mask)
    return int((keepers[:count] <= SHARED).sum() + (keepers[count:] > SHARED).sum()) + int(
        (order.sort().values != torch.arange(len(mask))).sum()
    )
