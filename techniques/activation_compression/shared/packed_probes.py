"""Has what probes of ``actnn`` and ``gact`` share: gradient passes with packed activations, repeated with other
roundings, and the bytes that a pass saves, against those of so many bits for each number.

Nothing here asks the packing what it does: outputs and gradients are the model's, bytes those that autograd keeps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from suite.meters.activations import SavedActivations
from suite.model.anatomy import Part
from suite.reading.recording import Recording
from suite.reading.trace import Trace

GROUP = 256
Around = Callable[[], AbstractContextManager[Any]]


def gradients(
    recording: Recording, around: Around, outputs: list[Tensor] | None = None, trace: Trace | None = None
) -> dict[str, Tensor]:
    """Computes gradients, by name, of a recorded batch (the last) at the parameters before its step, ``around`` active
    meanwhile; the model's outputs are added to ``outputs``."""
    trace = trace or recording.trace

    def noted(result: Any) -> Tensor:
        if outputs is not None:
            outputs.append(result.logits.detach().clone())
        return torch.zeros(())

    with around():
        return recording.gradients_at(trace.before.parameters, trace, added=noted)


def flat(of_names: dict[str, Tensor]) -> Tensor:
    """Joins all gradients into one vector, float64."""
    return torch.cat([of_names[name].flatten().double() for name in sorted(of_names)])


def outputs_changed(recording: Recording, plain: Around, packing: Around) -> int:
    """Counts the numbers of the model's outputs that packing changes."""
    outputs: list[Tensor] = []
    for around in (plain, packing):
        gradients(recording, around, outputs)
    return int((outputs[0] != outputs[1]).sum())


def drawn(recording: Recording, around: Around, draws: int, trace: Trace | None = None) -> Tensor:
    """Gradients [draws, numbers] of a recorded batch (the last), float64: each of its own roundings."""
    return torch.stack([flat(gradients(recording, around, trace=trace)) for _ in range(draws)])


def bias(exact: Tensor, drawn: Tensor) -> float:
    """Computes the squared distance of the mean of ``drawn`` from ``exact``, over what it is on average where E drawn =
    exact: the variance over the number of draws. Infinite where nothing is drawn at random."""
    expected = drawn.var(0).sum().item() / len(drawn)
    return (drawn.mean(0) - exact).square().sum().item() / expected if expected else math.inf


def watched(recording: Recording, around: Around) -> Watched:
    """Records what autograd keeps for a backward pass, the model's own aside."""
    with Watched(recording.run.model) as saved:
        gradients(recording, around)
    return saved


def budget_bytes(recording: Recording, bits: float, of_loss: float, rows: int) -> float:
    """Returns the bytes of a pass that takes ``bits`` for each activation, ``of_loss`` for each that the loss saves,
    outside of the model, all else as it is; in ``rows`` rows, where a tensor's numbers divide into as many."""
    total = 0.0
    for saved in saved_storages(recording):
        size = saved.tensor.untyped_storage().nbytes()
        if saved.activation:
            numbers, width = size // saved.tensor.element_size(), bits if saved.in_model else of_loss
            parts = rows if numbers % rows == 0 else 1
            total += numbers * width / 8 + 4 * parts * math.ceil(numbers / parts / GROUP)
        else:
            total += size
    return total


def activations(recording: Recording) -> int:
    """Counts the activations that a pass saves, each once; parts of one storage, as queries, keys and values of one
    product are, are several."""
    return sum(len(saved.offsets) for saved in saved_storages(recording) if saved.activation)


@dataclass
class SavedStorage:
    """Describes a tensor that a pass saves; whether that is an activation, with a gradient and two dimensions, and
    whether the model saves it, and not the loss; where what is saved of it begins, in elements."""

    tensor: Tensor
    activation: bool
    in_model: bool
    offsets: set[int] = field(default_factory=set)


def saved_storages(recording: Recording) -> list[SavedStorage]:
    """Returns each storage that a plain pass saves, the model's own aside."""
    model = recording.run.model
    own = {parameter.untyped_storage()._cdata for parameter in (*model.parameters(), *model.buffers())}
    storages: dict[int, SavedStorage] = {}  # tensors stay alive, so that no storage comes back as another
    running: list[bool] = []

    def noted(tensor: Tensor) -> Tensor:
        has_graph = tensor.grad_fn is not None
        whole = tensor.detach() if has_graph else tensor
        seen = SavedStorage(whole, has_graph and tensor.ndim > 1, bool(running))
        storages.setdefault(tensor.untyped_storage()._cdata, seen).offsets.add(int(tensor.storage_offset()))
        return whole

    handles = [
        model.register_forward_pre_hook(lambda *_: running.append(True)),
        model.register_forward_hook(lambda *_: running.clear()),
    ]
    gradients(recording, lambda: saved_tensors_hooks(noted, lambda tensor: tensor))
    for handle in handles:
        handle.remove()
    return [value for storage, value in storages.items() if storage not in own]


def least_variance(costs: Tensor, weights: Tensor, mean: float, widest: int) -> Tensor:
    """Returns the bits of each that make sum C / (2^b - 1)^2 + multiplier sum w b least, for the least multiplier
    whose bits are no more than ``mean`` on average; all are 1, 2, 4, 8 or 32, up to ``widest``, where nothing is
    lost at 32."""
    widths = torch.tensor([width for width in (1, 2, 4, 8, 32) if width <= widest])
    variances = torch.where(widths < 32, 1 / (2.0**widths - 1).double() ** 2, 0.0)

    def at(multiplier: float) -> Tensor:
        return widths[(costs[:, None] * variances + multiplier * weights[:, None] * widths).argmin(1)]

    low, high = 0.0, costs.max().item()
    for _ in range(200):
        middle = (low + high) / 2
        over = (weights * at(middle)).sum() > mean * weights.sum()
        low, high = (middle, high) if over else (low, middle)
    return at(high)


class Watched(SavedActivations):
    """Counts, beside the bytes, tensors that autograd does not get back as they were: neither activations nor masks."""

    others_packed = 0

    def _packing(self, pack: Callable[[Tensor], Any]) -> Callable[[Tensor], Any]:
        own = self._owned()

        def watched(tensor: Tensor) -> Any:
            packed = pack(tensor)
            another = not tensor.requires_grad or tensor.untyped_storage()._cdata in own
            if another and tensor.dtype != torch.bool and not isinstance(packed, Tensor):
                self.others_packed += 1
            return packed

        return super()._packing(watched)


class AtLayer:
    """While active, it collects the input of a linear layer and the gradient of its output, of each pass."""

    def __init__(self, layer: Part) -> None:
        self.layer = layer
        self.inputs: list[Tensor] = []
        self.gradients: list[Tensor] = []

    def __enter__(self) -> AtLayer:
        self.handle = self.layer.module.register_forward_hook(self._ran)
        return self

    def __exit__(self, *_: object) -> None:
        self.handle.remove()

    def _ran(self, module: Any, args: tuple[Tensor, ...], output: Tensor) -> None:
        self.inputs.append(args[0].detach())
        output.register_hook(lambda gradient: self.gradients.append(gradient.detach()))
