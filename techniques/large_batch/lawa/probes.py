"""Tells what a run of LAWA shows: of which weights the evaluated ones are the mean, and that training knows nothing of
it.

In a run of 16 steps every step is a checkpoint. So a longer twin is looked at, whose checkpoints are sparse.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from suite.loop.run import Run
from suite.reading.judged import judged
from suite.reading.recording import Recording
from suite.reading.trace import Values
from techniques.large_batch.lawa.technique import Lawa
from techniques.shared.ball import differing

STEPS = 270  # of the twin: a 90th, the time between checkpoints, is 3 steps
WINDOWS = ((18, 15, 12, 9, 6, 3), (20, 18, 15, 12, 9, 6))  # the current weights first; at a checkpoint, and between two


def records(run: Run, own: Lawa) -> bool:
    return False


@judged(
    "mean_roundings",
    "What is evaluated is the arithmetic mean of the current weights and the five checkpoints before them.",
    "Section 2",
    id="mean",
    at_most=3.0,  # five additions and a division
    note="k = 6; at steps 18 and 20 of a run of 270, whose every third step is a checkpoint",
)
@judged(
    "moved",
    "The training run is the reference's to the bit, also after evaluations.",
    "Section 2",
    id="untouched",
    note="the first 20 steps of a run of 270",
)
@judged(
    "held",
    "decay=false holds the learning rate to the end.",
    "this entry's variant, for the authors' setting in the middle of training",
    id="held_rate",
    equals=1.0,
)
def probes(recording: Recording, own: Lawa) -> Mapping[str, float]:
    """``mean_roundings`` is of what a twin evaluates, over WINDOWS, in roundings of the largest; ``held`` is the last
    learning rate over the highest. For a claim, ``copies_of_the_weights`` is the bytes of this run's checkpoints over
    those of its model. A run of several ranks, or in which nothing is averaged, shows nothing."""
    run = recording.run
    if run.world_size > 1 or own.is_reference:
        return {}
    twin = recording.twin("lawa", STEPS).run
    after, roundings, moved = [_weights(twin)], 0.0, 0
    for step in range(1, WINDOWS[-1][0] + 1):
        twin.train(1)
        after.append(_weights(twin))
        for window in WINDOWS:
            if window[0] == step:
                averaged = dict(twin.technique.evaluated(twin.model, twin).named_parameters())
                roundings = max(roundings, _roundings(averaged, [after[step] for step in window]))
                moved += differing(_weights(twin), after[-1])
    plain = recording.twin("baseline", STEPS).run
    plain.train(twin.step)
    held = recording.twin("lawa:decay=false", STEPS).run.recipe
    stored = sum(weight.nbytes for _, weights in own.taken for weight in weights.values())
    return {
        "mean_roundings": roundings,
        "moved": moved + differing(_weights(twin), _weights(plain)),
        "held": held.learning_rate_at(STEPS - 1) / max(map(held.learning_rate_at, range(STEPS))),
        "copies_of_the_weights": stored / sum(parameter.nbytes for parameter in run.model.parameters()),
    }


def _weights(run: Run) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in run.model.named_parameters()}


def _roundings(averaged: Values, versions: list[dict[str, Tensor]]) -> float:
    worst = 0.0
    for name, ours in averaged.items():
        stacked = torch.stack([version[name] for version in versions]).double()
        dtype = torch.finfo(ours.dtype)
        unit = (dtype.eps * stacked.abs().amax(0)).clamp_min(dtype.tiny)
        worst = max(worst, ((ours.detach().double() - stacked.mean(0)).abs() / unit).max().item())
    return worst
