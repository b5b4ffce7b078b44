"""What is run: a setting, a stack and a seed. The one answer, from the command line to the record.

A stack is spelled ``lion+flashattention+lora:rank=4,alpha=8``: ids joined by ``+``, hyper-parameters after ``:``. Ids
begin with a letter, so a ``+`` before a digit is part of a number (``lion:factor=1e+2``). The empty stack is
``baseline``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import GetPydanticSchema

from suite.record.files import Stored

Size = Literal["pico", "nano", "micro", "mini", "base", "large"]
RecipeName = Literal["classic", "modern", "compiled"]
Task = Literal["pretrain", "adapt"]
BaselineName = str
"""The type of a hyper-parameter that names a baseline, which the technique trains besides the run's own."""
Split = Literal["pretrain", "source", "adapt"]
SIZES: tuple[Size, ...] = get_args(Size)
RECIPES: tuple[RecipeName, ...] = get_args(RecipeName)
TASKS: tuple[Task, ...] = get_args(Task)

BASELINE = "baseline"
"""The spelling of the empty stack."""

IMPLEMENTATION, OWN = "implementation", "own"
"""The setting of a technique that names whose it is: ours, or a package's (:mod:`suite.entries.packages`)."""

PART, UPDATE = "part", "update"
"""The setting that leaves of each step a part alone: the optimizer's updates."""

S = TypeVar("S", bound="Setting")
_any_text = GetPydanticSchema(lambda kind, handler: handler(str))  # a record may have a size that is unknown here


class Setting(Stored):
    """All that decides a training run besides the techniques and the seed.

    ``steps`` are the reference's, the baseline's own where None. ``rate`` multiplies the learning rate of the recipe,
    before any technique changes it. ``data`` is a Hugging Face data set's id or a local path, ``model`` a configuration
    folder or a timm model's name; both are the baseline's own where None.
    """

    baseline: str
    size: Annotated[Size, _any_text] = "nano"
    recipe: Annotated[RecipeName, _any_text] = "modern"
    task: Annotated[Task, _any_text] = "pretrain"
    steps: int | None = None
    rate: float = 1.0
    data: str | None = None
    model: str | None = None
    device: str = "cpu"
    threads: int = 1

    def but(self: S, **changes: Any) -> S:
        """Copies it with some fields changed."""
        return self.model_copy(update=changes)

    def __str__(self) -> str:
        return f"{self.baseline} {self.size} ({self.recipe}, {self.task})"


class Job(Stored):
    """One training run: a setting, a stack in its canonical spelling, a seed."""

    setting: Setting
    stack: str = BASELINE
    seed: int = 0


# the spelling of a stack ----------------------------------------------------------------------------------------------


class StackError(ValueError):
    """A stack that cannot be built; the message says why and what to do."""


def split(text: str) -> list[tuple[str, dict[str, str]]]:
    """``"a+b:x=1,y=2"`` -> ``[("a", {}), ("b", {"x": "1", "y": "2"})]``; raises StackError on a malformed part."""
    parts: list[tuple[str, dict[str, str]]] = []
    for part in (piece.strip() for piece in re.split(r"\+(?![0-9])", text) if text.strip()):
        if not part:
            raise StackError(f"{text!r}: a + stands between two techniques, and one of them is missing")
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


def join(techniques: Sequence[tuple[str, Mapping[str, str]]]) -> str:
    """The inverse of :func:`split`: one canonical spelling for a stack."""
    return "+".join(
        name + (":" + ",".join(f"{key}={values[key]}" for key in sorted(values)) if values else "")
        for name, values in techniques
    )


def canonical(stack: str) -> str:
    """One spelling for a stack, so that equal stacks have equal records."""
    return BASELINE if stack in ("", BASELINE) else join(split(stack))


def techniques_of(stack: str) -> list[str]:
    """The ids in a stack; none for the baseline, and none where a record holds what is no stack."""
    return list(_ids(stack))


@lru_cache(maxsize=1 << 12)  # of each record and row, many times
def _ids(stack: str) -> tuple[str, ...]:
    try:
        return tuple(name for name, _ in split(stack) if name != BASELINE)
    except StackError:
        return ()


def parts_of(stack: str) -> list[str]:
    """The stacks of one technique that a stack is made of; none where it is one itself."""
    try:
        parts = split(stack)
    except StackError:  # a record may hold anything
        return []
    return [join([part]) for part in parts] if len(parts) > 1 else []


def package_of(stack: str) -> str:
    """The package whose implementation a technique of the stack is; "" where all are ours, or it is no stack."""
    try:
        named = [settings.get(IMPLEMENTATION, OWN) for _, settings in split(stack)]
    except StackError:  # a record may hold anything
        return ""
    return next((each for each in named if each != OWN), "")


def is_updates_alone(stack: str) -> bool:
    """Whether the stack's steps are an optimizer's updates alone."""
    return any(settings.get(PART) == UPDATE for _, settings in split(stack))
