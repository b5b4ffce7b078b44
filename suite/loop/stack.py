"""Composes techniques: a stack is itself a technique. :mod:`suite.record.job` has its spelling."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from suite.loop.recipe import Recipe
from suite.loop.sites import NotAttached, Site
from suite.loop.technique import SLOTS, ParameterGroups, Technique, overrides
from suite.record.job import StackError

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.distributed.device_mesh import DeviceMesh
    from torch.optim import Optimizer

    from suite.loop.data import Batch, Data
    from suite.loop.run import Run

T = TypeVar("T")


class Stack(Technique):
    """Holds techniques in order. Chained methods pass through all of them; a slot is filled by the one that overrides
    it. What one does after a pass, after a step and before evaluation begins with the ranks (:meth:`_ranks_first`)."""

    def __init__(self, techniques: Mapping[str, Technique]) -> None:
        self.techniques = dict(techniques)
        for slot in SLOTS:
            claimants = [name for name, technique in self.techniques.items() if overrides(technique, slot)]
            if len(claimants) > 1:
                raise StackError(
                    f"{' and '.join(claimants)} cannot be stacked: each replaces the {slot.replace('_', ' ')}; "
                    f"keep one of them"
                )

    def member(self, kind: type[T]) -> T:
        """Returns the stack's one technique of a class. Raises ValueError where there is none, or are several."""
        (technique,) = (member for member in self.techniques.values() if isinstance(member, kind))
        return technique

    @property
    def shards_parameters(self) -> bool:
        return any(technique.shards_parameters for technique in self.techniques.values())

    @property
    def takes_own_gradients(self) -> bool:
        return any(technique.takes_own_gradients for technique in self.techniques.values())

    def _filling(self, slot: str) -> Technique:
        """Returns the technique that fills a slot; without one, what every technique does there by default."""
        return next((member for member in self.techniques.values() if overrides(member, slot)), Technique())

    def _ranks_first(self) -> list[Technique]:
        """The techniques in order, but before all others what divides the training among ranks, wherever it stands: it
        takes the model as the others have left it, and they see the gradients and weights of all ranks."""
        return sorted(self.techniques.values(), key=lambda member: not overrides(member, "parallelize"))

    def recipe(self, recipe: Recipe) -> Recipe:
        for technique in self.techniques.values():
            recipe = technique.recipe(recipe)
        return recipe

    def data(self, data: Data, run: Run) -> Data:
        for technique in self.techniques.values():
            data = technique.data(data, run)
        return data

    def model(self, model: nn.Module, run: Run) -> nn.Module:
        for technique in self.techniques.values():
            model = technique.model(model, run)
        return model

    def parameters(self, groups: ParameterGroups, run: Run) -> ParameterGroups:
        members = self.techniques.values()
        for technique in sorted(members, key=lambda member: overrides(member, "parallelize")):  # divides what all train
            groups = technique.parameters(groups, run)
        return groups

    def wrap_optimizer(self, optimizer: Optimizer, run: Run) -> Optimizer:
        for technique in self.techniques.values():
            optimizer = technique.wrap_optimizer(optimizer, run)
        return optimizer

    def around_step(self, run: Run) -> AbstractContextManager[Any]:
        return self._nested("around_step", run)

    def unreduced(self, run: Run) -> AbstractContextManager[Any]:
        return self._nested("unreduced", run)

    @contextmanager
    def _nested(self, method: str, run: Run) -> Iterator[None]:
        """Enters all contexts that techniques give by ``method``, in their order."""
        active = [technique for technique in self.techniques.values() if overrides(technique, method)]
        with ExitStack() as stack:
            for technique in active:
                stack.enter_context(getattr(technique, method)(run))
            yield

    def loss(self, loss: Tensor, outputs: Any, batch: Batch, run: Run) -> Tensor:
        for technique in self.techniques.values():
            loss = technique.loss(loss, outputs, batch, run)
        return loss

    def after_backward(self, run: Run) -> bool | None:
        scaled_first = sorted(self._ranks_first(), key=lambda member: not overrides(member, "loss"))  # undone first
        left_out = [technique.after_backward(run) for technique in scaled_first]  # all are asked
        return any(left_out)

    def after_step(self, run: Run) -> None:
        for technique in self._ranks_first():
            technique.after_step(run)

    def evaluated(self, model: nn.Module, run: Run) -> nn.Module:
        for technique in self._ranks_first():
            model = technique.evaluated(model, run)
        return model

    def probes(self, run: Run) -> dict[str, float]:
        return {
            f"{name}.{probe}": float(value)
            for name, technique in self.techniques.items()
            for probe, value in technique.probes(run).items()
        }

    def sites(self, run: Run) -> dict[str, Site]:
        """Names the sites ``technique.site``, without those of techniques at zero strength. Raises NotAttached where
        one names none, or trains what another one has frozen."""
        merged: dict[str, Site] = {}
        for name, technique in self.techniques.items():
            if technique.is_reference:
                continue
            sites = technique.sites(run)
            if not sites and len(self.techniques) > 1:
                raise NotAttached(
                    f"{name} has nothing to act on in this stack: another technique took or froze what it changes: "
                    "leave one of them out"
                )
            if not sites:
                raise NotAttached(
                    f"{name} names no site, so nothing shows that it does anything: return the modules, parameters or "
                    "acts that it works at from its method sites()"
                )
            frozen = [site for site, place in sites.items() if getattr(place, "requires_grad", True) is False]
            whole = run.mesh is None or not run.anatomy.is_part  # of a part, what other ranks hold trains there
            if frozen and whole and len(self.techniques) > 1:
                raise NotAttached(
                    f"{name} trains {frozen[0]}, which another technique of this stack has frozen: leave one of the "
                    "two out"
                )
            merged |= {f"{name}.{site}": place for site, place in sites.items()}
        return merged

    def state(self) -> dict[str, Any]:
        return {name: technique.state() for name, technique in self.techniques.items()}

    def restore(self, state: dict[str, Any], run: Run) -> None:
        for name, technique in self.techniques.items():
            technique.restore(state[name], run)

    def optimizer(self, parameters: ParameterGroups, recipe: Recipe) -> Optimizer:
        return self._filling("optimizer").optimizer(parameters, recipe)

    def update(self, run: Run, batch: Batch) -> None:
        self._filling("update").update(run, batch)

    def parallelize(self, model: nn.Module, mesh: DeviceMesh) -> nn.Module:
        return self._filling("parallelize").parallelize(model, mesh)
