"""Checks what recorded steps show of MASS: the rows that encoder and decoder get, the tokens that the decoder's layers
run on, and the gradients, beside those of the whole row with transformers' own causal and padding masks.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from suite.device.random_state import replayed
from suite.loop.data import generator
from suite.meters.flops import FlopCounter
from suite.model.anatomy import anatomy, in_features, is_linear, out_features
from suite.reading.judged import judged
from suite.reading.recording import Recording
from techniques.shared.plain import apart
from techniques.token_masking.mass.technique import Mass

OF_ITS_BASELINES = True  # whose mask token is 1, and whose rows are as the card says
MASK, ABSENT = 1, -1
DRAWS = 512  # rows


@judged(
    "gradient_roundings",
    "The decoder needs the fragment alone: the step's gradients are those of one that has every token in its place, "
    "where all but the fragment is padding.",
    "Section 3.2; the authors' masked_dataset.py, positions",
    id="fragment_alone",
    at_most=1000.0,  # sums of up to a million terms, in roundings of a tensor's norm
)
@judged(
    "rows_off",
    "The encoder reads the text but for the fragment, the decoder the token before each one of the fragment, and it "
    "has to write the fragment.",
    "Section 3.2, figure 1; masked_dataset.py, __getitem__",
    id="rows",
)
@judged(
    "saved_over_formula",
    "The decoder's layers cost k / m of their FLOPs, its self-attention (k / m)^2.",
    "Follows from the tokens: 6 B (m - k) for each matrix entry, 12 B d (m^2 - k^2) for self-attention, 12 B d m (m - "
    "k) for cross-attention",
    id="half_the_decoder",
    equals=1.0,
    tolerance=1e-9,
    kind="counted",
    recipes=["classic"],  # the backward pass of fused attention multiplies once more
    note="cross-attention's keys and values are of the encoder's tokens, and stay",
)
def probes(recording: Recording, own: Mass) -> Mapping[str, float]:
    """``rows_off`` counts rows of a batch. Claims read ``masked``, the share of a fragment that the encoder sees as
    [MASK], in many draws; ``random`` and ``kept``, the shares that it sees as another token and as itself;
    ``starts_off``, how far the frequencies of a fragment's starts are from being equal, at most; ``off_tokens``, by how
    much the tokens in decoder blocks are more or less than a fragment's."""
    if own.decoder == "all":
        return {}
    return {
        "rows_off": _rows_off(recording, own),
        **_drawn(recording, own),
        "gradient_roundings": _gradient_roundings(recording),
        **_counted(recording),
    }


def _count(own: Mass, length: int) -> int:
    return sum(int(own.share * min(own.block, length - start)) for start in range(1, length, own.block))


def _rows_off(recording: Recording, own: Mass) -> int:
    trace = recording.trace
    text = recording.run.data.train[trace.indices]["input_ids"].long()
    wrong = 0
    for row, (source, before), labels in zip(text, trace.batch["input_ids"], trace.batch["labels"], strict=True):
        inside = (before != ABSENT).nonzero()[:, 0]
        blocks = [inside[(inside - 1) // own.block == number] for number in range((len(row) - 2) // own.block + 1)]
        wrong += not (
            len(inside) == len(labels) == _count(own, len(row))
            and all(
                torch.equal(block, torch.arange(int(block[0]), int(block[-1]) + 1)) for block in blocks if len(block)
            )
            and torch.equal(labels, row[inside])
            and torch.equal(before[inside], row[inside - 1])
            and bool(((source == row) | (before != ABSENT)).all())
        )
    return wrong


def _drawn(recording: Recording, own: Mass) -> dict[str, float]:
    """Checks the first block of rows, where there is room for a fragment to begin at several places."""
    data = recording.run.data
    batch = data.transform(data.train[torch.arange(DRAWS) % len(data.train)], generator(0))
    source, before = batch["input_ids"].unbind(1)
    inside = before != ABSENT
    tokens = min(own.block, source.shape[1] - 1)
    places = tokens - int(own.share * tokens) + 1
    starts = inside[:, 1 : 1 + tokens].byte().argmax(1).bincount(minlength=places).double() / DRAWS
    shown, text = source[inside], data.train[torch.arange(DRAWS) % len(data.train)]["input_ids"].long()[inside]
    return {
        "masked": (shown == MASK).double().mean().item(),
        "random": ((shown != MASK) & (shown != text)).double().mean().item(),
        "kept": (shown == text).double().mean().item(),
        "starts_off": (starts - 1 / places).abs().max().item() * places,
    }


def _gradient_roundings(recording: Recording) -> float:
    """Computes the gradients' roundings by the whole row in the decoder: positions count themselves, and all but the
    fragment is padding."""
    run, trace = recording.run, recording.trace
    model: Any = run.model
    source, before = trace.batch["input_ids"].unbind(1)
    inside = before != ABSENT
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    with recording.at(trace.before.parameters), replayed(trace.random), torch.enable_grad():
        memory = model.encoder(input_ids=source).last_hidden_state
        tokens = before.where(inside, MASK)
        outputs = model.decoder(input_ids=tokens, attention_mask=inside.long(), encoder_hidden_states=memory)
        loss = F.cross_entropy(outputs.logits[inside], trace.batch["labels"].flatten())
        expected = torch.autograd.grad(loss, list(trained.values()))
    pairs = zip(trained, expected, strict=True)
    return apart(trace.of("backward")[0].gradients, {name: schedule.double() for name, schedule in pairs})


def _counted(recording: Recording) -> dict[str, float]:
    """Counts in the second step of another run beside the reference."""
    twin, reference = recording.twin(), recording.twin("mass:decoder=all")
    for side in (reference, twin):
        side.run.train(1)
    with FlopCounter() as whole:
        reference.run.train(1)
    seen: list[int] = []
    decoder = anatomy(twin.run.model).stacks[1]

    def see(module: Any, args: Any, output: Tensor) -> None:
        seen.append((output[0] if isinstance(output, tuple) else output).shape[1])

    with ExitStack() as stack:
        for block in decoder.blocks:
            stack.callback(block.module.register_forward_hook(see).remove)
        with FlopCounter() as short:
            twin.record_step()
    rows, count = twin.trace.batch["labels"].shape
    length, width = twin.trace.batch["input_ids"].shape[2], decoder.width
    linears = [part.module for block in decoder.blocks for part in block.linears] + _outside(twin.run.model)
    entries = sum(in_features(linear) * out_features(linear) for linear in linears)
    entries -= 2 * width**2 * decoder.depth  # keys and values of what the encoder has read stay
    scores = 2 * width * decoder.depth * (length**2 - count**2 + length * (length - count))  # of itself, of the encoder
    formula = 6 * rows * ((length - count) * entries + scores)
    return {
        "off_tokens": sum(abs(call - count) for call in seen) + abs(len(seen) - decoder.depth) * length,
        "saved_over_formula": (whole.total - short.total) / formula,
    }


def _outside(model: nn.Module) -> list[nn.Module]:
    """Returns the linear layers outside of the blocks: the decoder's head."""
    blocks = tuple(f"{stack.path}." for stack in anatomy(model).stacks)
    return [module for path, module in model.named_modules() if is_linear(module) and not path.startswith(blocks)]
