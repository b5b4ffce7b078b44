"""What recorded steps show of APGnc: where the gradient was taken, and what the proximal map left of the weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from suite.loop.run import Run
from suite.reading.recording import Recording
from suite.reading.trace import Trace, Values
from techniques.optimizers.prox_grad_momentum.technique import ProxGradMomentum
from techniques.shared.layer_moves import roundings
from techniques.shared.moves import rate_over_the_baselines

SMALL = 1e-3  # of the recorded rate: under 1 / L of any batch here, as the theorem asks
SURE = 4.0  # roundings of a threshold, or of F, within which either side is right


def records(run: Run, own: ProxGradMomentum) -> bool:
    return run.step % 3 == 1


def probes(recording: Recording, own: ProxGradMomentum) -> Mapping[str, float]:
    """Over the recorded steps. ``point_roundings``: how far the second evaluation was from x + k / (k + 3) (x - x');
    ``worse_points``: steps whose gradient was taken where F, on their batch, is the larger; ``rise``: by how much F is
    larger after the proximal step than before it, at SMALL times the rate; ``step_roundings``: how far weights are from
    the proximal map of the gradient step; ``wrong_zeros``: penalised weights within its threshold that are not exactly
    0, or beyond it and are; ``zeros``: weights that it made 0; ``wrong_memory``: steps whose state is not x;
    ``gradients``, ``evaluations``: of a step; ``penalised``: share of the blocks' MLP weights that is; ``rate``: the
    learning rate over AdamW's. For the l1 norm.
    """
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
    """F = f + g on a recorded batch."""
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
