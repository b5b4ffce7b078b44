"""Composing techniques: a stack is itself a technique.

A stack is written ``lion+flashattention+lora:rank=4,alpha=8``: ids joined by ``+``, hyper-parameters after ``:``. Ids
begin with a letter, so a ``+`` before a digit is part of a number (``lion:factor=1e+2``).
"""

from __future__ import annotations

import re
import types
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import MISSING, fields
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.optim import Optimizer

from suite.contract.data import Batch, Data
from suite.contract.recipe import Recipe
from suite.contract.run import Run, adamw, plain_update
from suite.contract.technique import SLOTS, ParameterGroups, Technique, overrides


class StackError(ValueError):
    """A stack that cannot be built; the message says why and what to do."""


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

    def _slot(self, method: str) -> Technique | None:
        return next((each for each in self.techniques.values() if overrides(each, method)), None)

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

    def after_backward(self, run: Run) -> None:
        for technique in self.techniques.values():
            technique.after_backward(run)

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

    def state(self) -> dict[str, Any]:
        return {name: technique.state() for name, technique in self.techniques.items()}

    def restore(self, state: dict[str, Any], run: Run) -> None:
        for name, technique in self.techniques.items():
            technique.restore(state[name], run)

    def optimizer(self, parameters: ParameterGroups, recipe: Recipe) -> Optimizer:
        filled = self._slot("optimizer")
        return filled.optimizer(parameters, recipe) if filled else adamw(parameters, recipe)

    def update(self, run: Run, batch: Batch) -> None:
        filled = self._slot("update")
        if filled:
            filled.update(run, batch)
        else:
            plain_update(run, batch)

    def parallelize(self, model: nn.Module, mesh: DeviceMesh) -> nn.Module:
        filled = self._slot("parallelize")
        if filled is None:
            raise StackError(
                f"world_size is {mesh.size()} but no technique of the stack distributes the model; add one of "
                f"the parallelism category"
            )
        return filled.parallelize(model, mesh)


def split(text: str) -> list[tuple[str, dict[str, str]]]:
    """``"a+b:x=1,y=2"`` -> ``[("a", {}), ("b", {"x": "1", "y": "2"})]``; raises StackError on a malformed part."""
    parts: list[tuple[str, dict[str, str]]] = []
    for part in filter(None, (piece.strip() for piece in re.split(r"\+(?![0-9])", text))):
        name, settings = (each.strip() for each in part.partition(":")[::2])
        values: dict[str, str] = {}
        for setting in filter(None, (each.strip() for each in settings.split(","))):
            key, equals, value = (each.strip() for each in setting.partition("="))
            if not equals or not key or not value:
                raise StackError(f"{part!r}: write hyper-parameters as {name}:name=value,name=value; got {setting!r}")
            if key in values:
                raise StackError(f"{part!r}: {key} is set twice")
            values[key] = value
        if name in (each for each, _ in parts):
            raise StackError(f"{text!r}: {name} stands twice in the stack")
        parts.append((name, values))
    return parts


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


def written(techniques: Sequence[tuple[str, Mapping[str, str]]]) -> str:
    """The inverse of :func:`split`: one canonical spelling for a stack."""
    return "+".join(
        name + (":" + ",".join(f"{key}={values[key]}" for key in sorted(values)) if values else "")
        for name, values in techniques
    )
