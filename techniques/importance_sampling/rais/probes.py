"""Tells what recorded steps show of RAIS: with which probabilities it draws, which weights it gives, and at which rate.

Norms, features, ellipsoid and gain ratio are computed again in float64, the ellipsoid by a solver of the constrained
problem as the paper has it. Several fits take more steps than a short run has: a longer twin shows them, of a model
that errs in some examples alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from suite.loop.data import Examples, generator, mixed_seed
from suite.loop.run import Run
from suite.reading.judged import judged
from suite.reading.recording import Recording
from suite.reading.trace import Trace
from techniques.importance_sampling.rais.technique import Rais
from techniques.importance_sampling.shared.error_probes import draws_off, error_norms, sharpen, weighted_roundings
from techniques.shared.ball import differing

OF_ITS_BASELINES = True  # whose batches' targets it knows
REFIT = 5  # of the twin: its first window meets every example
STEPS = 17  # a fit without weights, one with weights, and a step behind it
COMPARED = 3  # steps whose gradients are computed again
DRAWS = 2000  # of 8 examples each
LATEST = 0.5


@dataclass
class Expected:
    """Holds what should be known after some steps: of each example whether it was seen, its latest norm and their
    average."""

    features: Tensor
    window: list[tuple[Tensor, Tensor, Tensor]] = field(default_factory=list)
    p: Tensor | None = None
    gain: float = 1.0

    def refit(self, own: Rais, batch: int) -> None:
        _, *of_all = zip(*self.window)
        weights, norms = map(torch.cat, of_all)
        befores = []
        for step, _, measured in self.window:
            befores.append(self.features[step])
            for index, norm in dict(zip(step.tolist(), measured.tolist())).items():
                seen, _, average = self.features[index].tolist()
                average = LATEST * norm + (1 - LATEST) * average if seen else norm
                self.features[index] = torch.tensor([1.0, norm, average])
        self.window.clear()
        before = torch.cat(befores)
        known = before[:, 0] > 0
        if not self.features[:, 0].all() or known.sum() < 6:
            return
        worst = self.features @ _margins(before[known], norms[known], weights[known], self.features)
        self.p = (1 - own.uniform) * worst / worst.sum() + own.uniform / len(worst)
        moments = [(weights * norms**2).mean(), (weights**2 * norms**2).mean(), (weights * norms).mean() ** 2]
        uniform, drawn, mean = (moment.item() for moment in moments)
        self.gain = max(1.0, 1 + (uniform - drawn) / (drawn + (batch - 1) * mean))


def records(run: Run, own: Rais) -> bool:
    """Records no step but the first: a twin shows the rest."""
    return run.step == 0


@judged(
    "further_passes",
    "Norms come from training passes: no step has a forward pass more.",
    "Abstract: drastically reduced overhead; details from memory",
    id="no_further_pass",
)
@judged(
    "differs_at_first",
    "Until every example has been seen, the steps are the reference's.",
    "This entry's choice",
    id="reference_at_first",
    note="equal to the bit",
)
@judged(
    "distribution_off",
    "p is proportional to <c, s_i> + k <d, s_i>, where c and d make the smallest ellipsoid that holds what was "
    "measured.",
    "From memory; the minimiser of the worst case, solved here",
    id="robust_distribution",
    at_most=5e-4,  # of a probability: the solvers' own precision
)
@judged(
    "draws_off",
    "Examples are drawn with these probabilities, each draw whatever the others are.",
    "From memory",
    id="draws",
    at_most=5.0,  # standard errors
)
@judged(
    "gradient_roundings",
    "The gradient is that of the mean of l_i / (n p_i): its expectation is the mean gradient of all examples.",
    "From memory; unbiased by construction",
    id="unbiased",
    at_most=1000.0,  # sums of up to a million terms, in roundings of a tensor's norm
)
@judged(
    "largest_weight",
    "No weight exceeds 10.",
    "This entry's choice: a tenth of the draws is uniform",
    id="bounded_weights",
    at_most=10.0,
    tolerance=1e-6,
)
@judged(
    "rate_off",
    "The learning rate is the schedule's times the gain ratio, 1 at least.",
    "From memory; the bound is this entry's",
    id="rate",
    at_most=1e-5,
)
def probes(recording: Recording, own: Rais) -> Mapping[str, float]:
    """``distribution_off`` and ``rate_off`` are relative; ``draws_off`` is of frequencies, in standard errors.
    ``largest_gain``, of the gain ratios, is shown beside."""
    if own.is_reference:
        return {}
    twin = recording.twin(recording.but("rais", refit=str(REFIT)), STEPS)
    plain = recording.twin("baseline")
    run, examples = twin.run, len(twin.run.data.train)
    technique = run.technique.member(Rais)
    _know_half(run)
    expected, batch = Expected(torch.zeros(examples, 3, dtype=torch.float64)), run.recipe.batch_size
    off: dict[str, list[float]] = {name: [0.0] for name in ("first", "p", "rate", "weight")}
    weighted: list[tuple[Trace, Tensor]] = []
    following: list[Tensor | None] = [None, None]  # p of the next step, and of the one behind it
    gains = [1.0]
    for step in range(run.recipe.steps):
        table, gain = technique.at(run.position), expected.gain
        twin.record_step()
        trace = twin.trace
        ours, wanted = table and table.p, following.pop(0)
        weights = torch.ones(batch, dtype=torch.float64)
        if ours is None or wanted is None:
            off["p"].append(math.inf if (ours is None) != (wanted is None) else 0.0)
        else:
            off["p"].append((ours / wanted - 1).abs().max().item())
        if ours is None:
            off["first"].append(_differs(twin, plain.run, trace))
        else:
            weights = 1 / (examples * ours[trace.indices])
            weighted.append((trace, weights))
            off["weight"].append(weights.max().item())
        off["rate"].append(_rate_off(run, trace, gain if own.scale_rate else 1.0))
        gains.append(gain)
        norms = error_norms(twin.outputs_at(trace.before.parameters, trace).logits, trace.batch)
        expected.window.append((trace.indices, weights, norms))
        if (step + 1) % REFIT == 0:
            expected.refit(own, batch)
        following.append(expected.p)
    return {
        "further_passes": sum(len(trace.of("forward")) - 1 for trace in twin.traces),
        "differs_at_first": sum(off["first"]),
        "distribution_off": max(off["p"]),
        "draws_off": _draws_off(run, technique),
        "gradient_roundings": max(
            [weighted_roundings(twin, trace, trace.batch, weights) for trace, weights in weighted[-COMPARED:]],
            default=math.inf,
        ),
        "largest_weight": max(off["weight"]),
        "rate_off": max(off["rate"]),
        "largest_gain": max(gains),
    }


@torch.no_grad()
def _know_half(run: Run) -> None:
    """Makes an untrained model sure, and right about every other of the first examples: these get the classes that it
    says. An untrained one may say the same of all, and norms that are alike want no choice."""
    sharpen(run)
    train = run.data.train
    some = torch.arange(0, min(len(train), REFIT * run.recipe.batch_size), 2)
    batch = run.data.transform(train[some], generator(run.seed))
    labels = train.tensors["labels"].clone()
    labels[some] = run.baseline.forward(run.model, batch).logits.argmax(-1)
    run.data = replace(run.data, train=Examples({**train.tensors, "labels": labels}))


def _margins(features: Tensor, norms: Tensor, weights: Tensor, everyone: Tensor) -> Tensor:
    """Computes c + k d of the smallest ellipsoid, with the constraint as it stands: mean w (v - <c, s>)^2 / <d, s> <=
    1. Where features say nearly the same, the solver may stop early: the best of several starts."""
    s, v, w, mean = (array.numpy() for array in (features, norms, weights, everyone.mean(0)))

    def held(x: np.ndarray) -> float:
        return float(1 - (w * (v - s @ x[:3]) ** 2 / (s @ x[3:])).mean())

    solutions = [
        minimize(
            lambda x: x[3:] @ mean,
            np.repeat([size * v.mean(), 10 * size * v.mean() ** 2], 3) / np.tile(mean, 2),
            method="SLSQP",
            bounds=[(1e-9, None)] * 6,
            constraints={"type": "ineq", "fun": held},
            options={"maxiter": 2000, "ftol": 1e-14},
        ).x
        for size in (0.1, 0.3, 1.0)
    ]
    c, d = np.split(min(solutions, key=lambda x: (1 - min(held(x), 0.0)) * (x[3:] @ mean)), 2)
    return torch.from_numpy(c + d / math.sqrt(d @ mean))


def _differs(twin: Recording, plain: Run, trace: Trace) -> int:
    seed, batch = mixed_seed(plain.seed, 2), plain.recipe.batch_size
    order = plain.data.sampler(len(plain.data.train), seed, trace.step * batch, batch)
    gradients = trace.of("backward")[0].gradients
    return differing(gradients, twin.gradients_at(trace.before.parameters, trace)) + (not order.equal(trace.indices))


def _rate_off(run: Run, trace: Trace, gain: float) -> float:
    scheduled = run.recipe.learning_rate_at(trace.step) * gain
    return (
        max(abs(settings["lr"] / scheduled - 1) for settings in trace.update.before.hyper.values())
        if scheduled
        else 0.0
    )


def _draws_off(run: Run, own: Rais) -> float:
    """Measures how far off the draws are that stand in the order far behind the run."""
    if not own.tables:
        return math.inf
    p, far, seed = own.tables[-1].p, 1000 * run.position, mixed_seed(run.seed, 2)
    return draws_off([run.data.sampler(len(p), seed, far + 8 * number, 8) for number in range(DRAWS)], p)
