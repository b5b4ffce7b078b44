"""Says what is run: a setting, a stack and a seed. The one answer, from the command line to the record.

A stack is spelled ``lion+flashattention+lora:rank=4,alpha=8``: ids joined by ``+``, hyper-parameters after ``:``. Ids
begin with a letter, so a ``+`` before a digit is part of a number (``lion:factor=1e+2``). The empty stack is
``baseline``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import AfterValidator, GetPydanticSchema

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

IMPLEMENTATION, OWN = "implementation", "own"
"""The setting of a technique that names whose it is: ours, or a package's (:mod:`suite.entries.packages`)."""

PART, UPDATE = "part", "update"
"""The setting that leaves of each step a part alone: the optimizer's updates."""

S = TypeVar("S", bound="Setting")
_any_text = GetPydanticSchema(lambda kind, handler: handler(str))  # a record may have a size that is unknown here


class Setting(Stored):
    """Holds all that decides a training run besides the techniques and the seed.

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


# the spelling of a stack ----------------------------------------------------------------------------------------------


EMPTY = "baseline"
"""How the empty stack is spelled."""


class StackError(ValueError):
    """Is raised for a stack that cannot be built; the message says why and what to do."""


def split(text: str) -> list[tuple[str, dict[str, str]]]:
    """Splits ``"a+b:x=1,y=2"`` -> ``[("a", {}), ("b", {"x": "1", "y": "2"})]``; raises StackError on a malformed
    part."""
    parts: list[tuple[str, dict[str, str]]] = []
    for part in (piece.strip() for piece in re.split(r"\+(?![0-9])", text) if text.strip()):
        if not part:
            raise StackError(f"{text!r}: a + stands between two techniques, and one of them is missing")
        name, settings = (piece.strip() for piece in part.partition(":")[::2])
        if not name:
            raise StackError(f"{part!r}: the name of a technique is missing")
        values: dict[str, str] = {}
        for setting in filter(None, (part.strip() for part in settings.split(","))):
            key, equals, value = (piece.strip() for piece in setting.partition("="))
            if not equals or not key or not value:
                raise StackError(f"{part!r}: write hyper-parameters as {name}:name=value,name=value; got {setting!r}")
            if key in values:
                raise StackError(f"{part!r}: {key} is set twice")
            values[key] = value
        if name in (other for other, _ in parts):
            raise StackError(f"{text!r}: {name} stands twice in the stack")
        parts.append((name, values))
    return parts


class Spelling(str):
    """Holds a stack as a value: its text, and what that says of each technique. Whoever takes a text makes it one; a
    text is read once. The empty stack is ``baseline`` and names no technique. Raises StackError for what spells no
    stack."""

    parts: tuple[tuple[str, Mapping[str, str]], ...]

    def __new__(cls, text: str) -> Spelling:
        return text if isinstance(text, cls) else _value_of(text)

    @property
    def names(self) -> list[str]:
        """Returns the ids of the techniques."""
        return [name for name, _ in self.parts if name != EMPTY]

    @property
    def members(self) -> list[Spelling]:
        """Returns the stacks of one technique that this is made of; none where it is one itself."""
        return [join([part]) for part in self.parts] if len(self.parts) > 1 else []

    def without(self, technique: str) -> Spelling:
        """Returns the stack of all others."""
        return join([part for part in self.parts if part[0] != technique])


@lru_cache(maxsize=1 << 14)  # that of each record
def _value_of(text: str) -> Spelling:
    stack = str.__new__(Spelling, text or EMPTY)
    stack.parts = () if stack == EMPTY else tuple(split(text))
    if not stack.parts and stack != EMPTY:
        raise StackError(f"{text!r} names no technique")
    return stack


BASELINE = Spelling(EMPTY)
"""The empty stack."""


def join(techniques: Iterable[tuple[str, Mapping[str, str]]]) -> Spelling:
    """Returns the stack of techniques with these settings, in its canonical spelling."""
    return Spelling(
        "+".join(
            name + (":" + ",".join(f"{key}={values[key]}" for key in sorted(values)) if values else "")
            for name, values in techniques
        )
    )


def canonical(stack: str) -> Spelling:
    """Returns one spelling for a stack, so that equal stacks have equal records."""
    return join(Spelling(stack).parts)


StackText = Annotated[str, AfterValidator(Spelling)]
"""Of a field: whatever text it is made of, it holds a value."""


class Job(Stored):
    """Names one training run: a setting, a stack in its canonical spelling, a seed."""

    setting: Setting
    stack: StackText = BASELINE
    seed: int = 0


def package_of(stack: str) -> str:
    """Returns the package whose implementation a technique of the stack is; "" where all are ours."""
    named = (settings.get(IMPLEMENTATION, OWN) for _, settings in Spelling(stack).parts)
    return next((name for name in named if name != OWN), "")


def is_updates_alone(stack: str) -> bool:
    """Tells whether the stack's steps are an optimizer's updates alone."""
    return any(settings.get(PART) == UPDATE for _, settings in Spelling(stack).parts)
