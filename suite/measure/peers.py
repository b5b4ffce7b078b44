"""Peers: somebody else's implementations of a technique, run as contenders on the same seeds, batches and start.

A technique that another package can do in its place has a field ``implementation``, a Literal: ``own``, and the names
of the packages (``lora:implementation=peft``). ``leantrain run -t ID`` measures it against each of them, too.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec
from typing import get_args, get_type_hints

from suite.entries.catalogue import catalogue
from suite.measure.plan import Pair
from suite.record.job import Spelling, join

FIELD, OWN = "implementation", "own"


def peers_of(stack: str) -> list[str]:
    """The packages that can do what the stack's one technique does; none of a stack that has chosen one."""
    parts = Spelling(stack).parts
    if len(parts) != 1 or FIELD in parts[0][1]:
        return []
    hint = get_type_hints(catalogue()[parts[0][0]].technique).get(FIELD)
    return [name for name in get_args(hint) if name != OWN]


def done_by(package: str, stack: str) -> Spelling:
    """The stack of one technique, as ``package`` does it."""
    [(name, settings)] = Spelling(stack).parts
    return join([(name, {**settings, FIELD: package})])


def peer_pairs(pairs: Iterable[Pair]) -> tuple[list[Pair], list[str]]:
    """Each stack against its installed peers, and the peers that are not installed."""
    against, absent = [], dict[str, None]()
    for pair in pairs:
        for package in peers_of(pair.stack):
            if find_spec(package):
                against.append(Pair(pair.setting, pair.stack, done_by(package, pair.stack)))
            else:
                absent[package] = None
    return against, list(absent)
