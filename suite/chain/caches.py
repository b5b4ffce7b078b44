"""Protects key-value caches among a call's arguments: what a rerun must neither fill twice nor find filled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from suite.model.attributes import refill


def is_cache(value: Any) -> bool:
    return hasattr(value, "get_seq_length") and hasattr(value, "update")


@contextmanager
def caches_kept(leaves: Sequence[Any]) -> Iterator[list[tuple[Any, Any]]]:
    """Caches among a call's arguments hold afterwards what they held before: their containers, each with a copy."""
    before: list[tuple[Any, Any]] = []
    for leaf in leaves:
        if is_cache(leaf):
            before += containers(leaf)
    try:
        yield before
    finally:
        for container, content in before:
            refill(container, content)


def containers(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yields the containers in an object, with copies: its attributes, lists, dictionaries, and those of what they
    hold."""
    seen, rest = set[int](), [value]
    while rest:
        one = rest.pop()
        container = one if isinstance(one, list | dict | set) else getattr(one, "__dict__", None)
        if container is not None and not is_whole(one) and id(one) not in seen:
            seen.add(id(one))
            yield container, container.copy()
            rest += items_of(container)


def items_of(container: Any) -> list[Any]:
    return list(container.values() if isinstance(container, dict) else container)


def is_whole(value: Any) -> bool:
    """Tells whether it is nobody's container: a tensor, a module, a class, a configuration."""
    known = isinstance(value, Tensor | nn.Module | type) or callable(value)
    return known or "Config" in type(value).__name__
