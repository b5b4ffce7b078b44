"""Checks what recorded steps show of SAF: whether, when and towards which past outputs the trajectory loss pulls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from suite.loop.run import Run
from suite.reading.judged import judged
from suite.reading.recording import Recording, as_published
from suite.reading.trace import Trace
from techniques.sharpness.saf.technique import Saf
from techniques.sharpness.shared.divergence import divergence, off_the_term, touched

STEPS = 16  # four epochs of four batches
LATE = "saf:start=0.5,epochs_ago=2"  # the default's start and E~ are not over within four epochs


def records(run: Run, own: Saf) -> bool:
    return run.step >= run.recipe.steps - STEPS


@judged(
    "off_the_term",
    "The gradient is that of the loss plus lambda tau^2 KL(past || now), where the past is its own outputs of E~ "
    "epochs ago.",
    "Section 3; SAF_train.py",
    id="pull",
    at_most=1e-3,  # of the term's own length; no term is 1, its opposite 2
    note="the last of four epochs; the oldest outputs are as old",
)
@judged(
    "before_a_past",
    "An example that has not been seen has no past: the gradient is the plain one.",
    "follows from the definition of the past outputs; the authors' array has zeros there",
    id="new_examples",
)
@judged(
    "off_two_epochs",
    "With E~ = 2 the past is the epoch before the last.",
    "Section 3; SAF_train.py",
    id="two_epochs_ago",
    at_most=1e-3,  # of the term's own length; no term is 1, its opposite 2
    note="the last of four epochs, where outputs have been overwritten",
)
@judged(
    "before_the_start",
    "Before E_start the step is the base optimizer's to the bit.",
    "Section 3; SAF_train.py",
    id="start",
    note="a start in the middle of the run",
)
def probes(recording: Recording, own: Saf) -> Mapping[str, float]:
    """A twin that starts in the middle and takes the outputs of two epochs ago shows ``before_the_start`` and
    ``off_two_epochs``. For a claim, ``stored_outputs`` is the host bytes of past outputs over those of one float32
    output for each example. A run of several ranks, or at zero strength, shows nothing."""
    if recording.run.world_size > 1 or not own.strength or own.past is None:
        return {}
    _, examples, classes = own.past.outputs.shape
    twin = recording.twin(LATE, STEPS)
    twin.train(STEPS)
    late = twin.run.technique.member(Saf)
    with as_published("saf", late):
        off_two_epochs = _off(twin, late)
    return {
        "off_the_term": _off(recording, own),
        "before_a_past": touched(recording, _new(recording.traces)),
        "before_the_start": touched(twin, [trace for trace in twin.traces if 2 * trace.step < STEPS]),
        "off_two_epochs": off_two_epochs,
        "stored_outputs": own.past.outputs.nbytes / (4 * examples * classes),
    }


def _off(recording: Recording, own: Saf) -> float:
    """Computes how far the gradient of the last step is off; past outputs are computed again, from the weights and the
    inputs of when they were given."""
    said: dict[int, list[Tensor]] = {}
    for trace in recording.traces[:-1]:
        logits = recording.outputs_at(trace.before.parameters, trace).logits
        for index, row in zip(trace.indices.tolist(), logits, strict=True):
            said.setdefault(index, []).append(row)
    of_each = [said[index] for index in recording.trace.indices.tolist()]
    past = torch.stack([rows[-min(own.epochs_ago, len(rows))] for rows in of_each])

    def term(outputs: Any) -> Tensor:
        return own.strength * divergence(outputs.logits, past, own.temperature).mean()

    return off_the_term(recording, recording.trace, term)


def _new(traces: Sequence[Trace]) -> list[Trace]:
    """Returns those from the run's first on whose examples had not been seen."""
    seen: set[int] = set()
    new = []
    for step, trace in enumerate(traces):
        indices = set(trace.indices.tolist())
        if step == trace.step and not seen & indices:
            new.append(trace)
        seen |= indices
    return new
