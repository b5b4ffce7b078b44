"""Says how a rule was broken, in the words of a record."""

from __future__ import annotations

from collections.abc import Iterable

MOST_NAMED = 5


class RuleBroken(RuntimeError):
    """Is raised where a run did what no run may; the message begins with the rule's name."""

    def __init__(self, rule: str, what: str) -> None:
        super().__init__(f"rule {rule!r} is broken: {what}")
        self.rule = rule


def few(names: Iterable[str]) -> str:
    """Returns the first of the names, and how many more there are."""
    known = sorted(names)
    more = f" and {len(known) - MOST_NAMED} more" if len(known) > MOST_NAMED else ""
    return ", ".join(known[:MOST_NAMED]) + more
