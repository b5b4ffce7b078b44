"""Checks which examples a short run was trained on, against the scores that a probe has computed by itself: for the
probes of ``grand``, ``el2n`` and ``ssl_prototypes``."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from suite.loop.data import Data, Examples, mixed_seed
from suite.reading.recording import Recording


def candidates_of(recording: Recording) -> Data:
    """Returns the data with those training examples alone that the reference would see, in the data's order."""
    run, setting = recording.run, recording.run.job.setting
    reference = run.baseline.recipe_of(setting)
    data = run.baseline.data(setting.size, setting.task, setting.data)
    visited = min(len(data.train), reference.steps * reference.batch_size)
    return data.subset(data.sampler(len(data.train), mixed_seed(run.seed, 2), 0, visited).sort().values)


def shows(
    recording: Recording, pool: Data, scores: Tensor, keep: float, shorter: bool, slack: float, offset: float = 0.0
) -> dict[str, float]:
    """Compares the run's examples with ``scores`` float64 [candidates], right within ``slack``. ``kept``: the share of
    the examples that is left; ``misplaced``: examples trained on that are not among the highest once the share
    ``offset`` is left out; ``off_steps``: steps more or fewer than the reference's, or if ``shorter`` than make as many
    passes as its."""
    run = recording.run
    reference = run.baseline.recipe_of(run.job.setting)
    trained = Examples(run.data.train[torch.cat([trace.indices for trace in recording.traces])])
    steps = math.ceil(keep * reference.steps) if shorter else reference.steps
    return {
        "kept": len(run.data.train) / len(pool.train),
        "misplaced": _misplaced(trained, pool, scores, keep, slack, offset),
        "off_steps": abs(len(recording.traces) - steps),
    }


def _misplaced(trained: Examples, pool: Data, scores: Tensor, keep: float, slack: float, offset: float) -> int:
    """Counts the examples whose score is not between the highest and the lowest of those to keep."""
    ordered = scores.sort(descending=True).values
    first = round(offset * len(ordered))
    highest, lowest = ordered[first], ordered[first + max(1, round(keep * len(ordered))) - 1]
    fitting = (scores >= lowest - slack) & (scores <= highest + slack)
    keys = {key for key, fits in zip(_contents(pool.train), fitting.tolist(), strict=True) if fits}
    return sum(key not in keys for key in _contents(trained))


def _contents(examples: Examples) -> list[bytes]:
    columns = [tensor.flatten(1) if tensor.ndim > 1 else tensor[:, None] for tensor in examples.tensors.values()]
    return [b"".join(value.numpy().tobytes() for value in row) for row in zip(*columns, strict=True)]
