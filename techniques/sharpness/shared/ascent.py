"""Makes SAM's ascent to the worst point of a small ball around the weights, and the way back to the bit.

For ``sam``, ``vit_sam`` and ``esam``, whose updates begin with it, and for `sharpness`, which measures how far the loss
rises on the way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensor
from torch.autograd.graph import increment_version
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from suite.device.random_state import RandomState
from suite.kernels.optimizer import launchable
from suite.kernels.sharded import distributed_as, local, local_gradient, total_norm
from suite.loop.data import Batch
from suite.loop.run import Run
from suite.loop.sites import Act, Site
from suite.loop.technique import Technique, auxiliary_of

ETA = 0.01  # of ASAM's experiments: weights of zero are perturbed too


@torch.no_grad()
def ascend(
    parameters: Sequence[Tensor], rho: float, launch: dict[str, Any] | None = None, adaptive: bool = False
) -> list[Tensor]:
    """Moves ``parameters`` by rho along their joint normalised gradient; returns what they were, for :func:`restore`.

    The norm is over all of them together, of DTensors over all ranks; where ``adaptive``, the ball is ASAM's. w + e is
    written to new memory, to which the parameters point until they are restored: that takes no pass, and gives back
    the weights to the bit. What reads the weights by another way than the parameters, such as a CUDA graph of the
    forward pass alone, does not see it. Parameters that do not stand `apart` are copied and moved in place.

    Their gradients may be overwritten with the step. On a GPU this is three launches, unless ``adaptive`` or in place;
    a dictionary ``launch``, empty at first, keeps their tables between calls for the same parameters.
    """
    own = list(map(local, parameters))
    steps = [local_gradient(parameter) for parameter in parameters if parameter.grad is not None]
    pointed = apart(parameters)
    if pointed and not adaptive and launchable([*own, *steps]):
        from techniques.sharpness.shared import ascent_kernel as kernel

        launch = {} if launch is None else launch
        if "tables" not in launch:
            launch["tables"] = kernel.launch_tables()
        return _pointed(parameters, kernel.ascend(own, steps, rho, launch["tables"]))
    scales = scales_of(own) if adaptive else []
    if adaptive:
        torch._foreach_mul_(steps, scales)
    norm = total_norm([distributed_as(parameter, step) for parameter, step in zip(parameters, steps, strict=True)])
    torch._foreach_mul_(steps, rho / (norm + 1e-12))  # the guard of the authors' code for a zero gradient
    if adaptive:
        torch._foreach_mul_(steps, scales)
    if pointed:
        return _pointed(parameters, torch._foreach_add(own, steps))
    copies = [parameter.clone() for parameter in own]
    torch._foreach_add_(own, steps)
    increment_version(parameters)
    return copies


@torch.no_grad()
def restore(parameters: Sequence[Tensor], weights: Sequence[Tensor]) -> None:
    """Undoes :func:`ascend`, to the bit."""
    if apart(parameters):
        _pointed(parameters, weights)
    else:
        torch._foreach_copy_(list(map(local, parameters)), list(weights))
        increment_version(parameters)


def apart(parameters: Sequence[Tensor]) -> bool:
    """Tells whether each parameter alone has its memory, so that it may point elsewhere for a while.

    Views (of flattened weights, of a buffer that ranks share out) and tied weights are read through others, too; FSDP2
    gathers a DTensor by a view of its own.
    """
    if any(map(is_traceable_wrapper_subclass, parameters)):
        return False
    storages = [parameter.untyped_storage() for parameter in parameters]
    whole = all(storage.nbytes() == parameter.nbytes for storage, parameter in zip(storages, parameters, strict=True))
    return whole and len({storage._cdata for storage in storages}) == len(storages)


def _pointed(parameters: Sequence[Tensor], values: Sequence[Tensor]) -> list[Tensor]:
    """Lets the parameters point to ``values``; returns what they pointed to."""
    before = [parameter.data for parameter in parameters]
    for parameter, value in zip(parameters, values, strict=True):
        parameter.data = value
    increment_version(parameters)  # a graph that has saved them must not go backward with others
    return before


def scales_of(parameters: Sequence[Tensor]) -> list[Tensor]:
    """Computes ASAM's T: |w| + ETA for matrices, 1 for vectors (biases; here also the scales of norms)."""
    return [parameter.abs() + ETA if parameter.ndim >= 2 else torch.ones_like(parameter) for parameter in parameters]


@contextmanager
def buffers_kept(model: nn.Module | None) -> Iterator[None]:
    """Passes in here leave the buffers of a model, running statistics among them, as they are."""
    buffers = [] if model is None else list(model.buffers())
    copies = [buffer.clone() for buffer in buffers]
    yield
    with torch.no_grad():
        for buffer, copied in zip(buffers, copies, strict=True):
            buffer.copy_(copied)


class Noise:
    """Keeps the state of every random generator that a forward pass draws from, so that a later pass sees the same
    masks."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.drawn = RandomState.now(run.device)
        self.own = run.generator.get_state()

    @contextmanager
    def replayed(self) -> Iterator[None]:
        """Lets a pass in here draw the same noise, and leaves the model's buffers as they are: running statistics are
        the first pass's, at the weights themselves."""
        self.drawn.restore()
        self.run.generator.set_state(self.own)
        with buffers_kept(self.run.model):
            yield


def finite(run: Run, parameters: Sequence[Tensor]) -> bool:
    """Returns whether the first gradient is finite. Where it is not, the caller leaves the whole update out, so that
    weights and optimizer state stay.

    Always True under several ranks: none may leave out what the others go on with, and there it spoils the update, as
    it does the reference's.
    """
    if run.world_size > 1:
        return True
    norm = nn.utils.get_total_norm([parameter.grad for parameter in parameters if parameter.grad is not None])
    return isinstance(norm, FakeTensor) or bool(norm.isfinite())  # a fake one has no value to ask for


def weights_with_gradient(run: Run) -> list[Tensor]:
    """Returns the weights that the ball is around: the model's own that train, whole, also where the optimizer holds
    shards of them."""
    beside = auxiliary_of(run.optimizer)
    own = [p for group in run.default_parameters() for p in group["params"] if id(p) not in beside]
    return [parameter for parameter in own if parameter.grad is not None]


@dataclass(frozen=True)
class Ascent:
    """Marks where a sharpness-aware update acts: it moves the weights to the worst point of the ball, and back."""

    away: Act = field(default_factory=Act)
    back: Act = field(default_factory=Act)

    def sites(self, run: Run) -> dict[str, Site]:
        """Returns both acts, and every parameter that is trained."""
        return {"moves the weights": self.away, "moves them back": self.back, **run.trained_parameters()}


def sharpness_aware_update(
    run: Run, batch: Batch, rho: float, acts: Ascent, launch: dict[str, Any] | None = None, adaptive: bool = False
) -> None:
    """Makes one step along the gradient taken at the worst point of the ball; ``launch`` as for :func:`ascend`."""
    run.optimizer.zero_grad(set_to_none=True)
    noise = Noise(run)
    with run.unreduced():  # of several ranks, each ascends on its own examples
        loss = run.forward(batch)
        run.backward(loss)
    run.loss = loss.detach()
    trained = weights_with_gradient(run)
    if not finite(run, trained):
        return
    weights = ascend(trained, rho, launch, adaptive)
    acts.away()
    run.model.zero_grad(set_to_none=True)
    with noise.replayed():
        run.backward(run.forward(batch))
    restore(trained, weights)
    acts.back()
    run.apply_gradients()


def check_radius(rho: float) -> None:
    """Raises ValueError for a radius that no ball has."""
    if not rho >= 0:
        raise ValueError(f"rho, the radius of the ball, must be 0 or more, not {rho}")


@dataclass
class SharpnessAware(Technique):
    """Two forward and two backward passes a step; the second gradient is clipped and given to the optimizer.

    ``adaptive`` is ASAM, whose radii are larger: 0.5 to 2.
    """

    rho: float
    adaptive: bool = False
    launch: dict[str, Any] = field(init=False, repr=False, compare=False, default_factory=dict)
    acts: Ascent = field(init=False, repr=False, compare=False, default_factory=Ascent)

    zero_strength: ClassVar[dict[str, Any]] = {"rho": 0.0}

    @property
    def takes_own_gradients(self) -> bool:
        return True

    def __post_init__(self) -> None:
        check_radius(self.rho)

    def update(self, run: Run, batch: Batch) -> None:
        sharpness_aware_update(run, batch, self.rho, self.acts, self.launch, self.adaptive)

    def sites(self, run: Run) -> Mapping[str, Site]:
        return self.acts.sites(run)
