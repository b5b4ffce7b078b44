"""Tells what recorded steps show of LoRA, beside a plain model with weights W0 + (alpha / r) B A.

The chain rule gives the gradients of A and B that the recorded step must have had.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from suite.loop.run import Run
from suite.model.anatomy import weight_matrix
from suite.reading.judged import judged
from suite.reading.recording import Recording
from techniques.fine_tuning.lora.technique import LoRA
from techniques.fine_tuning.shared.low_rank_probes import Target, structure, targets_in
from techniques.shared.moves import rate_over_the_baselines
from techniques.shared.plain import apart, filled, gradients_of, matrix_gradient, plain_model

OF_ITS_BASELINES = True  # whose projections are apart, or three equal parts


def records(run: Run, own: LoRA) -> bool:
    """Tells whether it is the start, where the update is 0, or the middle."""
    return run.step in (0, run.recipe.steps // 2)


@judged(
    "different_at_start",
    "B is zero at the start, so that the adapted model gives the pre-trained one's outputs to the bit",
    "Section 4.1",
    id="starts_as_the_pretrained_model",
)
@judged(
    "frozen_moved",
    "No pre-trained weight moves by a bit",
    "Section 4.1",
    id="pretrained_weights_are_frozen",
    note="the head of a new task aside",
)
@judged("factors_at_rest", "A and B of every adapted matrix are trained", "Section 4.1", id="factors_are_trained")
@judged(
    "elsewhere",
    "W_q and W_v of every attention are adapted, and nothing else is",
    "Section 4.2; table 5",
    id="query_and_value",
)
@judged(
    "gradient_roundings",
    "The update is (alpha / r) B A: A's and B's gradients in the step are those that the chain rule gives of W0 + "
    "(alpha / r) B A",
    "Equation 3, by the chain rule; section 4.2",
    id="update",
    at_most=1000.0,  # sums of up to a million terms, in roundings of a tensor's norm
)
@judged(
    "dropped_for_the_layer",
    "Dropout is of the update's input alone: the frozen layer gets all of it",
    "Section 4.1: W0 x and B A x have the same input; loralib: lora_dropout before A alone",
    id="frozen_input_is_whole",
)
@judged(
    "merged",
    "Merged into W0 the update gives the same outputs, with no layer more",
    "Section 4.1",
    at_most=1e-12,  # of the largest output, in float64: some thousand roundings
)
@judged(
    "rate",
    "Ten times the learning rate of full fine-tuning",
    "This entry's choice after the rates of appendix D",
    equals=10.0,
    tolerance=1e-6,
)
def probes(recording: Recording, own: LoRA) -> Mapping[str, float]:
    """Includes those of :func:`low_rank_probes.structure`; ``rate`` is over full fine-tuning's."""
    if not own.rank or own.implementation != "own":
        return {}
    plain = plain_model(recording)
    return {
        **structure(recording, plain, own.rank, own.train_head),
        "gradient_roundings": _gradient_roundings(recording, plain, targets_in(plain), own),
        **rate_over_the_baselines(recording),
    }


def _gradient_roundings(recording: Recording, plain: nn.Module, targets: list[Target], own: LoRA) -> float:
    trace = recording.trace
    values, ours, scale = trace.before.parameters, trace.of("backward")[0].gradients, own.alpha / own.rank
    adapted = [target for target in targets if values.keys() >= set(target.factors)]
    factors = {target: [values[name].double() for name in target.factors] for target in adapted}
    filled(plain, values)
    with torch.no_grad():
        for value, (a, b) in factors.items():
            weight_matrix(value.layer(plain))[value.start : value.start + value.count] += scale * (b @ a)
    gradients = gradients_of(recording, trace, plain)
    expected: dict[str, Tensor] = {}
    for value, (a, b) in factors.items():
        of_rows = matrix_gradient(plain, value.path, gradients)[value.start : value.start + value.count]
        name_a, name_b = value.factors
        expected |= {name_a: scale * b.T @ of_rows, name_b: scale * of_rows @ a.T}
    return apart(ours, expected)
