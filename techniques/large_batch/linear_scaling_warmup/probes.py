"""What a run under the scaling rule really trains with: its batches, its number of updates, its learning rates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

from suite.loop.run import Run
from suite.reading.recording import Recording
from techniques.large_batch.linear_scaling_warmup.technique import LinearScalingWarmup

LONG = 900  # updates of a run whose warm-up, of 5 in 90, is 50 steps


def records(run: Run, own: LinearScalingWarmup) -> bool:
    return True


def probes(recording: Recording, own: LinearScalingWarmup) -> Mapping[str, float]:
    """Over the reference's: ``batch``, examples of every update (the one farthest from k); ``updates``; ``examples``
    that the updates trained on. Of the optimizer's learning rates over those of the reference's schedule, at as long a
    run: ``first_rate``; ``largest_rate``. Of the run's own schedule over LONG updates, in the same measure:
    ``warmup_steps`` before it is k; ``warmup_rise``, the largest over the smallest rise of a step in the warm-up."""
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
