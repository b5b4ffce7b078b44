"""Finds peers: somebody else's implementations of a technique, run as contenders on the same seeds, batches and start.

``leantrain run -t ID`` measures a technique against each package that can do it in its place
(:mod:`suite.entries.packages`), too; ``leantrain run --peers`` times all techniques beside all packages that are
installed, and nothing else: whole steps and, of what replaces the optimizer, its updates alone.
"""

from __future__ import annotations

from collections.abc import Iterable

from suite.entries.catalogue import catalogue
from suite.entries.packages import done_by, in_form_of, is_installed, packages_of, updates_of
from suite.loop.technique import overrides
from suite.measure.missing import Pair
from suite.record.job import IMPLEMENTATION, Spelling


def peers_of(stack: str) -> list[str]:
    """Returns the packages that can do what the stack's one technique does; none of a stack that has chosen one."""
    parts = Spelling(stack).parts
    if len(parts) != 1 or IMPLEMENTATION in parts[0][1]:
        return []
    return packages_of(catalogue()[parts[0][0]])


def peer_pairs(pairs: Iterable[Pair]) -> tuple[list[Pair], list[str]]:
    """Returns each stack, in its peer's form, against each installed peer, and the peers that are not installed."""
    against, absent = [], dict[str, None]()
    for pair in pairs:
        for package in peers_of(pair.stack):
            if is_installed(package):
                ours = in_form_of(package, pair.stack)
                against.append(Pair(pair.setting, ours, done_by(package, ours)))
            else:
                absent[package] = None
    return against, list(absent)


def with_updates(pairs: Iterable[Pair]) -> list[Pair]:
    """Returns the pairs, and behind those of an optimizer the same of its updates alone."""
    both: list[Pair] = []
    for pair in pairs:
        both.append(pair)
        if overrides(catalogue()[Spelling(pair.stack).names[0]].technique, "optimizer"):
            both.append(Pair(pair.setting, updates_of(pair.stack), updates_of(pair.reference)))
    return both
