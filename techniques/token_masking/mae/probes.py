"""Checks what a short run shows of the masked autoencoder: the tokens that each block gets, where patches go, what that
costs.

Where a patch stands in the sorted noise is counted by comparing all pairs; what it should be is computed in float64
from the parameters of the baseline's model. The reference, whose encoder has mask tokens, is looked at likewise: a
saving against a broken one would be none.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from suite.loop.data import Batch
from suite.loop.run import Run
from suite.model.anatomy import anatomy
from suite.model.segments import split_hidden
from suite.reading.judged import judged
from suite.reading.recording import Recording
from techniques.shared.block_flops import block_step_flops, counted_block_flops
from techniques.token_masking.mae.technique import Mae

OF_ITS_BASELINES = True  # whose modules are named here
REFERENCE = "mae:encoder=all"
LEADING = 1  # the class token
TOLERANCE = 1e-4  # of values near 1: sums of a few products, and an encoder's float32 outputs through one matrix
STEPS = 3  # of a run whose steps are counted


@judged(
    "off_tokens",
    "Each block of the encoder gets the class token and int(L (1 - r)) patches, each of the decoder the class token "
    "and all L.",
    "Section 3; models_mae.py of the authors, random_masking",
    id="visible_tokens",
)
@judged(
    "off_rows",
    "What is visible enters with the positions that it has among all patches.",
    "Section 3; models_mae.py, forward_encoder: positions are added, then patches are left out",
    id="positions_before_masking",
)
@judged(
    "misplaced",
    "The decoder gets every patch once, at its own place: what the encoder made of it, or the mask token.",
    "Section 3; models_mae.py, forward_decoder: ids_restore",
    id="unshuffled",
)
@judged(
    "heard",
    "The loss is computed on masked patches only.",
    "Section 3; models_mae.py, forward_loss",
    id="loss_of_masked",
)
@judged(
    "reference_off",
    "The reference's encoder gets, beside the visible patches, a mask token with its position for each other one, and "
    "its decoder what becomes of all of them, each at its own place.",
    "Table 1c: encoder with [M]",
    id="reference",
)
@judged(
    "token_at_rest", "The reference's mask token is learned.", "Section 3: a shared, learned vector", id="learned_token"
)
@judged(
    "flops_over_formula",
    "A block of the encoder costs what 1 + int(L (1 - r)) tokens cost, FLOPs linear in them for matrices and "
    "quadratic for attention.",
    "follows from section 3",
    id="flops_of_the_visible",
    equals=1.0,
    tolerance=1e-9,
    kind="counted",
    recipes=["classic"],
    note="forward and backward; eager attention",
)
@judged(
    "reference_flops_over_formula",
    "A block of the reference's encoder costs what 1 + L tokens cost.",
    "follows from table 1c",
    id="flops_of_all",
    equals=1.0,
    tolerance=1e-9,
    kind="counted",
    recipes=["classic"],
    note="forward and backward; eager attention",
)
@judged(
    "scores_over_formula",
    "The encoder's attention has ((1 + L) / (1 + int(L (1 - r))))^2 times fewer scores: 15.5 times at the paper's "
    "size, 3.6 at the digits'.",
    "follows from section 3",
    id="attention_scores",
    equals=1.0,
    tolerance=1e-9,
    kind="counted",
    recipes=["classic"],
    note="the ratio counted over this formula; where scores are made, that is in eager attention",
)
def probes(recording: Recording, own: Mae) -> Mapping[str, float]:
    """Blocks, tokens and values that are off are counted; ``heard`` is by how much the loss changes where the pixels of
    visible patches do, as targets. ``reference_off`` is all that is off in the reference."""
    if own.encoder == "all":
        return {}
    run, batch = recording.run, recording.trace.batch
    theirs = recording.twin(REFERENCE)
    theirs.record_step()
    theirs.record_step()
    mine, others = _passed(run, batch), _passed(theirs.run, batch)
    update = theirs.trace.update
    tokens = [name for name in update.before.parameters if name not in dict(run.model.named_parameters())]
    at_rest = sum(int((update.moved(name) == 0).sum()) for name in tokens) if tokens else 1
    return {
        **mine,
        "heard": _heard(run, batch),
        **_flops(recording),
        **_scores(run, theirs.run, batch),
        "reference_off": others["off_tokens"] + others["off_rows"] + others["misplaced"],
        "token_at_rest": at_rest,
    }


def _places(noise: Tensor) -> Tensor:
    """Counts how many patches stand before each, int64 [batch, patches]."""
    smaller = noise[:, None, :] < noise[:, :, None]
    first = torch.ones(noise.shape[1], noise.shape[1], dtype=torch.bool).tril(-1)
    return (smaller | ((noise[:, None, :] == noise[:, :, None]) & first)).sum(2)


def _visible(run: Run, batch: Batch) -> int:
    return int(batch["noise"].shape[1] * (1 - run.model.config.mask_ratio))  # type: ignore[union-attr,operator]


@torch.no_grad()
def _passed(run: Run, batch: Batch) -> dict[str, float]:
    """Computes ``off_tokens``, ``off_rows`` and ``misplaced`` of a pass of the run's model; the reference's encoder
    gets all."""
    model: Any = run.model
    seen: dict[str, Tensor] = {}

    def note(path: str, _: nn.Module, args: Any, kwargs: Any) -> None:
        seen[path] = split_hidden(args, kwargs)[0].double()

    parts = anatomy(model)
    joint = model.decoder.decoder_embed
    with ExitStack() as stack:
        for block in parts.every_block:
            hook = block.module.register_forward_pre_hook(partial(note, block.path), with_kwargs=True)
            stack.callback(hook.remove)
        stack.callback(joint.register_forward_hook(lambda *arguments: seen.update(joint=arguments[2].double())).remove)
        run.baseline.forward(model, batch)
    places, patches, visible = _places(batch["noise"]), batch["noise"].shape[1], _visible(run, batch)
    token = next(
        (parameter for name, parameter in model.named_parameters() if name.endswith("mask_tokens.token")), None
    )
    inside = patches if token is not None else visible
    main = {block.path for block in parts.blocks}
    off_tokens = sum(
        call.shape[1] != LEADING + (inside if path in main else patches)
        for path, call in seen.items()
        if path != "joint"
    )
    first, second = (seen[stack.blocks[0].path] for stack in parts.stacks)
    joined = seen["joint"]
    if first.shape[1] != LEADING + inside or joined.shape[1] != LEADING + inside:
        return {"off_tokens": off_tokens, "off_rows": first.shape[1], "misplaced": second.shape[1]}
    off_rows = _off(first[:, LEADING:], _entering(model, batch, places, visible, token)[:, :inside])
    rows = joined[:, LEADING:].gather(1, places.clamp(max=inside - 1)[..., None].expand(-1, -1, joined.shape[2]))
    masked = model.decoder.mask_token.double().expand_as(rows)
    wanted = torch.where((places < inside)[..., None], rows, masked)
    wanted = wanted + model.decoder.decoder_pos_embed[:, LEADING:].double()
    return {"off_tokens": off_tokens, "off_rows": off_rows, "misplaced": _off(second[:, LEADING:], wanted)}


def _entering(model: Any, batch: Batch, places: Tensor, visible: int, token: Tensor | None) -> Tensor:
    """Returns all patches in the order of their noise, float64: as they are, or the mask token; with their
    positions."""
    embedding = model.vit.embeddings
    kernel = embedding.patch_embeddings.projection
    cut = torch.nn.functional.conv2d(
        batch["pixel_values"].double(), kernel.weight.double(), kernel.bias.double(), stride=kernel.stride
    )
    x = cut.flatten(2).transpose(1, 2)
    if token is not None:
        x = torch.where((places < visible)[..., None], x, token.double())
    order = places.argsort(1)
    return (x + embedding.position_embeddings[:, LEADING:].double()).gather(1, order[..., None].expand_as(x))


def _off(ours: Tensor, wanted: Tensor) -> int:
    """Counts tokens with a value that is not what is wanted."""
    return int(((ours - wanted).abs() > TOLERANCE).any(-1).sum())


@torch.no_grad()
def _heard(run: Run, batch: Batch) -> float:
    """Computes the change of the losses, none of which may be due to a visible patch; not a number where masked ones
    have none, either."""
    outputs = run.baseline.forward(run.model, batch)
    side = batch["pixel_values"].shape[-1]
    grid = round(batch["noise"].shape[1] ** 0.5)
    shown = (_places(batch["noise"]) < _visible(run, batch)).view(-1, 1, grid, grid)
    pixels = shown.repeat_interleave(side // grid, 2).repeat_interleave(side // grid, 3)
    loss = run.baseline.losses(outputs, batch)

    def change(where: Tensor) -> float:
        other = torch.where(where, -batch["pixel_values"].flip(0) + 0.5, batch["pixel_values"])
        return (run.baseline.losses(outputs, {**batch, "pixel_values": other}) - loss).abs().sum().item()

    return change(pixels) if change(~pixels) > 0 else float("nan")


def _flops(recording: Recording) -> dict[str, float]:
    """Computes the FLOPs of an encoder block in a training step, ours and the reference's, over the formula's."""
    run, batch = recording.run, recording.trace.batch
    block, rows, patches = run.anatomy.blocks[0], len(batch["noise"]), batch["noise"].shape[1]
    tokens = {"mae": LEADING + _visible(run, batch), REFERENCE: LEADING + patches}
    over = {
        stack: counted_block_flops(recording.twin(stack, steps=STEPS).run, [0])[0]
        / block_step_flops(block, rows, token)
        for stack, token in tokens.items()
    }
    return {"flops_over_formula": over["mae"], "reference_flops_over_formula": over[REFERENCE]}


class _Scores(TorchDispatchMode):
    """Counts the elements of attention scores, layer by layer."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: list[int] = []

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if operator is torch.ops.aten._softmax.default:
            self.elements.append(args[0].numel())
        return operator(*args, **(kwargs or {}))


@torch.no_grad()
def _scores(run: Run, theirs: Run, batch: Batch) -> dict[str, float]:
    counts = []
    for side in (run, theirs):
        with _Scores() as scores:
            side.baseline.forward(side.model, batch)
        counts.append(sum(scores.elements[: side.anatomy.depth]))  # the encoder is first
    if not all(counts):
        return {}  # fused attention makes none
    patches = batch["noise"].shape[1]
    formula = ((LEADING + patches) / (LEADING + _visible(run, batch))) ** 2
    return {"scores_over_formula": counts[1] / counts[0] / formula}
