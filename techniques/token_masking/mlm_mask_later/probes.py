"""Checks what recorded steps show of 3ML: the masks of their batches, the tokens that each block gets, and the
gradients, beside a plain model whose first blocks run on whole rows and attend to no [MASK].
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from suite.loop.data import generator
from suite.meters.flops import FlopCounter
from suite.model.anatomy import anatomy
from suite.model.attention import eager
from suite.model.segments import split_hidden
from suite.reading.judged import judged
from suite.reading.recording import Recording
from techniques.shared.block_flops import block_step_flops
from techniques.shared.plain import apart, filled, gradients_of, plain_model
from techniques.token_masking.mlm_mask_later.technique import MaskLater

OF_ITS_BASELINES = True  # whose masks are as BERT's
MASK, NO_LABEL = 1, -100
DRAWS = 512  # rows, to see how many labelled tokens are kept as they are


@judged(
    "gradient_roundings",
    "The first blocks make of the other tokens what they would without any [MASK], at their own positions; [MASK]s "
    "join the last: the step's gradients are those of a plain model on whole rows whose first blocks attend to none.",
    "Figure 2, left",
    id="masks_join_late",
    at_most=1000.0,  # sums of up to a million terms, in roundings of a tensor's norm
)
@judged(
    "masks_off",
    "Half of each row's tokens are to be predicted, 80 % of these are masked, and no other token is changed.",
    "Abstract; the shares of BERT",
    id="masks_more",
)
@judged(
    "kept",
    "Of the tokens to be predicted that stay in sight, half or more are as they were.",
    "The shares of BERT, 10 % each; where a row's draw masks too many, these are shown as they were",
    id="kept_tokens",
    at_least=0.5,
    note="512 rows",
)
@judged(
    "held_out_otherwise",
    "Validation and test have the reference's tokens and labels.",
    "This entry: losses at another share of masks are not comparable",
    id="same_test",
    scope="end_to_end",
)
@judged(
    "evaluated_roundings",
    "In evaluation, too, the first blocks see no [MASK], however many a row has.",
    "This entry",
    id="evaluated_alike",
    at_most=1000.0,
    scope="end_to_end",
)
@judged(
    "saved_over_formula",
    "A step costs the first blocks n tokens less, in their matrices and their attention.",
    "Follows from the tokens of each block",
    id="saves_its_flops",
    equals=1.0,
    tolerance=1e-9,
    kind="counted",
    recipes=["classic"],  # the backward pass of fused attention multiplies once more
    note="6 B (T entries + 2 T^2 d) for each block, at T and at T - n",
)
def probes(recording: Recording, own: MaskLater) -> Mapping[str, float]:
    """``masks_off`` counts rows of a batch. For a claim, ``tokens_off`` is by how much the tokens in blocks of a step
    differ from T - n in the first and T in the last."""
    if not own.rate:
        return {}
    trace = recording.trace
    plain = filled(plain_model(recording), trace.before.parameters)
    early = 0 if own.late is None else max(1, len(anatomy(plain).blocks) - own.late)
    with masks_later(plain, early):
        roundings = apart(trace.of("backward")[0].gradients, gradients_of(recording, trace, plain))
    return {
        "masks_off": _masks_off(recording, own),
        "kept": _kept(recording),
        "gradient_roundings": roundings,
        **_counted(recording, own, early),
        "held_out_otherwise": _held_out_otherwise(recording),
        "evaluated_roundings": _evaluated_roundings(recording, early),
    }


@contextmanager
def masks_later(plain: nn.Module, early: int) -> Iterator[None]:
    """While active, the first ``early`` blocks attend to no [MASK], and behind them a [MASK] is as it was embedded."""
    blocks = [block.module for block in anatomy(plain).blocks]
    now: dict[str, Any] = {}

    def begin(module: nn.Module, args: Any, kwargs: Any) -> None:
        now["masked"] = kwargs["input_ids"] == MASK

    def attention(query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None, **others: Any) -> Tensor:
        return eager(query, key, value, mask=~now["masked"][:, None, None] if "embedded" in now else mask, **others)

    def enter(module: nn.Module, args: Any, kwargs: Any) -> None:
        now["embedded"] = split_hidden(args, kwargs)[0]

    def append(module: nn.Module, args: Any, kwargs: Any) -> Any:
        hidden, others, named = split_hidden(args, kwargs)
        return (hidden.where(~now["masked"][..., None], now.pop("embedded")), *others), named

    with ExitStack() as stack:
        stack.callback(plain.register_forward_pre_hook(begin, with_kwargs=True).remove)
        if early:
            stack.enter_context(anatomy(plain).attention(attention))
            stack.callback(blocks[0].register_forward_pre_hook(enter, with_kwargs=True).remove)
            stack.callback(blocks[early].register_forward_pre_hook(append, with_kwargs=True).remove)
        yield


def _masks_off(recording: Recording, own: MaskLater) -> int:
    trace = recording.trace
    original = recording.run.data.train[trace.indices]["input_ids"].long()
    shown, labels = trace.batch["input_ids"], trace.batch["labels"]
    chosen, masked = labels != NO_LABEL, shown == MASK
    count = round(own.rate * shown.shape[1])
    right = (chosen.sum(1) == count) & (masked.sum(1) == round(own.hidden * count))
    right &= ((shown == original) | chosen).all(1) & ((labels == original) | ~chosen).all(1) & (chosen | ~masked).all(1)
    return int((~right).sum())


def _kept(recording: Recording) -> float:
    data = recording.run.data
    batch = data.transform(data.train[torch.arange(DRAWS) % len(data.train)], generator(0))
    shown, labels = batch["input_ids"], batch["labels"]
    in_sight = (labels != NO_LABEL) & (shown != MASK)
    return (shown == labels)[in_sight].double().mean().item()


def _counted(recording: Recording, own: MaskLater, early: int) -> dict[str, float]:
    """Counts in the second step of another run beside a plain one."""
    twin, reference = recording.twin(), recording.twin("baseline")
    for side in (reference, twin):
        side.run.train(1)
    with FlopCounter() as whole:
        reference.run.train(1)
    blocks, seen = twin.run.anatomy.blocks, []

    def see(module: nn.Module, args: Any, output: Any) -> None:
        seen.append((output[0] if isinstance(output, tuple) else output).shape[1])

    with ExitStack() as stack:
        for block in blocks:
            stack.callback(block.module.register_forward_hook(see).remove)
        with FlopCounter() as fewer:
            twin.record_step()
    rows, tokens = twin.trace.batch["input_ids"].shape
    masked = round(own.hidden * round(own.rate * tokens))
    expected = [tokens - masked] * early + [tokens] * (len(blocks) - early)
    cost = partial(block_step_flops, blocks[0], rows)
    formula = early * (cost(tokens) - cost(tokens - masked))
    return {
        "tokens_off": sum(abs(ours - theirs) for ours, theirs in zip(seen, expected, strict=True)),
        "saved_over_formula": (whole.total - fewer.total) / formula if formula else 1.0,
    }


def _held_out_otherwise(recording: Recording) -> int:
    run, setting = recording.run, recording.run.job.setting
    theirs = run.baseline.data(setting.size, setting.task, setting.data).held_out("test", 64)
    pairs = zip(run.data.held_out("test", 64), theirs, strict=True)
    return sum(int((ours[name] != own[name]).sum()) for ours, own in pairs for name in own)


@torch.no_grad()
def _evaluated_roundings(recording: Recording, early: int) -> float:
    """Computes roundings on rows of the test, which have unlike numbers of masks."""
    run = recording.run
    batch = run.data.held_out("test", 8)[0]
    plain = filled(plain_model(recording), dict(run.model.named_parameters())).eval()
    with run.predicting() as predict:
        ours = predict(batch).logits
    with masks_later(plain, early):
        theirs = run.baseline.forward(plain, batch).logits
    return apart({"logits": ours}, {"logits": theirs.double()})
