"""What recorded steps show of LoRA, beside a plain model with weights W0 + (alpha / r) B A.

The chain rule gives the gradients of A and B that the recorded step must have had.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from suite.loop.run import Run
from suite.model.anatomy import weight_matrix
from suite.reading.recording import Recording
from techniques.fine_tuning.lora.technique import LoRA
from techniques.fine_tuning.shared.low_rank_probes import Target, structure, targets_in
from techniques.shared.moves import rate_over_the_baselines
from techniques.shared.plain import apart, filled, gradients_of, matrix_gradient, plain_model

OF_ITS_BASELINES = True  # whose projections are apart, or three equal parts


def records(run: Run, own: LoRA) -> bool:
    """The start, where the update is 0, and the middle."""
    return run.step in (0, run.recipe.steps // 2)


def probes(recording: Recording, own: LoRA) -> Mapping[str, float]:
    """Those of :func:`low_rank_probes.structure`; ``gradient_roundings``: of A's and B's gradients
    from the chain rule's; ``rate``: the learning rate over full fine-tuning's."""
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
