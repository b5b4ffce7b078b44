"""Checks what recorded steps of every rank show of PipeMare: how old weights are, what a backward pass uses, and the
rate."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from suite.loop.run import Run
from suite.reading.judged import judged, judged_as
from suite.reading.recording import Recording
from techniques.parallelism.pipemare.technique import PipeMare
from techniques.parallelism.shared.pipeline_probes import copies, first_steps, holdings, lateness, of_all, steady_order

SMALLEST = 1e-6  # of a weight, whose roundings are those of what it is computed from
OF_ITS_BASELINES = True  # without dropout, so that the batch's gradient is one process's


def records(run: Run, own: PipeMare) -> bool:
    """Selects the first steps."""
    return first_steps(run)


@judged_as(holdings, "Section 2")
@judged_as(steady_order, "Section 2")
@judged(
    "correction_roundings",
    "A backward pass uses the newest weights less their delay times their mean drift",
    "Section 3.2: discrepancy correction",
    id="corrected",
    at_most=64.0,  # a recurrence of four steps, in float32 roundings of a weight and its drift
)
@judged(
    "rate_error",
    "A stage's rate is divided by its delay to the power of 1 - k / K",
    "Section 3.1: learning-rate rescheduling",
    id="rescheduled",
    at_most=1e-06,  # a relative error of float64 arithmetic
)
def probes(recording: Recording, own: PipeMare) -> Mapping[str, float]:
    """Includes what :mod:`techniques.parallelism.shared.pipeline_probes` reads of all pipelines. ``rate_error`` is the
    largest relative one."""
    if recording.run.world_size == 1:
        return {"ranks": 1}
    beside = [tensor for values in own.weights.beside.values() for tensor in values]
    rates = of_all(recording, _rate_error(recording, own))
    corrections = of_all(recording, _correction_roundings(recording, own))
    return {
        **holdings(recording),
        **steady_order(recording),
        **lateness(recording, own.micro_batches),
        "versions_first": copies(recording, beside)[0],
        "rate_error": max(rates),
        "correction_roundings": max(corrections),
    }


def _tau(run: Run, own: PipeMare, stage: int) -> float:
    """Computes tau of table 1, of a stage from 0: 2 (P - i) + 1 micro-batches, N of which make an update."""
    return (2 * (run.world_size - 1 - stage) + 1) / own.micro_batches


def _rate_error(recording: Recording, own: PipeMare) -> float:
    """Computes the largest relative error of the rates that the optimizer used, from section 3.1 in float64; a tied
    parameter's stage is the first."""
    run, worst = recording.run, 0.0
    for trace in recording.traces:
        annealed = min(trace.step / (own.annealed * run.recipe.steps), 1.0)
        for name, hyper in trace.update.before.hyper.items():
            late = max(_tau(run, own, own.stages.owners(name)[0]), 1.0)
            expected = run.recipe.learning_rate_at(trace.step) / late ** (1.0 - annealed)
            worst = max(worst, abs(hyper["lr"] / expected - 1.0))
    return worst


def _correction_roundings(recording: Recording, own: PipeMare) -> float:
    """Computes how far the weights of the backward passes are from section 3.2 in float64, in float32 roundings."""
    tau, worst = _tau(recording.run, own, recording.run.rank), 0.0
    gamma, delta = own.decay ** (1.0 / tau), dict[str, Tensor]()
    for trace in recording.traces:
        newest = {name: parameter.double() for name, parameter in trace.before.parameters.items()}
        for pass_ in trace.of("backward"):
            for name, used in pass_.parameters.items():
                expected = newest[name] - tau * delta.get(name, torch.zeros_like(newest[name]))
                unit = torch.finfo(torch.float32).eps * (
                    newest[name].abs() + (newest[name] - expected).abs() + SMALLEST
                )
                worst = max(worst, ((used.double() - expected).abs() / unit).max().item())
        for name, before in newest.items():
            moved = trace.update.after.parameters[name].double() - before
            delta[name] = gamma * delta.get(name, torch.zeros_like(before)) + (1.0 - gamma) * moved
    return worst
