"""Attacks on the whole suite, far more of them than a test may make: ``make torture``, outside of ``make test``.

Every module here that has a function ``attack`` is one kind of attack::

    def attack(scale: Scale) -> Iterator[Row]

It makes real faults in real processes and files, each test so many times as ``scale`` says of its usual number, and
yields a row for each test as it ends. A row that did not hold ends the whole in exit code 1. What cannot be done here
(no root, no tmpfs) is a row that says so, :func:`unavailable`, and never left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One test's line of the table. ``held``: nothing was lost, left behind, unnamed, or ended in a traceback."""

    test: str
    trials: int
    outcome: str
    held: bool


@dataclass(frozen=True)
class Scale:
    """``share`` of the usual number of trials."""

    share: float = 1.0

    def trials(self, usual: int) -> int:
        """As many trials as are asked for, at least one."""
        return max(1, round(self.share * usual))


Attack = Callable[[Scale], Iterator[Row]]


def row(test: str, outcomes: Counter[str], fine: tuple[str, ...] = ("held",)) -> Row:
    """The row of trials by their outcome, each a few words; those in ``fine`` are as it should be."""
    told = ", ".join(f"{number} {words}" for words, number in outcomes.most_common())
    return Row(test, outcomes.total(), told, set(outcomes) <= set(fine))


def unavailable(test: str, reason: str) -> Row:
    """A test that cannot be made here, and why."""
    return Row(test, 0, f"unavailable: {reason}", held=True)
