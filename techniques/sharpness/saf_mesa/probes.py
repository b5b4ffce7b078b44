"""Checks what recorded steps show of MESA: whether and when the loss pulls towards the outputs at averaged weights.

In a run of 16 steps the default's average is the latest weights, which pull nowhere: a longer twin is looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from suite.loop.data import Batch
from suite.loop.run import Run
from suite.reading.judged import judged
from suite.reading.recording import Recording
from techniques.shared.ball import drop_out
from techniques.sharpness.saf_mesa.technique import SafMesa
from techniques.sharpness.shared.divergence import divergence, off_the_term, touched

STEPS, LOOKED_AT, START = 100, 10, 6  # of the twin; 5 of 90 epochs are 5.6 of 100 steps
OF_ITS_BASELINES = True  # without batch norm, whose teacher is the average of weights alone
MEMORY = 5000 / (90 * 1251) * STEPS  # steps that an average with the authors' decay remembers, of their run's


def records(run: Run, own: SafMesa) -> bool:
    return False


@judged(
    "off_the_term",
    "The gradient is that of the loss plus lambda tau^2 KL(past || now), where the past is the outputs at the average "
    "of the weights.",
    "Section 3.2; MESA_train.py",
    id="pull",
    at_most=1e-3,  # of the term's own length; no term is 1, its opposite 2
    note="the tenth step of a run of 100, with a dropout of 0.1: in 16 steps the average is the latest weights",
)
@judged(
    "before_the_start",
    "Before E_start the step is the base optimizer's to the bit.",
    "Section 3.2; MESA_train.py",
    id="start",
    note="the first five steps of a run of 100",
)
def probes(recording: Recording, own: SafMesa) -> Mapping[str, float]:
    """A longer twin that drops out shows all, as :mod:`shared.divergence` says. For a claim, ``copies_of_the_weights``
    is the bytes of the average over those of the model. A run of several ranks, or at zero strength, shows nothing."""
    if recording.run.world_size > 1 or own.teacher is None:
        return {}
    twin = recording.twin(steps=STEPS)
    model = twin.run.model
    drop_out(model)
    for _ in range(LOOKED_AT):
        twin.record_step()
    memory = MEMORY if own.decay is None else 1 / (1 - own.decay)
    average = {name: parameter.double() for name, parameter in twin.traces[0].before.parameters.items()}
    for trace in twin.traces[:-1]:
        average = {
            name: value + (trace.after.parameters[name].double() - value) / memory for name, value in average.items()
        }
    last = twin.trace
    model.eval()
    taught = _rows(twin.outputs_at(average, last).logits, last.batch)
    model.train()

    def term(outputs: Any) -> Tensor:
        return own.strength * divergence(_rows(outputs.logits, last.batch), taught, own.temperature).mean()

    held = [sum(parameter.nbytes for parameter in model.parameters()) for model in (own.teacher, recording.run.model)]
    return {
        "off_the_term": off_the_term(twin, last, term),
        "before_the_start": touched(twin, [trace for trace in twin.traces if trace.step < START]),
        "copies_of_the_weights": held[0] / held[1],
    }


def _rows(logits: Tensor, batch: Batch) -> Tensor:
    """Returns [rows, classes]: of a masked language model's, the masked ones."""
    masked = logits.ndim == 3 and "labels" in batch
    return logits[batch["labels"] >= 0] if masked else logits.flatten(0, -2)
