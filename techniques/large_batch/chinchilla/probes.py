"""What a run of the compute-optimal recipe really spends: its model, its tokens and its operations, counted."""

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
from suite.reading.recording import Recording
from techniques.large_batch.chinchilla.technique import Chinchilla

OF_ITS_BASELINES = True  # the arithmetic of the baseline's own Transformer, whose depth and width are the recipe's


def records(run: Run, own: Chinchilla) -> bool:
    return run.step in (run.recipe.steps // 2, run.recipe.steps - 1)


class Size(NamedTuple):
    """A model, and what its passes forward and backward take for one batch: ``products`` is the share of its blocks'
    linear layers. ``weights`` are theirs, ``parameters`` all of the blocks'."""

    parameters: int
    weights: int
    flops: int
    products: int
    depth: int
    head_width: float


def probes(recording: Recording, own: Chinchilla) -> Mapping[str, float]:
    """Over the reference's: ``size``, parameters without embeddings; ``tokens_per_parameter`` that the run trained on;
    ``training_flops``, counted, of the whole run; ``depth``; ``head_width``; ``rate``, the optimizer's learning rate in
    mid-run. And ``products_of_6nd``: operations of the blocks' linear layers over 6 N D; ``last_rate``: the last step's
    learning rate over the run's largest."""
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
    """Counted with unfused attention: a fused one makes the scores once more in its backward pass."""
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
