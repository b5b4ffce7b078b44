"""Tells what recorded steps show of APGnc: where the gradient was taken, and what the proximal map left of the
weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from suite.loop.run import Run
from suite.reading.judged import judged
from suite.reading.recording import Recording
from suite.reading.trace import Trace, Values
from techniques.optimizers.prox_grad_momentum.technique import ProxGradMomentum
from techniques.shared.layer_moves import roundings
from techniques.shared.moves import rate_over_the_baselines

SMALL = 1e-3  # of the recorded rate: under 1 / L of any batch here, as the theorem asks
SURE = 4.0  # roundings of a threshold, or of F, within which either side is right


def records(run: Run, own: ProxGradMomentum) -> bool:
    return run.step % 3 == 1


@judged(
    "worse_points",
    "The gradient is taken at the better of x and v: F(y_{k+1}) <= F(x_k).",
    "Abstract; Algorithm 2",
    id="better_point",
    note="F on the step's batch, with its dropout, in five steps of the run",
)
@judged(
    "rise",
    "The proximal step lowers the objective: F(x_{k+1}) <= F(y_{k+1}).",
    "Abstract; section 2",
    id="monotone",
    at_most=0.0,
    note="eta < 1/L: the recorded steps again at a thousandth of the rate, on their own batches",
)
@judged(
    "point_roundings",
    "v_k = x_k + k / (k + 3) (x_k - x_{k-1}) is where the second evaluation is made.",
    "Algorithm 2",
    id="extrapolation",
    at_most=4.0,
)
@judged(
    "step_roundings",
    "x_{k+1} is the proximal map, with the threshold eta lambda, of a gradient step from y.",
    "Algorithm 2",
    id="proximal_step",
    at_most=4.0,  # of the weight, the step and the threshold
)
@judged(
    "wrong_zeros",
    "The map makes a weight exactly zero if, and only if, the gradient step leaves it within the threshold.",
    "the proximal map of the l1 norm",
    id="zeros_below_threshold",
    note="weights at the threshold, within four roundings, left out",
)
@judged(
    "zeros", "It does so to weights that were not zero.", "the proximal map of the l1 norm", id="new_zeros", above=0.0
)
@judged("wrong_memory", "The last iterate is kept to the bit.", "Algorithm 2", id="memory")
@judged("gradients", "A step takes one gradient.", "Algorithm 2", id="one_gradient", equals=1.0)
@judged("evaluations", "And two evaluations of the objective.", "Algorithm 2", id="two_evaluations", equals=2.0)
@judged("penalised", "The penalty is on all weights of the blocks' MLPs, and on no other.", "the variant", equals=1.0)
@judged(
    "rate",
    "The learning rate is 100 times AdamW's.",
    "the grid at nano that the variant describes",
    equals=100.0,
    tolerance=1e-6,
)
@judged(
    "zero_share",
    "The proximal map makes weights exactly zero, which a subgradient never does.",
    "the proximal map of the l1 norm",
    id="exact_zeros",
    above=0.0,
)
def probes(recording: Recording, own: ProxGradMomentum) -> Mapping[str, float]:
    """All are over the recorded steps, for the l1 norm. ``rise`` is at SMALL times the rate; ``gradients`` and
    ``evaluations`` are of a step, ``penalised`` is a share of the blocks' MLP weights."""
    worst = dict.fromkeys(("point_roundings", "step_roundings"), 0.0)
    counts = dict.fromkeys(("worse_points", "wrong_zeros", "zeros", "wrong_memory"), 0)
    rises = []
    for trace in recording.traces:
        x, update = trace.before.parameters, trace.update
        points = [pass_.parameters for pass_ in trace.of("forward")]
        y = trace.of("backward")[0].parameters
        worst["point_roundings"] = max(worst["point_roundings"], _off_the_line(trace, points[-1]))
        values = [objective(recording, trace, point) for point in (x, points[-1])]
        taken = objective(recording, trace, y)
        counts["worse_points"] += int(taken - min(values) > SURE * torch.finfo(torch.float32).eps * abs(taken))
        gentle = {name: {**own, "lr": SMALL * own["lr"]} for name, own in update.before.hyper.items()}
        after = recording.replayed(replace(update.before, hyper=gentle))
        rises.append(objective(recording, trace, after) - taken)
        for name, gradient in update.before.gradients.items():
            hyper, new = update.before.hyper[name], update.after.parameters[name]
            step = hyper["lr"] * gradient.double()
            moved, threshold = y[name].double() - step, hyper["lr"] * hyper["strength"]
            terms = y[name].double().abs() + step.abs() + threshold
            expected = moved.sign() * (moved.abs() - threshold).clamp(min=0)
            worst["step_roundings"] = max(worst["step_roundings"], roundings(new, expected, terms))
            if threshold:
                sure = (moved.abs() - threshold).abs() > SURE * torch.finfo(new.dtype).eps * terms
                counts["wrong_zeros"] += int(((new == 0) != (moved.abs() <= threshold))[sure].sum())
                counts["zeros"] += int(((new == 0) & (y[name] != 0)).sum())
            counts["wrong_memory"] += int(not torch.equal(update.after.state[name]["previous"], x[name]))
    weights = {id(part.module.weight) for block in recording.run.anatomy.every_block for part in block.mlp_linears}
    mlps = {name for name, parameter in recording.run.model.named_parameters() if id(parameter) in weights}
    penalised = {name for name, own in recording.trace.before.hyper.items() if own["strength"]}
    kinds = [pass_.kind for trace in recording.traces for pass_ in trace.passes]
    return {
        **worst,
        **counts,
        **rate_over_the_baselines(recording),
        "rise": max(rises),
        "gradients": kinds.count("backward") / len(recording.traces),
        "evaluations": kinds.count("forward") / len(recording.traces),
        "penalised": len(penalised & mlps) / len(mlps) if penalised <= mlps else 0.0,
    }


def objective(recording: Recording, trace: Trace, parameters: Values) -> float:
    """Computes F = f + g on a recorded batch."""
    norms = [
        hyper["strength"] * parameters[name].double().abs().sum().item() for name, hyper in trace.before.hyper.items()
    ]
    return recording.loss_at(parameters, trace) + sum(norms)


def _off_the_line(trace: Trace, point: Values) -> float:
    before = trace.before
    farthest = 0.0
    for name, state in before.state.items():
        k, x, last = trace.step, before.parameters[name].double(), state["previous"].double()
        ahead = k / (k + 3) * (x - last)
        farthest = max(farthest, roundings(point[name], x + ahead, x.abs() + ahead.abs() + last.abs()))
    return farthest
