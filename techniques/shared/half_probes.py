"""What a recorded step shows of half precision: which products it computes in, and how far its gradients are off."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from suite.contract.recording import Recording
from suite.contract.trace import Values


def half_probes(recording: Recording, dtype: torch.dtype, gradients: Values) -> dict[str, float]:
    """``other_products``: linear layers of blocks whose output is not of ``dtype``; ``other_weights``: parameters, and
    gradients, that are not float32; ``gradient_error``: the norm of ``gradients`` less those of float32 at the same
    point, over theirs."""
    run, trace = recording.run, recording.trace
    exact = recording.twin("baseline").gradients_at(trace.before.parameters, trace)
    parameters = run.model.named_parameters()
    other = sum(each.dtype != torch.float32 for _, each in parameters)
    other += sum(each.dtype != torch.float32 for each in gradients.values())
    off = torch.stack([(gradients[name].double() - each.double()).norm() for name, each in exact.items()]).norm()
    size = torch.stack([each.double().norm() for each in exact.values()]).norm()
    return {
        "other_products": _outputs_beside(recording, dtype),
        "other_weights": other,
        "gradient_error": (off / size).item(),
    }


def _outputs_beside(recording: Recording, dtype: torch.dtype) -> int:
    seen: dict[str, bool] = {}
    handles = []
    for path, module in recording.run.anatomy.linears:

        def note(_: nn.Module, __: object, output: Tensor, path: str = path) -> None:
            seen[path] = output.dtype == dtype

        handles.append(module.register_forward_hook(note))
    recording.outputs_at(recording.trace.before.parameters)
    for handle in handles:
        handle.remove()
    return len(handles) - sum(seen.values())


def zeros_beside(ours: Mapping[str, Tensor], exact: Mapping[str, Tensor]) -> int:
    """Values that are zero here and not there."""
    return sum(int(((ours[name] == 0) & (each != 0)).sum()) for name, each in exact.items())
