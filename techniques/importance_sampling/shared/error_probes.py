"""Has what probes of ``is_gradnorm``, ``rais`` and ``el2n`` share: scores by the formula, in float64, with the targets
that the baselines' batches have; and the gradient of a weighted loss.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from suite.device.random_state import replayed
from suite.loop.data import Batch
from suite.loop.run import Run
from suite.reading.recording import Recording
from suite.reading.trace import Trace
from techniques.shared.plain import apart

SHARPENED = 30.0  # times the head's weights


def error_norms(logits: Tensor, batch: Batch) -> Tensor:
    """Computes ||softmax(f) - y||_2 of each example [batch], float64; of a text, the mean over the tokens that
    count."""
    logits = logits.double()
    if "labels" in batch:
        targets = batch["labels"]
    else:
        logits, targets = logits[:, :-1], batch["input_ids"][:, 1:]
    counted = targets >= 0
    norms = (logits.softmax(-1) - F.one_hot(targets.clamp(min=0), logits.shape[-1])).norm(dim=-1) * counted
    return norms if norms.ndim == 1 else norms.sum(1) / counted.sum(1).clamp(min=1)


def originals(batch: Batch) -> Tensor:
    """Returns what a batch's examples were before they were transformed, as far as that leaves it: labels, or
    tokens."""
    tokens, labels = batch.get("input_ids"), batch.get("labels")
    if tokens is None:
        assert labels is not None
        return labels
    return tokens if labels is None else tokens.where(labels < 0, labels)


@dataclass(frozen=True)
class Look:
    """Records a forward pass: its batch and logits, and whether it was in training, and with gradients."""

    batch: Batch
    logits: Tensor
    training: bool
    gradients: bool


@contextmanager
def looks(run: Run) -> Iterator[list[Look]]:
    """Records the forward passes that are made meanwhile."""
    noted: list[Look] = []
    plain = run.baseline.forward

    def forward(model: Any, batch: Batch) -> Any:
        outputs = plain(model, batch)
        noted.append(Look(batch, outputs.logits.detach(), model.training, torch.is_grad_enabled()))
        return outputs

    run.baseline.forward = forward  # type: ignore[method-assign]
    try:
        yield noted
    finally:
        del run.baseline.forward  # the method comes back


@torch.no_grad()
def sharpen(run: Run) -> None:
    """Makes an untrained model sure of what it says: it errs in some examples, and not in others."""
    for part in run.anatomy.head:
        part.module.weight.mul_(SHARPENED)  # type: ignore[operator]


@torch.no_grad()
def scores_in_evaluation(recording: Recording, trace: Trace, batch: Batch) -> Tensor:
    """Computes the scores of a batch before a recorded step, float64 [batch], without dropout."""
    run = recording.run
    with recording.at(trace.before.parameters):
        run.model.eval()
        logits = run.baseline.forward(run.model, batch).logits
        run.model.train()
    return error_norms(logits, batch)


def weighted_roundings(recording: Recording, trace: Trace, batch: Batch, weights: Tensor) -> float:
    """Measures how far a recorded step's gradients are from those of the mean of ``weights`` times its ``batch``'s
    losses, as of :func:`techniques.shared.plain.apart`."""
    run = recording.run
    trained = {name: parameter for name, parameter in run.model.named_parameters() if parameter.requires_grad}
    with recording.at(trace.before.parameters), replayed(trace.random):
        losses = run.baseline.losses(run.baseline.forward(run.model, batch), batch)
        gradients = torch.autograd.grad((weights * losses).mean(), list(trained.values()), allow_unused=True)
    expected = {
        name: gradient.double() for name, gradient in zip(trained, gradients, strict=True) if gradient is not None
    }
    passes = trace.of("backward")
    return apart(passes[-1].gradients, expected) if passes else math.inf


def draws_off(draws: Sequence[Tensor], probabilities: Tensor) -> float:
    """Measures how far the frequency of any example, and of an example that is drawn twice in a row, is from that of
    independent draws with these probabilities, in standard errors at most."""
    drawn = torch.stack(list(draws))
    shares = torch.bincount(drawn.flatten(), minlength=len(probabilities)) / drawn.numel()
    off = _errors(shares, probabilities, drawn.numel()).max().item()
    again = (drawn[:, 1:] == drawn[:, :-1]).double()
    return max(off, _errors(again.mean(), probabilities.square().sum(), again.numel()).item())


def _errors(shares: Tensor, probabilities: Tensor, draws: int) -> Tensor:
    return (shares - probabilities).abs() / (probabilities * (1 - probabilities) / draws).sqrt()
