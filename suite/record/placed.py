"""Holds what a results folder keeps by place and stack in one file: read whole, written whole, what is newer in the
place of what is older."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from suite.record.files import Stored, parse_versioned, read_plain
from suite.record.job import RecipeName, Size, Task


class CountPlace(NamedTuple):
    """Describes what all steps of one table share. ``device``: whose operators."""

    baseline: str
    size: Size
    recipe: RecipeName
    device: str
    task: Task

    @property
    def title(self) -> str:
        operators = "the operators of a GPU" if self.device == "cuda" else "the operators of a CPU"
        return f"{self.baseline} · {self.size} · {self.recipe} · {self.task} · {operators}"


class PlacedStep(Stored):
    """Records what is known of one step of a stack at a place; or the reason why nothing is.

    Attributes:
        reference: the stack that it is compared with; itself, or nothing, where it is one.
    """

    place: CountPlace
    stack: str
    reference: str
    unavailable: str = ""

    @property
    def key(self) -> tuple[Any, ...]:
        """Returns the key of which one step is kept."""
        return (self.place, self.stack)


P = TypeVar("P", bound=PlacedStep)
S = TypeVar("S", bound=Stored)


def newest(older: Iterable[P], newer: Iterable[P]) -> list[P]:
    """Joins both, in order; a newer one takes the place of an older one of its key."""
    known = {step.key: step for step in [*older, *newer]}
    return [known[key] for key in sorted(known)]


def read_kept(path: Path, kind: type[S], schema: int, command: str) -> S:
    """Reads what the file holds, nothing where there is none. Raises ValueError where it cannot be read, which says by
    which command it is made again."""
    try:
        return parse_versioned(read_plain(path), kind, schema)
    except FileNotFoundError:
        return kind()
    except (ValueError, OSError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ValueError(f"{path}: {why}; delete it and make it again: {command}") from None
