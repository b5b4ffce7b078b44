"""Tells what recorded steps show of importance sampling by gradient norms: which examples were looked at, how, which of
them were learned from, and with which weights.

Within few steps no gate opens by itself: twins of the run, with a threshold of 0, sample from their second step on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from suite.loop.data import Batch
from suite.loop.run import Run
from suite.meters.flops import FlopCounter
from suite.reading.judged import judged
from suite.reading.recording import Recording
from suite.reading.trace import Trace
from techniques.importance_sampling.is_gradnorm.technique import GradientNormSampling, drawn
from techniques.importance_sampling.shared.error_probes import (
    Look,
    draws_off,
    error_norms,
    looks,
    originals,
    scores_in_evaluation,
    sharpen,
    weighted_roundings,
)
from techniques.shared.ball import differing

OF_ITS_BASELINES = True  # whose batches' targets it knows
COMPARED = 3  # sampled steps that are computed again
DRAWN = 24  # sampled steps whose draws are counted, of a model that errs in few examples
SKEWED = torch.tensor([0.4, 0.3, 0.15, 0.1, 0.05], dtype=torch.float64)
DRAWS = 1600  # of 4 examples each
CLOSE = 1e-6  # to the threshold, on either side


@dataclass(frozen=True)
class Sampled:
    """Records a step that sampled: of each of its examples the place in the pool, and the pool's s, float64."""

    trace: Trace
    loss: float
    looks: list[Look]
    indices: Tensor
    s: Tensor
    places: list[int]

    @property
    def batch(self) -> Batch:
        return self.looks[1].batch


def records(run: Run, own: GradientNormSampling) -> bool:
    """Records all steps: tau has heard of each."""
    return not own.is_reference


@judged(
    "closed_differs",
    "While tau is below the threshold, the step is a uniform one.",
    "Algorithm 1; the authors' ConditionalStartSampler",
    id="reference_until_it_pays",
    note="equal to the bit",
)
@judged(
    "tau_off",
    "tau is the average, with 0.9, of 1 / sqrt(1 - sum (s_i - u)^2 / sum s_i^2), of the training pass's scores or of "
    "the pool's.",
    "Algorithm 1; the authors' VarianceReductionCondition",
    id="tau",
    at_most=1e-5,  # scores are float32
)
@judged(
    "gate_off",
    "It samples where tau exceeds (B + 3 b) / 3 b, and nowhere else.",
    "Section 3.3; the authors' ImportanceTraining, tau_th",
    id="gate",
)
@judged(
    "off_passes",
    "A step that samples takes one forward pass for the scores, without gradients and without dropout, and one in "
    "training.",
    "Algorithm 1; the authors' notice about dropout",
    id="scoring_pass",
)
@judged("foreign", "What is learned from was scored.", "Algorithm 1", id="of_the_pool")
@judged(
    "misnamed",
    "The run's indices are those of the examples learned from.",
    "What other techniques of a stack go by",
    id="named",
)
@judged("repeated", "Every step has its own pool and its own draws.", "Algorithm 1", id="anew")
@judged(
    "gradient_roundings",
    "The gradient is that of the mean of l_i / (B s_i), with s_i = ||softmax(f) - y||_2 over their sum: its "
    "expectation over draws is the pool's mean gradient.",
    "Equations 2 and 20; the authors' BiasedReweightingPolicy with k = 1",
    id="unbiased",
    at_most=1000.0,  # sums of up to a million terms, in roundings of a tensor's norm
)
@judged(
    "loss_off",
    "The training loss that is reported is weighted, too.",
    "The authors' training.py: train_batch with the sample weights",
    id="loss",
    at_most=1e-5,
)
@judged(
    "draws_off",
    "Examples are drawn with probability s_i, each draw whatever the others are.",
    "Algorithm 1; the authors' samplers.py, with replacement",
    id="draws",
    at_most=5.0,  # standard errors
)
def probes(recording: Recording, own: GradientNormSampling) -> Mapping[str, float]:
    """The gate is closed for ``closed_differs``; steps that sample show all but ``tau_off`` (relative) and
    ``gate_off``, which are of both sides of the threshold. ``draws_off`` is of frequencies, in standard errors. Claims
    read ``pool``, B / b; ``cost``, FLOPs over a plain step's; ``cost_over_formula``, what they exceed it by, over that
    of B examples forwards."""
    if own.is_reference:
        return {}
    sampling = recording.but("is_gradnorm", threshold="0")
    twin = recording.twin(sampling)
    tau = _tau(0.0, own.momentum, _scores(twin, _first(twin)))
    steps = [_sampled(twin) for _ in range(COMPARED)]
    known = [step for step in steps if step is not None]
    for step in known:
        tau = _tau(tau, own.momentum, step.s)
    technique = twin.run.technique.member(GradientNormSampling)
    return {
        "closed_differs": sum(_differs(recording, trace) for trace in recording.traces[-2:]),
        "tau_off": max(_tau_off(recording, own), abs(technique.tau / tau - 1)),
        "gate_off": _gate_off(recording.twin(recording.but("is_gradnorm", threshold="none")), own),
        "off_passes": sum(step is None or _off_passes(step.looks) for step in steps),
        "pool": max((len(step.s) / len(step.places) for step in known), default=0.0),
        "foreign": sum(place < 0 for step in known for place in step.places),
        "misnamed": sum(_misnamed(twin.run, step) for step in known),
        "repeated": sum(_repeated(one, other) for one, other in pairwise(known)),
        "gradient_roundings": max((_gradient_roundings(twin, step) for step in known), default=math.inf),
        "loss_off": max((_loss_off(twin, step) for step in known), default=math.inf),
        "draws_off": max(_draws_off(), _frequencies_off(recording.twin(sampling).run)),
        **_cost(recording, recording.twin(sampling), own.presample),
    }


def _differs(recording: Recording, trace: Trace) -> int:
    return differing(trace.of("backward")[0].gradients, recording.gradients_at(trace.before.parameters, trace))


def _tau(before: float, momentum: float, scores: Tensor) -> float:
    """Computes tau after one more step, from scores or from s: its formula as it stands in the paper."""
    s, u = scores / scores.sum(), 1 / len(scores)
    return momentum * before + (1 - momentum) / math.sqrt(1 - ((s - u).square().sum() / s.square().sum()).item())


def _scores(recording: Recording, trace: Trace) -> Tensor:
    """Computes the scores of a step's own batch in training."""
    return error_norms(recording.outputs_at(trace.before.parameters, trace).logits, trace.batch)


def _tau_off(recording: Recording, own: GradientNormSampling) -> float:
    tau = 0.0
    for trace in recording.traces:
        tau = _tau(tau, own.momentum, _scores(recording, trace))
    return abs(own.tau / tau - 1)


def _first(recording: Recording) -> Trace:
    """Takes a run's first step, which never samples."""
    recording.record_step()
    return recording.trace


def _sampled(recording: Recording) -> Sampled | None:
    """Takes the next step; None where it does not sample."""
    with looks(recording.run) as noted:
        loss = recording.record_step()
    if len(noted) != 2:
        return None
    pool, batch = noted[0].batch, noted[1].batch
    scores = scores_in_evaluation(recording, recording.trace, pool)
    places = _places(batch, pool)
    return Sampled(recording.trace, loss, noted, recording.run.indices, scores / scores.sum(), places)


def _places(batch: Batch, pool: Batch) -> list[int]:
    """Finds where in the pool the examples of a batch are; -1 for what is not there."""
    rows = _rows(pool)
    return [rows.index(row) if row in rows else -1 for row in _rows(batch)]


def _rows(batch: Batch) -> list[bytes]:
    columns = [[row.numpy().tobytes() for row in tensor] for tensor in batch.values()]
    return [b"".join(row) for row in zip(*columns, strict=True)]


def _off_passes(noted: list[Look]) -> bool:
    scoring, training = noted
    return scoring.training or scoring.gradients or not (training.training and training.gradients)


def _misnamed(run: Run, step: Sampled) -> int:
    name = "input_ids" if "input_ids" in step.batch else "labels"
    raw = run.data.train.tensors[name][step.indices]
    return int((raw.long() != originals(step.batch)).sum()) if len(raw) == len(step.places) else len(raw)


def _repeated(one: Sampled, other: Sampled) -> int:
    further = [_rows(side.looks[0].batch)[len(side.places) :] for side in (one, other)]
    return (further[0] == further[1]) + (one.places == other.places)


def _weights(step: Sampled) -> Tensor:
    return 1 / (len(step.s) * step.s[step.places])


def _gradient_roundings(recording: Recording, step: Sampled) -> float:
    return weighted_roundings(recording, step.trace, step.batch, _weights(step))


def _loss_off(recording: Recording, step: Sampled) -> float:
    run = recording.run
    with recording.at(step.trace.before.parameters), torch.no_grad():
        losses = run.baseline.losses(run.baseline.forward(run.model, step.batch), step.batch)
    return abs(step.loss / (_weights(step) * losses.double()).mean().item() - 1)


def _gate_off(recording: Recording, own: GradientNormSampling) -> int:
    recording.record_step()
    technique = recording.run.technique.member(GradientNormSampling)
    batch = recording.run.recipe.batch_size
    threshold = (own.presample * batch + 3 * batch) / (3 * batch)
    off = 0
    for tau, passes in ((threshold * (1 - CLOSE), 1), (threshold * (1 + CLOSE), 2)):
        technique.tau = tau
        with looks(recording.run) as noted:
            recording.record_step()
        off += len(noted) != passes
    return off


def _draws_off() -> float:
    return draws_off([drawn(SKEWED, 4, 0, step) for step in range(DRAWS)], SKEWED)


def _frequencies_off(run: Run) -> float:
    """Measures how far the mean s of what real steps drew is from sum s^2, in standard errors; of a model with few
    errors."""
    sharpen(run)
    run.train(1)
    excess = variance = 0.0
    for _ in range(DRAWN):
        with looks(run) as noted:
            run.train(1)
        if len(noted) != 2:
            return math.inf
        pool, batch = noted
        scores = error_norms(pool.logits, pool.batch)
        share = len(scores) * scores / scores.sum()  # 1 on average
        places = _places(batch.batch, pool.batch)
        excess += (share[places] - share.square().mean()).sum().item()
        variance += len(places) * (share.pow(3).mean() - share.square().mean() ** 2).item()
    return abs(excess) / math.sqrt(variance)


def _cost(recording: Recording, twin: Recording, presample: int) -> dict[str, float]:
    plain = recording.twin("baseline").run
    plain.train(1)
    step = plain.count_step().flops
    batch, _ = plain.next_batch()
    with FlopCounter() as forward, torch.no_grad():
        plain.baseline.forward(plain.model, batch)
    twin.record_step()
    with FlopCounter() as sampled:
        twin.record_step()
    over = (sampled.total - step) / (presample * forward.total)
    return {"cost": sampled.total / step, "cost_over_formula": over}
