"""Checks what a recorded step shows of bfloat16 training: what is computed and held in which precision, and that
nothing else changes."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from suite.reading.judged import judged
from suite.reading.recording import Recording
from techniques.precision.amp_bf16.technique import BFloat16


@judged("wide_products", "Every linear layer computes in bfloat16", "Section 3", id="half_products")
@judged(
    "narrow_state", "Weights, what moves them and the optimizer's moments are float32", "Section 3", id="master_weights"
)
@judged(
    "rounded_share",
    "Weights are not rounded to bfloat16: 16 of 32 bits are not mostly zero",
    "Section 3",
    id="unrounded_weights",
    at_most=0.01,
)
@judged(
    "scale", "The backward pass is the loss's own: no loss scale", "Abstract", id="no_scale", equals=1.0, tolerance=1e-6
)
@judged("changed_settings", "Hyper-parameters are the float32 run's", "Abstract", id="same_rate")
def probes(recording: Recording, own: BFloat16) -> Mapping[str, float]:
    """Layers, tensors and settings that are not as stated are counted; ``rounded_share`` is of the weights that moved,
    ``scale`` the size of the pass's gradients over the plain loss's."""
    run, trace = recording.run, recording.trace
    gradients, after = trace.of("backward")[0].gradients, trace.after
    held = [*after.parameters.values(), *gradients.values()]
    held += [value for state in after.state.values() for value in state.values() if isinstance(value, Tensor)]
    plain = recording.gradients_at(trace.before.parameters)
    recipe, asked = run.recipe.as_dict(), run.baseline.recipe_of(run.job.setting).as_dict()
    moved = torch.cat([after.parameters[name].flatten() for name in gradients])
    moved = moved[moved != torch.cat([trace.before.parameters[name].flatten() for name in gradients])]
    return {
        "wide_products": _wide_products(recording),
        "narrow_state": sum(parameter.dtype != torch.float32 for parameter in held),
        "rounded_share": (moved.bfloat16().float() == moved).double().mean().item(),
        "scale": _norm(gradients) / _norm(plain),
        "changed_settings": sum(recipe[name] != value for name, value in asked.items() if name != "precision"),
    }


def _norm(gradients: Mapping[str, Tensor]) -> float:
    return torch.cat([gradient.flatten().double() for gradient in gradients.values()]).norm().item()


def _wide_products(recording: Recording) -> int:
    wide: set[str] = set()

    def look(name: str, output: Tensor) -> None:
        if output.dtype != torch.bfloat16:
            wide.add(name)

    hooks = [
        part.module.register_forward_hook(lambda _, __, output, name=part.path: look(name, output))
        for part in recording.run.anatomy.linears
    ]
    try:
        recording.outputs_at(recording.trace.before.parameters)
    finally:
        for hook in hooks:
            hook.remove()
    return len(wide)
