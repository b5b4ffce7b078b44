"""Claims of the papers, for people: what was measured comes first, exact ones are a count and those that fail.

A property that holds says that an entry is what it is called; a claim on time, memory or quality that holds says that
it helps. So they are never added up: properties are one line, and a table of those that do not hold.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from suite.entries.card import Property
from suite.judge.claims import Judgement, expectation, is_exact, shown
from suite.judge.verdicts import CLAIM_VERDICTS, ClaimVerdict

COLUMNS = ("verdict", "claim", "what the paper says", "claimed", "seen", "why")
EXACT_AND_SO = "Exact, and so"
NEVER_JUDGED: tuple[ClaimVerdict, ...] = ("not testable here", "modelled", "quoted")


@dataclass(frozen=True)
class ClaimLine:
    """One claim with one verdict, over all places where it got that."""

    verdict: ClaimVerdict
    name: str
    says: str
    claimed: str
    seen: str
    why: str

    @property
    def cells(self) -> tuple[str, ...]:
        return self.verdict, self.name, self.says, self.claimed, self.seen, self.why


@dataclass(frozen=True)
class Sorted:
    """The judgements of a report. ``measured``: of time, memory, quality, as measured; ``exact``: what one step
    decides; ``others``: quoted, modelled, not testable here; ``properties``: of the implementation."""

    measured: Sequence[Judgement]
    exact: Sequence[Judgement]
    others: Sequence[Judgement]
    properties: Sequence[Judgement] = ()

    @property
    def sentence(self) -> str:
        """``Measured: 3 reproduced, 12 contradicted. Exact: 229 hold, 2 do not. 31 quoted. 9 of 9 properties hold``"""
        parts = []
        if self.measured:
            parts.append(f"Measured: {tally(self.measured)}.")
        if self.exact:
            hold = sum(each.verdict == "reproduced" for each in self.exact)
            fail = len(self.exact) - hold
            parts.append(f"Exact: {f'{hold} hold, {fail} do not' if fail else f'all {hold} hold'}.")
        if self.others:
            parts.append(f"{tally(self.others)}.")
        if names := _names(self.properties):
            failing = _names(self._broken)
            parts.append(f"{len(names - failing)} of {len(names)} properties hold.")
            if unseen := names - _names(each for each in self.properties if each.verdict not in NEVER_JUDGED):
                parts[-1] = f"{len(names - failing - unseen)} of {len(names)} properties hold, {len(unseen)} not seen."
        return " ".join(parts)

    @property
    def _broken(self) -> list[Judgement]:
        return [each for each in self.properties if each.verdict not in ("reproduced", *NEVER_JUDGED)]

    @property
    def parts(self) -> list[tuple[str, list[ClaimLine]]]:
        """Titled lists of lines, those that people came for first."""
        failing = [each for each in self.exact if each.verdict != "reproduced"]
        holding = [each for each in self.exact if each.verdict == "reproduced"]
        named = {
            "Measured": self.measured,
            "Exact, and not so": failing,
            EXACT_AND_SO: holding,
            "Not judged: quoted, modelled, not testable here": self.others,
            "Properties that do not hold": self._broken,
        }
        shown = [(title, lines(of)) for title, of in named.items() if of]
        return shown or [("Properties", lines(self.properties))] * bool(self.properties)


def sort(judgements: Iterable[Judgement]) -> Sorted:
    """Sort judgements by what they are worth."""
    given = list(judgements)
    every = [each for each in given if not isinstance(each.claim, Property)]
    judged = [each for each in every if each.verdict not in NEVER_JUDGED]
    return Sorted(
        [each for each in judged if not is_exact(each.claim)],
        [each for each in judged if is_exact(each.claim)],
        [each for each in every if each.verdict in NEVER_JUDGED],
        [each for each in given if isinstance(each.claim, Property)],
    )


def _names(judgements: Iterable[Judgement]) -> set[str]:
    return {f"{each.technique}.{each.claim.id}" for each in judgements}


def tally(judgements: Iterable[Judgement]) -> str:
    """``3 reproduced, 12 contradicted``, in the order of the verdicts."""
    number = Counter(each.verdict for each in judgements)
    return ", ".join(f"{number[verdict]} {verdict}" for verdict in CLAIM_VERDICTS if number[verdict])


def lines(judgements: Iterable[Judgement]) -> list[ClaimLine]:
    """A line for each claim and verdict, by technique, claim and verdict."""
    groups: dict[tuple[str, str, ClaimVerdict], list[Judgement]] = {}
    for each in judgements:
        groups.setdefault((each.technique, each.claim.id, each.verdict), []).append(each)
    order = sorted(groups, key=lambda key: (key[0], CLAIM_VERDICTS.index(key[2])))
    return [_line(groups[key]) for key in order]


def _line(group: Sequence[Judgement]) -> ClaimLine:
    first = group[0]
    several = len({(each.place.recipe, each.place.size, each.place.machine) for each in group}) > 1
    places: dict[str, list[str]] = {}
    for each in group:
        where = each.place.title if several else each.place.baseline
        places.setdefault(shown(each), []).append(where)
    seen = "; ".join(f"{', '.join(filter(None, where))} {number}".strip() for number, where in places.items())
    return ClaimLine(
        first.verdict,
        f"{first.technique}.{first.claim.id}",
        f"{first.claim.statement}{f' ({first.claim.place})' if first.claim.place else ''}",
        expectation(first.claim),
        seen,
        "; ".join(dict.fromkeys(filter(None, (each.reason for each in group)))),
    )
