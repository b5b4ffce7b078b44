"""Composing techniques: a stack is itself a technique. :mod:`suite.record.job` has its spelling."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin, get_type_hints

from suite.entries.catalogue import catalogue, lookup
from suite.loop.recipe import Recipe
from suite.loop.sites import NotAttached, Site
from suite.loop.technique import SLOTS, ParameterGroups, Technique, overrides
from suite.record.job import BASELINE, StackError, split

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.distributed.device_mesh import DeviceMesh
    from torch.optim import Optimizer

    from suite.loop.data import Batch, Data
    from suite.loop.run import Run


class Stack(Technique):
    """Techniques in order. Chained methods pass through all of them; a slot is filled by the one that overrides it."""

    def __init__(self, techniques: Mapping[str, Technique]) -> None:
        self.techniques = dict(techniques)
        for slot in SLOTS:
            claimants = [name for name, technique in self.techniques.items() if overrides(technique, slot)]
            if len(claimants) > 1:
                raise StackError(
                    f"{' and '.join(claimants)} cannot be stacked: each replaces the {slot.replace('_', ' ')}; "
                    f"keep one of them"
                )

    def _filling(self, slot: str) -> Technique:
        """The technique that fills a slot; without one, what every technique does there by default."""
        return next((each for each in self.techniques.values() if overrides(each, slot)), Technique())

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
        for technique in self.techniques.values():
            groups = technique.parameters(groups, run)
        return groups

    def around_step(self, run: Run) -> AbstractContextManager[Any]:
        active = [technique for technique in self.techniques.values() if overrides(technique, "around_step")]

        @contextmanager
        def nested() -> Iterator[None]:
            with ExitStack() as stack:
                for technique in active:
                    stack.enter_context(technique.around_step(run))
                yield

        return nested()

    def loss(self, loss: Tensor, outputs: Any, batch: Batch, run: Run) -> Tensor:
        for technique in self.techniques.values():
            loss = technique.loss(loss, outputs, batch, run)
        return loss

    def after_backward(self, run: Run) -> bool | None:
        left_out = [technique.after_backward(run) for technique in self.techniques.values()]  # all are asked
        return any(left_out)

    def after_step(self, run: Run) -> None:
        for technique in self.techniques.values():
            technique.after_step(run)

    def evaluated(self, model: nn.Module, run: Run) -> nn.Module:
        for technique in self.techniques.values():
            model = technique.evaluated(model, run)
        return model

    def probes(self, run: Run) -> dict[str, float]:
        return {
            f"{name}.{probe}": float(value)
            for name, technique in self.techniques.items()
            for probe, value in technique.probes(run).items()
        }

    def sites(self, run: Run) -> dict[str, Site]:
        """As ``technique.site``, without techniques at zero strength. Raises NotAttached where one names none."""
        merged: dict[str, Site] = {}
        for name, technique in self.techniques.items():
            if technique.is_reference:
                continue
            sites = technique.sites(run)
            if not sites:
                raise NotAttached(
                    f"{name} names no site, so nothing shows that it does anything: return the modules, parameters or "
                    "acts that it works at from its method sites()"
                )
            merged |= {f"{name}.{site}": each for site, each in sites.items()}
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


def build(stack: str) -> Stack:
    """The stack spelled as ``a+b:x=1``; ``""`` and ``baseline`` are the empty one.

    Raises UnknownId and StackError, both with one clear sentence.
    """
    if stack in ("", BASELINE):
        return Stack({})
    parts = split(stack)
    if not parts:
        raise StackError(f"{stack!r} names no technique")
    entries = catalogue()
    return Stack(
        {name: configured(lookup("technique", name, entries).technique, name, settings) for name, settings in parts}
    )


def configured(cls: type[Technique], name: str, settings: Mapping[str, str]) -> Technique:
    """An instance of ``cls`` with hyper-parameters parsed by their declared types; raises StackError on a bad one."""
    hints = get_type_hints(cls)
    known = {field.name: field for field in fields(cls) if field.init}
    values = {}
    for key, text in settings.items():
        if key not in known:
            has = ", ".join(f"{each.name}={'' if each.default is MISSING else each.default}" for each in known.values())
            raise StackError(f"{name} has no hyper-parameter {key!r}; it has: {has or 'none'}")
        try:
            values[key] = _parsed(hints[key], text)
        except ValueError as error:
            raise StackError(f"{name}:{key}={text}: {error}") from None
    try:
        return cls(**values)
    except ValueError as error:
        raise StackError(f"{name}: {error}") from None


def _parsed(hint: Any, text: str) -> Any:
    """``text`` as the annotated type: bool, int, float, str, Literal, optional or tuple (``a/b`` for tuples)."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return None if text.lower() == "none" else _parsed(next(a for a in arguments if a is not type(None)), text)
    if origin is Literal:
        for choice in arguments:
            if str(choice) == text:
                return choice
        raise ValueError(f"choose one of {', '.join(map(str, arguments))}")
    if origin is tuple:
        return tuple(_parsed(arguments[0], part) for part in text.split("/"))
    if hint is bool:
        if text.lower() not in ("true", "false", "1", "0"):
            raise ValueError("expected true or false")
        return text.lower() in ("true", "1")
    if hint in (int, float):
        try:
            return hint(text)
        except ValueError:
            raise ValueError(f"expected {'a whole number' if hint is int else 'a number'}") from None
    return text
