"""Reads stacks as people spell them: ``lora:rank=4+lion`` becomes a :class:`~suite.loop.stack.Stack`."""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from suite.entries.catalogue import catalogue, lookup
from suite.loop.stack import Stack
from suite.loop.technique import Technique
from suite.record.job import BASELINE, StackError, split


def build(stack: str) -> Stack:
    """Builds the stack spelled as ``a+b:x=1``; ``""`` and ``baseline`` are the empty one.

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
    """Returns an instance of ``cls`` with hyper-parameters parsed by their declared types; raises StackError on a bad
    one."""
    hints = get_type_hints(cls)
    known = {field.name: field for field in fields(cls) if field.init}
    values = {}
    for key, text in settings.items():
        if key not in known:
            has = ", ".join(
                f"{field.name}={'' if field.default is MISSING else field.default}" for field in known.values()
            )
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
    """Returns ``text`` as the annotated type: bool, int, float, str, Literal, optional or tuple (``a/b`` for
    tuples)."""
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
