"""Has the data-parallel ranks that exchange compressed gradients. For every entry of the folder: each says what is
exchanged.

::

    forward, backward of the own examples ── exchange: own gradients -> their mean, approximately ── clip, step

The exchange begins when the backward pass is over, in one thread: methods with several collectives in a row would
start them, from the hooks of several buckets, in an order that differs between ranks. So nothing overlaps with the
backward pass. Every rank computes the mean from the same bytes in the same order, so that replicas stay equal to the
bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from suite.loop.recipe import Recipe
from suite.loop.run import Run
from suite.loop.sites import Act, Site
from suite.loop.technique import Technique, auxiliary_of
from techniques.communication.shared.exchange import Message, gathered
from techniques.shared.replicas import begin_alike, first_rank_s_statistics


@dataclass
class CompressedRanks(Technique):
    """The global batch stays as it is; each of the ``ranks`` sees ``batch_size / ranks`` examples of it.

    Subclasses override :meth:`exchange`. ``errors`` are what a rank has not sent yet, by the parameter's name.
    """

    ranks: int = 2
    errors: dict[str, Tensor] = field(init=False, repr=False, default_factory=dict)
    beside: set[str] = field(init=False, repr=False, default_factory=set)  # names of what trains beside the model
    exchanged: Act = field(init=False, repr=False, default_factory=Act)

    def __post_init__(self) -> None:
        if self.ranks < 2:
            raise ValueError(f"ranks that exchange gradients are 2 or more, not {self.ranks}")

    def exchange(self, gradients: dict[str, Tensor], run: Run) -> dict[str, Tensor]:
        """Returns, from this rank's gradients, float32, what the optimizer gets, by the parameter's name; the same on
        every rank."""
        raise NotImplementedError

    def recipe(self, recipe: Recipe) -> Recipe:
        return replace(recipe, world_size=self.ranks)

    def parallelize(self, model: nn.Module, mesh: DeviceMesh) -> nn.Module:
        begin_alike(model, mesh.get_group())
        return model

    @torch.no_grad()
    def after_backward(self, run: Run) -> None:
        parameters = run.trained_parameters()
        own = {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in parameters.items()}
        auxiliary = auxiliary_of(run.optimizer)
        self.beside = {name for name, parameter in parameters.items() if id(parameter) in auxiliary}
        for name, mean in self.exchange({name: value.float() for name, value in own.items()}, run).items():
            parameters[name].grad = mean.to(own[name].dtype)
        first_rank_s_statistics(run.model, run.group)
        self.exchanged()

    def sites(self, run: Run) -> Mapping[str, Site]:
        return {"exchanges the gradients": self.exchanged, **run.trained_parameters()}

    def state(self) -> dict[str, Any]:
        """Returns the state of this rank: no other has the same."""
        return {"errors": dict(self.errors)}

    def restore(self, state: dict[str, Any], run: Run) -> None:
        self.errors = dict(state["errors"])


@dataclass
class GatheredRanks(CompressedRanks):
    """Each rank sends its compressed gradients to all, in one all-gather, and every rank adds them up.

    With ``feedback`` what compression has lost is added to the next gradient (Seide et al., Interspeech 2014,
    section 3; Stich et al., 1809.07599, Algorithm 1):

        a = g + e        e = a - decompress(compress(a))
    """

    feedback: bool = True

    def compress(self, x: Tensor) -> Message:
        """Returns what is sent for ``x``, float32 of a gradient's shape; parts have shapes that follow from it
        alone."""
        raise NotImplementedError

    def decompress(self, message: Message, shape: torch.Size) -> Tensor:
        """Returns what :meth:`compress` has kept, float32."""
        raise NotImplementedError

    def pack(self, gradient: Tensor, error: Tensor | None) -> tuple[Message, Tensor | None]:
        """Returns what is sent for ``gradient`` and ``error`` together, and what that leaves out, with feedback. A
        kernel that does both in one pass is called here."""
        wanted = gradient + error if error is not None else gradient
        message = self.compress(wanted)
        return message, wanted - self.decompress(message, wanted.shape) if self.feedback else None

    def exchange(self, gradients: dict[str, Tensor], run: Run) -> dict[str, Tensor]:
        messages = []
        for name, gradient in gradients.items():
            message, left = self.pack(gradient, self.errors.get(name))
            messages.append(message)
            if left is not None:
                self.errors[name] = left
        totals = {name: torch.zeros_like(gradient) for name, gradient in gradients.items()}
        for theirs in gathered(messages, run.group):
            for total, message in zip(totals.values(), theirs, strict=True):
                total += self.decompress(message, total.shape)
        return {name: total.div_(self.ranks) for name, total in totals.items()}
