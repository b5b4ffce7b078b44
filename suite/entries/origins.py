"""Says where the numbers of a technique come from: the paper has them in a place, or they are free to choose.

A card's table ``published`` has ``name = { value, place }`` and its table ``free`` has ``name = { value, reason }``. A
name is a field of the technique; or a constant in capitals, behind its module where that is not technique.py
(``law.HUBER``). What several techniques share stands once, in a ``published.toml`` beside the modules that define it,
where ``Planned.budget`` is a field that a class hands down. ``value`` is left out where the default is None.
"""

from __future__ import annotations

import inspect
import math
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from suite.record.files import read_plain_text

if TYPE_CHECKING:
    from suite.entries.catalogue import Entry
    from suite.loop.technique import Technique

SHARED = "published.toml"
HEAD = ("setting", "value", "where it is from")
TITLE = "Published settings"


def _numbers(value: object) -> object:
    """Returns numbers, words and fractions, and lists and tables of these, as they are; lists as tuples."""
    if isinstance(value, list | tuple):
        return tuple(map(_numbers, value))
    if isinstance(value, Mapping):
        return {name: _numbers(each) for name, each in value.items()}
    if isinstance(value, bool | int | float | str):
        return value
    raise ValueError(f"write a number, a word, a fraction such as 5/90, or a list or table of these, not {value}")


Value: TypeAlias = Annotated[Any, BeforeValidator(_numbers)]
Name: TypeAlias = Annotated[str, Field(pattern=r"^([A-Za-z][A-Za-z0-9_]*\.)?[A-Za-z][A-Za-z0-9_]*$")]


class Published(BaseModel):
    """Holds a number of the paper, and its ``place`` there or in the authors' code."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    value: Value = None
    place: str = Field(min_length=1)


class Free(BaseModel):
    """Holds a number that no paper has, and the ``reason`` for it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    value: Value = None
    reason: str = Field(min_length=1)


class Origins(BaseModel):
    """Holds both tables. Raises ValidationError where a name stands in both."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    published: Mapping[Name, Published] = {}
    free: Mapping[Name, Free] = {}

    @model_validator(mode="after")
    def _once(self) -> Origins:
        if both := sorted(self.published.keys() & self.free.keys()):
            raise ValueError(f"{', '.join(both)}: leave it in one of published and free")
        return self

    @property
    def stated(self) -> dict[str, Published | Free]:
        """Returns all names with what is said of them, those of the paper first."""
        return {**self.published, **self.free}


def shared_origins(folder: Path) -> Origins:
    """Returns what stands in the ``published.toml`` of a folder; nothing where there is none."""
    path = folder / SHARED
    return Origins.model_validate(tomllib.loads(read_plain_text(path))) if path.is_file() else Origins()


def inherited(technique: type) -> dict[str, Published | Free]:
    """Returns what is said of the fields that a technique's bases hand down to it, by the fields' names."""
    found: dict[str, Published | Free] = {}
    for base in reversed(technique.mro()[1:-1]):
        stated = shared_origins(Path(inspect.getfile(base)).parent).stated
        own = ((name, stated.get(f"{base.__name__}.{name}")) for name in vars(base).get("__annotations__", {}))
        found |= {name: said for name, said in own if said}
    redefined = vars(technique).get("__annotations__", {})
    return {name: said for name, said in found.items() if name not in redefined}


def departures(technique: Technique, card: Origins) -> dict[str, Any]:
    """Returns what the card says of each field that is left at its default, where that is another value: of a default
    that has been changed."""
    said = {**inherited(type(technique)), **card.stated}
    return {
        field.name: number(said[field.name].value)
        for field in fields(technique)
        if field.name in said and field.default is not MISSING and getattr(technique, field.name) == field.default
        if not agrees(said[field.name].value, field.default)
    }


def number(said: Any) -> Any:
    """Returns a fraction's quotient, and anything else as it is."""
    try:
        return float(Fraction(said)) if isinstance(said, str) else said
    except ValueError:
        return said


def agrees(said: Any, value: object) -> bool:
    """Tells whether what a card says is the value: literally, numbers to a rounding."""
    if isinstance(said, Mapping) and isinstance(value, Mapping):
        return said.keys() == set(map(str, value)) and all(agrees(said[str(name)], value[name]) for name in value)
    if isinstance(said, tuple) and isinstance(value, tuple):
        return len(said) == len(value) and all(map(agrees, said, value))
    quotient = number(said)
    if isinstance(quotient, bool) or isinstance(value, bool) or not isinstance(value, int | float):
        return type(quotient) is type(value) and quotient == value
    if not isinstance(quotient, int | float):
        return False
    return math.isclose(quotient, value, rel_tol=1e-12) or (math.isnan(quotient) and math.isnan(value))


def rows(entry: Entry) -> Iterator[tuple[str, str, str]]:
    """Yields name, value and place of each setting: the paper's first, then those that are free, with the reason."""
    said = {**inherited(entry.technique), **entry.card.stated}
    init = {field.name: field.default for field in fields(entry.technique) if field.init}
    for kind in (Published, Free):
        for name, each in said.items():
            if isinstance(each, kind):
                value = init.get(name) if each.value is None else each.value
                place = each.place if isinstance(each, Published) else f"ours: {each.reason}"
                yield name, shown(value), " ".join(place.split())


def shown(value: object) -> str:
    """Returns a value as commands take it: ``0.25, 0.5`` of a list, ``L1 4, L2 2`` of a table."""
    if isinstance(value, tuple | list):
        return ", ".join(f"({shown(each)})" if isinstance(each, tuple | list) else shown(each) for each in value)
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {shown(each)}" for name, each in value.items())
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)
