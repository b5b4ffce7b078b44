"""Tells what a run of the compute-optimal recipe really spends: its model, its tokens and its operations, counted."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import nn

from suite.device.random_state import unchanged_randomness
from suite.loop.run import Run
from suite.meters.flops import FlopCounter
from suite.model.anatomy import anatomy, weight_matrix
from suite.reading.judged import judged
from suite.reading.recording import Recording
from techniques.large_batch.chinchilla.technique import Chinchilla

OF_ITS_BASELINES = True  # the arithmetic of the baseline's own Transformer, whose depth and width are the recipe's


def records(run: Run, own: Chinchilla) -> bool:
    return run.step in (run.recipe.steps // 2, run.recipe.steps - 1)


class Size(NamedTuple):
    """Describes a model, and what its passes forward and backward take for one batch: ``products`` is the share of its
    blocks' linear layers. ``weights`` are theirs, ``parameters`` all of the blocks'."""

    parameters: int
    weights: int
    flops: int
    products: int
    depth: int
    head_width: float


@judged(
    "size",
    "A quarter of the reference's parameters.",
    "Abstract; section 4",
    equals=0.25,
    tolerance=0.05,
    scope="end_to_end",
    note="70 billion parameters against Gopher's 280 billion; the blocks', counted: biases and norms go with the width",
)
@judged(
    "tokens_per_parameter",
    "16 times the tokens a parameter that the reference's run has, by the tokens that were trained on.",
    "Table 1: 1.4 trillion tokens for 70 billion parameters, 300 billion for 280 billion",
    equals=16.0,
    tolerance=0.05,
    scope="end_to_end",
    note="20 against 1.07 in the paper, as its compute is a sixth more than equal",
)
@judged(
    "training_flops",
    "The whole run takes as many operations as the reference's.",
    "Abstract; section 4: the same compute budget as Gopher",
    equals=1.0,
    tolerance=0.15,
    scope="end_to_end",
    note=(
        "counted: attention scores and logits go with the width, not with its square, so that their share of the "
        "reference's operations comes on top: 11 % at pico, 9 % at nano"
    ),
)
@judged(
    "products_of_6nd",
    "C = 6 N D: two operations a weight and token forward, four backward.",
    "Section 3.3; appendix F",
    id="six_n_d",
    equals=1.0,
    tolerance=1e-9,
    note="counted, of the blocks' linear layers; without attention scores and logits",
)
@judged("depth", "At equal depth.", "Table 4: 80 layers", equals=1.0, tolerance=1e-9, scope="module")
@judged(
    "head_width",
    "Half as many heads of equal width.",
    "Table 4: 64 and 128 heads of 128",
    equals=1.0,
    tolerance=1e-9,
    scope="module",
)
@judged(
    "rate",
    "Half the width takes twice the learning rate.",
    "Table 4: 1e-4 against 4e-5, 2.5 times",
    equals=2.0,
    tolerance=1e-6,
    note="as 1 / width",
)
@judged(
    "last_rate",
    "The learning rate has decayed when the run ends, to a tenth or less.",
    "Section 3.1: the schedule is as long as the training tokens",
    id="horizon",
    at_most=0.1,
    scope="end_to_end",
)
def probes(recording: Recording, own: Chinchilla) -> Mapping[str, float]:
    """All are over the reference's, but ``products_of_6nd``, counted over 6 N D, and ``last_rate``, over the run's
    largest. ``rate`` is the optimizer's in mid-run; parameters are those without embeddings."""
    run, trace = recording.run, recording.trace
    with unchanged_randomness(run.device):
        reference = run.plain_model()
    ours, theirs = _size(recording, run.model), _size(recording, reference)
    recipe, batch = run.baseline.recipe_of(run.job.setting), trace.batch["input_ids"]
    tokens, their_tokens = batch.numel() * run.step, recipe.batch_size * batch.shape[1] * recipe.steps
    rates = [max(hyper["lr"] for hyper in trace.update.before.hyper.values()) for trace in recording.traces]
    middle = recording.traces[0].step
    return {
        "size": ours.parameters / theirs.parameters,
        "tokens_per_parameter": tokens / ours.parameters / (their_tokens / theirs.parameters),
        "training_flops": ours.flops * tokens / (theirs.flops * their_tokens),
        "products_of_6nd": ours.products / (6 * ours.weights * batch.numel()),
        "depth": ours.depth / theirs.depth,
        "head_width": ours.head_width / theirs.head_width,
        "rate": rates[0] / replace(recipe, steps=run.recipe.steps).learning_rate_at(middle),
        "last_rate": rates[-1] / run.recipe.learning_rate,
    }


def _size(recording: Recording, model: nn.Module) -> Size:
    """Returns the size, counted with unfused attention: a fused one makes the scores once more in its backward pass."""
    run, batch, model = recording.run, recording.trace.batch, copy.deepcopy(model)
    parts = anatomy(model)
    parts.set_fused_attention(False)
    with unchanged_randomness(run.device), FlopCounter() as counter:
        loss = run.baseline.losses(run.baseline.forward(model, batch), batch).mean()
        torch.autograd.grad(
            loss, [parameter for parameter in model.parameters() if parameter.requires_grad], allow_unused=True
        )
    tokens, length = batch["input_ids"].numel(), batch["input_ids"].shape[1]
    logits = 6 * tokens * weight_matrix(parts.head[-1].module).numel()
    scores = 12 * tokens * length * parts.width * parts.depth  # query times key and score times value, all of them
    return Size(
        sum(parameter.numel() for block in parts.every_block for parameter in block.module.parameters()),
        sum(weight_matrix(part.module).numel() for block in parts.every_block for part in block.linears),
        counter.total,
        counter.total - logits - scores,
        parts.depth,
        parts.width / (parts.heads or 1),
    )
