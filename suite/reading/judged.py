"""The decorators that say what a probe must show: a property of the technique, with its bound."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

Probes = TypeVar("Probes", bound=Callable[..., object])


def judged(probe: str, statement: str, place: str = "", **how: object) -> Callable[[Probes], Probes]:
    """States a property of the technique on the function that measures it. The function stays as it is.

    ``probe`` is the key under which the function returns its figure, ``statement`` what the figure shows where it is
    within its bound, ``place`` where the rule stands. The bound is one of ``equals`` (with a ``tolerance``, relative
    but to 0), ``at_most``, ``at_least``, ``below`` and ``above``; without any of them the figure must be 0. ``id`` is
    the name in records and on boards where it is not the probe's. Every further word is a field of
    :class:`suite.entries.card.Property`: ``kind``, ``scope``, ``sizes``, ``note`` and so on.

    All arguments are literals, and ``@judged`` is its only spelling: :mod:`suite.entries.properties` reads them from
    the file's text, so that looking at records loads no torch. No argument is in the hash of a run's code.
    """
    return lambda function: function


def judged_as(shared: Callable[..., object], place: str = "") -> Callable[[Probes], Probes]:
    """States the properties that stand on ``shared``, a function of several techniques which the decorated one calls.

    ``place`` is where the rule stands of those that name no place. What a technique states itself under the same id is
    not taken. Both arguments are read from the text as those of :func:`judged` are: ``shared`` is a name that the file
    imports ``from`` its module.
    """
    return lambda function: function
