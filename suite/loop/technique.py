"""Has the contract of a technique: it overrides only what it changes.

When each method runs, time going to the right and then down::

    set-up      recipe ── data ── model ── [parallelize] ── parameters ── [optimizer] ── wrap_optimizer ── sites
                                           several ranks

    each step   ┌ around_step ─────────────────────────────────────────────────────────┐
                │ [update]  forward ─ loss ─ backward ─ after_backward ─ clip ─ step   │ ── after_step
                └──────────────────────────────────────────────────────────────────────┘

    evaluation  evaluated

    save        state                       resume     restore

    the end     probes

Methods in brackets are *slots*: one technique of a stack may fill each. The others are *chained*: they apply in stack
order, each on the result of the one before. ``update`` is the whole middle of a step; by default it does what stands
behind it. What a class overrides decides what it conflicts with: nothing is declared twice.

``sites`` says where the technique acts. The first step proves that it does, or ends the run
(:mod:`suite.loop.attachment`).

Hyper-parameters are dataclass fields with the paper's defaults; every one can be set on the command line
(``lora:rank=4``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from suite.record.job import StackError

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.distributed.device_mesh import DeviceMesh
    from torch.optim import Optimizer

    from suite.loop.data import Batch, Data
    from suite.loop.recipe import Recipe
    from suite.loop.run import Run
    from suite.loop.sites import Site

PLANS = "plans how the same blocks run"
"""What those take that run blocks again, or keep what they save elsewhere (:attr:`Technique.takes`)."""

NO_OWN_GRADIENTS = (
    "a technique acts on the gradients of each rank's own examples, and these ranks have shards of all ranks' alone; "
    "take ranks that have a model each"
)

ParameterGroups = list[dict[str, Any]]
"""torch's parameter groups: each has ``params`` and ``weight_decay``, optionally ``learning_rate_scale``, and
``auxiliary`` where the model's outputs do not depend on them (what trains beside it, by an added loss): whatever takes
the norm of all gradients takes theirs apart, or the model's own would shrink by what is no gradient of it."""

AUXILIARY = "auxiliary"


def auxiliary_of(optimizer: Optimizer) -> set[int]:
    """Returns the ids of the parameters that train beside the model: a technique marks their groups so."""
    return {id(p) for group in optimizer.param_groups if group.get(AUXILIARY) for p in group["params"]}


def with_auxiliary(groups: ParameterGroups, auxiliary: Collection[Any]) -> ParameterGroups:
    """Returns the groups, with those of their parameters that are ``auxiliary`` in groups of their own."""
    ids = {id(parameter) for parameter in auxiliary}
    parts = [
        {
            **group,
            "params": [p for p in group["params"] if (id(p) in ids) == beside],
            **({AUXILIARY: True} if beside else {}),
        }
        for beside in (False, True)
        for group in groups
    ]
    return [group for group in parts if group["params"]]


class Unavailable(RuntimeError):
    """Is raised where this machine cannot run the technique; the message says exactly why. A result, not a failure."""


@dataclass
class Technique:
    """Implements one technique; an instance serves one run and may keep that run's state in attributes."""

    zero_strength: ClassVar[Mapping[str, Any] | None] = None
    """Hyper-parameters at which the technique is its reference to the bit (rho 0, ratio 1, ...), where such exist."""

    takes: ClassVar[str] = ""
    """What of a step it has to itself beside its slots, in words that follow *each* (plans how the same blocks run):
    two techniques of a stack that take the same exclude one another."""

    whole_batch: ClassVar[bool] = False
    """Whether what it adds to the loss is no mean over the examples, so that a batch's parts do not add up to it."""

    @property
    def is_reference(self) -> bool:
        """Tells whether it is at zero strength."""
        zero = self.zero_strength
        return zero is not None and all(getattr(self, name) == value for name, value in zero.items())

    @property
    def shards_parameters(self) -> bool:
        """Whether :meth:`parallelize` leaves each rank with shards of the parameters alone, whose gradients are of all
        ranks' examples together."""
        return False

    @property
    def takes_own_gradients(self) -> bool:
        """Whether it acts on the gradients of each rank's own examples (:meth:`suite.loop.run.Run.unreduced`)."""
        return False

    # chained
    def recipe(self, recipe: Recipe) -> Recipe:
        """Changes hyper-parameters: batch, learning rate, schedule, steps, precision, world size."""
        return recipe

    def data(self, data: Data, run: Run) -> Data:
        """Changes examples, sampler, transform; its cost is set-up time, which is counted."""
        return data

    def model(self, model: nn.Module, run: Run) -> nn.Module:
        """Does surgery and initialisation, through ``anatomy(model)``."""
        return model

    def parameters(self, groups: ParameterGroups, run: Run) -> ParameterGroups:
        """Returns what the optimizer gets: freezing, weight-decay exclusions, learning-rate scales, shards."""
        return groups

    def wrap_optimizer(self, optimizer: Optimizer, run: Run) -> Optimizer:
        """Puts an optimizer around the one that the slot made: gradients changed before its step, weights averaged
        after it. Called at set-up, and again whenever the model grows; it moves the parameters of ``optimizer``."""
        return optimizer

    def around_step(self, run: Run) -> AbstractContextManager[Any]:
        """Returns what is active during every update: saved-tensor hooks, attention swap, recomputation."""
        return nullcontext()

    def unreduced(self, run: Run) -> AbstractContextManager[Any]:
        """Returns what is active around backward passes whose gradients stay this rank's own, as SAM's first: what
        ranks exchange while a pass goes on, they leave out."""
        return nullcontext()

    def loss(self, loss: Tensor, outputs: Any, batch: Batch, run: Run) -> Tensor:
        """Adds terms or example weights; ``loss`` is the mean over the batch so far."""
        return loss

    def after_backward(self, run: Run) -> bool | None:
        """Acts when the gradients are there, and the update is not: mask, read, reduce. True leaves the update out."""
        return None

    def after_step(self, run: Run) -> None:
        """Acts when the update is done: topology updates, growth, snapshots. ``run.step`` counts the finished steps."""

    def evaluated(self, model: nn.Module, run: Run) -> nn.Module:
        """Returns the model to evaluate: averaged weights, merged adapters. Must leave the training model as it was."""
        return model

    def probes(self, run: Run) -> Mapping[str, float]:
        """Returns the technique's own measurements of what a run has learned, at its end. What single steps show is
        read from outside, by a ``probes.py`` beside the technique (:mod:`suite.reading.recording`)."""
        return {}

    def sites(self, run: Run) -> Mapping[str, Site]:
        """Names what the technique acts on, by names for people: modules that must run and parameters that must get a
        gradient in the first step, and acts. Whoever replaces or wraps the optimizer acts on all that it moves; every
        other technique names its own, at least one unless it is at ``zero_strength``."""
        own = overrides(self, "optimizer") or overrides(self, "wrap_optimizer")
        return run.trained_parameters() if own else {}

    def state(self) -> dict[str, Any]:
        """Returns what a resumed run needs beyond model and optimizer: tensors, numbers, strings, in dicts and
        lists."""
        return {}

    def restore(self, state: dict[str, Any], run: Run) -> None:
        """Does the inverse of :meth:`state`, called before model and optimizer get their saved state."""

    # slots
    def optimizer(self, parameters: ParameterGroups, recipe: Recipe) -> Optimizer:
        """Returns the optimizer over the parameter groups; AdamW as the recipe asks for it."""
        from torch.optim import AdamW  # what only looks at techniques needs no torch

        return AdamW(
            parameters,
            lr=recipe.learning_rate,
            betas=(recipe.beta1, recipe.beta2),
            eps=recipe.eps,
            foreach=False,
            fused=recipe.fused_optimizer,
        )

    def update(self, run: Run, batch: Batch) -> None:
        """Does one optimisation step: forward, backward, apply_gradients. Sets ``run.loss``."""
        run.optimizer.zero_grad(set_to_none=True)
        loss = run.forward(batch)
        run.backward(loss)
        run.loss = loss.detach()
        run.apply_gradients()

    def parallelize(self, model: nn.Module, mesh: DeviceMesh) -> nn.Module:
        """Distributes the model; called when ``recipe.world_size > 1``, before parameter groups are made."""
        raise StackError(
            f"world_size is {mesh.size()} but no technique of the stack distributes the model; add one of the "
            "parallelism category"
        )


CHAINED = (
    "recipe",
    "data",
    "model",
    "parameters",
    "wrap_optimizer",
    "around_step",
    "unreduced",
    "loss",
    "after_backward",
    "after_step",
    "evaluated",
    "probes",
)
SLOTS = ("optimizer", "update", "parallelize")


def overrides(technique: Technique | type[Technique], method: str) -> bool:
    """Tells whether the technique changes ``method``."""
    cls = technique if isinstance(technique, type) else type(technique)
    return getattr(cls, method) is not getattr(Technique, method)
