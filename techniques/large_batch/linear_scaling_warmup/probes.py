"""Tells what a run under the scaling rule really trains with: its batches, its number of updates, its learning
rates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

from suite.loop.run import Run
from suite.reading.judged import judged
from suite.reading.recording import Recording
from techniques.large_batch.linear_scaling_warmup.technique import LinearScalingWarmup

LONG = 900  # updates of a run whose warm-up, of 5 in 90, is 50 steps


def records(run: Run, own: LinearScalingWarmup) -> bool:
    return True


@judged(
    "batch", "Every update trains on a batch k times as large.", "Section 2.1", equals=4.0, tolerance=1e-9, note="k = 4"
)
@judged(
    "updates",
    "In a k-th of the updates.",
    "Section 2.1",
    id="fewer_updates",
    equals=0.25,
    tolerance=1e-9,
    scope="end_to_end",
    note="k = 4",
)
@judged(
    "examples",
    "The run trains on as many examples as the reference's.",
    "Section 2.1",
    id="same_examples",
    equals=1.0,
    tolerance=1e-9,
    scope="end_to_end",
)
@judged(
    "largest_rate",
    "When the minibatch size is multiplied by k, multiply the learning rate by k.",
    "Section 2.1, the linear scaling rule",
    id="linear_scaling",
    equals=4.0,
    tolerance=1e-9,
    note="k = 4; the optimizer's rate over that of the reference's schedule",
)
@judged(
    "first_rate",
    "The warm-up starts from the learning rate of the small batch.",
    "Section 2.2, gradual warmup",
    id="warmup_start",
    equals=1.0,
    tolerance=1e-9,
)
@judged(
    "warmup_steps",
    "It lasts 5 of 90 epochs.",
    "Section 2.2; section 5.1",
    id="warmup_length",
    equals=50.0,
    tolerance=1e-9,
    note="the run's own schedule over 900 updates",
)
@judged(
    "warmup_rise",
    "The rate increases by a constant amount at each iteration.",
    "Section 2.2, gradual warmup",
    id="warmup_gradual",
    equals=1.0,
    tolerance=1e-6,
    note="the largest over the smallest rise, of the run's own schedule over 900 updates",
)
def probes(recording: Recording, own: LinearScalingWarmup) -> Mapping[str, float]:
    """``batch``, ``updates`` and ``examples`` are over the reference's; ``batch`` is of the update farthest from k.
    ``warmup_steps`` are those before the rate is k."""
    run, traces = recording.run, recording.traces
    reference = run.baseline.recipe_of(run.job.setting)
    sizes = [trace.indices.numel() / reference.batch_size for trace in traces]
    as_long = replace(reference, steps=run.recipe.steps)
    rates = [
        max(hyper["lr"] for hyper in trace.update.before.hyper.values()) / as_long.learning_rate_at(trace.step)
        for trace in traces
        if as_long.learning_rate_at(trace.step) > 0  # the last may be 0
    ]
    long, plain = replace(run.recipe, steps=LONG), replace(reference, steps=LONG)
    curve = [long.learning_rate_at(step) / plain.learning_rate_at(step) for step in range(LONG - 1)]
    below = next((step for step, value in enumerate(curve) if value >= own.k * (1 - 1e-9)), LONG)
    rises = [after - before for before, after in pairwise(curve[: below + 1])]
    return {
        "batch": max(sizes, key=lambda size: abs(size - own.k)),
        "updates": len(traces) / reference.steps,
        "examples": sum(sizes) / reference.steps,
        "first_rate": rates[0] if rates else 0.0,
        "largest_rate": max(rates, default=0.0),
        "warmup_steps": below,
        "warmup_rise": max(rises) / min(rises) if rises and min(rises) > 0 else 0.0,
    }
