"""Describes a finding: what a comparison of two states of the code says of one thing, with the numbers that differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from suite.judge.verdicts import ChangeVerdict
from suite.record.schema import COUNTS, Counters


@dataclass(frozen=True)
class Difference:
    """Describes one number, or other value, that differs; ``of_training``: of what training sees or gives."""

    what: str
    old: Any
    new: Any
    of_training: bool = False

    @property
    def is_cost(self) -> bool:
        """Tells whether it is a counter of which more is worse."""
        return self.what in COUNTS and COUNTS[self.what].cost

    @property
    def is_of_the_model(self) -> bool:
        """Tells whether it is a counter that describes the model."""
        return self.what in COUNTS and not COUNTS[self.what].cost

    @property
    def title(self) -> str:
        """Returns what a person calls it."""
        return COUNTS[self.what].title if self.what in COUNTS else self.what

    @property
    def before(self) -> str:
        return _digits(self.old)

    @property
    def after(self) -> str:
        return _digits(self.new)

    @property
    def ratio(self) -> str:
        """Returns new over old; empty where that is no number."""
        numbers = {type(self.old), type(self.new)} <= {int, float}
        return f"{self.new / self.old:.6g}" if numbers and self.old else ""

    @property
    def verdict(self) -> ChangeVerdict:
        """Returns what this number alone says."""
        if not self.is_cost:
            return "changed"
        return "regressed" if self.new > self.old else "improved"

    def __str__(self) -> str:
        if not {type(self.old), type(self.new)} <= {int, float}:
            return f"{self.what} {self.old} → {self.new}"
        relative = f" ({self.new / self.old - 1:+.2%})" if self.old else ""
        return f"{self.what} {self.old:,} → {self.new:,}{relative}"


@dataclass(frozen=True)
class Finding:
    """Holds the verdict on one ``aspect`` (exact numbers, timing, counters, losses, ...) of one ``item``, and why."""

    item: str
    aspect: str
    verdict: ChangeVerdict
    why: str = ""
    changes: tuple[Difference, ...] = ()

    @property
    def details(self) -> str:
        """Returns all that is to say beside the verdict."""
        return "; ".join([*map(str, self.changes), *([self.why] if self.why else [])])


def changes_between(old: Counters, new: Counters) -> tuple[Difference, ...]:
    """Returns every counter that differs; one that is not there counts as 0."""
    before, after = flat(old), flat(new)
    return tuple(
        Difference(name, before.get(name, 0), after.get(name, 0))
        for name in dict.fromkeys([*before, *after])
        if before.get(name, 0) != after.get(name, 0)
    )


def _digits(value: Any) -> str:
    return f"{value:,}" if type(value) in (int, float) else str(value)


def flat(counters: Counters) -> dict[str, Any]:
    """Returns every counter that was taken, by name; of a dictionary each entry, as ``name.key``."""
    values: dict[str, Any] = {}
    for name, value in counters.model_dump(exclude_none=True).items():
        values |= {f"{name}.{key}": count for key, count in value.items()} if isinstance(value, dict) else {name: value}
    return values


SPEED_WORDS: dict[ChangeVerdict, str] = {
    "regressed": "slower",
    "inconclusive": "cannot tell",
    "improved": "faster",
    "equivalent": "not slower",
    "equal": "of unchanged code",
    "failed": "failed",
    "not comparable": "not comparable",
}
NOT_CHECKED = "not checked"
UNTIMED = ("unfit", "failed", "not comparable", "not checked")
"""Verdicts of a timing that judge no speed."""


def speed(findings: Iterable[Finding]) -> str:
    """Tells what is known of speed: how many items were judged how, or that none was."""
    number = Counter(finding.verdict for finding in findings if finding.aspect == "timing")
    if not number.keys() - {*UNTIMED}:
        return NOT_CHECKED
    return ", ".join(f"{number[verdict]} {words}" for verdict, words in SPEED_WORDS.items() if number[verdict])
