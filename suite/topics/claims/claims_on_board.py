"""Shows claims of the papers, for people: what was measured comes first, exact ones are a count and those that fail.

A property that holds says that an entry is what it is called; a claim on time, memory or quality that holds says that
it helps. So they are never added up: properties are one line, and a table of those that do not hold.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import get_args

from suite.entries.card import Property
from suite.judge.claims import Judgement, VerdictBasis, expectation, is_exact, shown
from suite.judge.distance import summary
from suite.judge.verdicts import FAILS, HOLDS, UNREAD, Unjudged, rank
from suite.show.described import Folded, PageTable, Part, Section, Subheading, TableCell, TableRow, slug
from suite.show.pages.places import kinds
from suite.topics.claims.negative import NegativeResult
from suite.topics.on_board import OnBoard

COLUMNS = ("verdict", "claim", "what the paper says", "claimed", "seen", "distance from the paper", "why")
OF_PROPERTIES = ("verdict", "property", "what must hold", "bound", "seen", "distance from the paper", "why")
PROPERTIES_TITLE, BROKEN_TITLE = "Properties", "Properties that do not hold"
EXACT_AND_SO = "Exact, and so"
UNREAD_TITLE = "Statements that nobody has read in the paper: seen, not judged"
READING = (
    "A claim is reproduced or contradicted only by evidence from near the paper's setting; far from it, it holds at a "
    "size or is not seen at it. Ratios are costs: below 1 is better."
)
NEVER_JUDGED = get_args(Unjudged)


@dataclass(frozen=True)
class ClaimLine:
    """Holds one claim with one verdict, over all settings where it got that."""

    verdict: str
    name: str
    says: str
    claimed: str
    seen: str
    distance: str
    why: str
    cost: str = ""
    date: str = ""
    command: str = ""

    @property
    def cells(self) -> tuple[str, ...]:
        return self.verdict, self.name, self.says, self.claimed, self.seen, self.distance, self.why


@dataclass(frozen=True)
class Sorted:
    """Holds the judgements of a report. ``measured``: of time, memory, quality, as measured; ``exact``: what one step
    decides; ``unread``: of statements that nobody has read in the paper; ``others``: quoted, modelled, not measured;
    ``properties``: of the implementation."""

    measured: Sequence[Judgement]
    exact: Sequence[Judgement]
    unread: Sequence[Judgement]
    others: Sequence[Judgement]
    properties: Sequence[Judgement] = ()

    @property
    def sentence(self) -> str:
        """Returns, for example, ``Of 300 claims 280 are read, 240 judged, 231 decided. Measured: 3 holds at nano, 12
        tuning open. Exact: 229 reproduced, 2 not seen at nano. 31 quoted. …``"""
        parts = [self._known] if _names(self._claims) else []
        if self.measured:
            parts.append(f"Measured: {tally(self.measured)}.")
        if self.exact:
            parts.append(f"Exact: {tally(self.exact)}.")
        if self.unread:
            parts.append(f"Of statements that nobody has read in the paper, not judged: {len(self.unread)}.")
        if self.others:
            parts.append(f"{tally(self.others)}.")
        if names := _names(self.properties):
            failing = _names(self._broken)
            parts.append(f"{len(names - failing)} of {len(names)} properties hold.")
            if unseen := names - _names(
                judgement for judgement in self.properties if judgement.outcome not in NEVER_JUDGED
            ):
                parts[-1] = f"{len(names - failing - unseen)} of {len(names)} properties hold, {len(unseen)} not seen."
        return " ".join(parts)

    @property
    def _claims(self) -> list[Judgement]:
        return [*self.measured, *self.exact, *self.unread, *self.others]

    @property
    def _known(self) -> str:
        """Says how many claims somebody has read, how many of these stand against evidence, and of how many that
        tells."""
        judged = [*self.measured, *self.exact]
        read = _names(judgement for judgement in self._claims if judgement.claim.read)
        decided = _names(judgement for judgement in judged if judgement.outcome in (HOLDS, FAILS))
        every = len(_names(self._claims))
        known = f"{len(read)} are read, {len(_names(judged))} judged, {len(decided)} decided"
        return f"Of {every} {'claim' if every == 1 else 'claims'} {known}."

    @property
    def _broken(self) -> list[Judgement]:
        return [judgement for judgement in self.properties if judgement.outcome not in (HOLDS, *NEVER_JUDGED)]

    @property
    def parts(self) -> list[tuple[str, list[ClaimLine]]]:
        """Returns titled lists of lines, those that people came for first."""
        failing = [judgement for judgement in self.exact if judgement.outcome != HOLDS]
        holding = [judgement for judgement in self.exact if judgement.outcome == HOLDS]
        named = {
            "Measured": self.measured,
            "Exact, and not so": failing,
            EXACT_AND_SO: holding,
            UNREAD_TITLE: self.unread,
            "Not judged: quoted, modelled, not measured": self.others,
            BROKEN_TITLE: self._broken,
        }
        shown = [(title, lines(of)) for title, of in named.items() if of]
        return shown or [(PROPERTIES_TITLE, lines(self.properties))] * bool(self.properties)


def columns(title: str) -> tuple[str, ...]:
    """The head of the part with this title."""
    return OF_PROPERTIES if title in (PROPERTIES_TITLE, BROKEN_TITLE) else COLUMNS


def sort(judgements: Iterable[Judgement]) -> Sorted:
    """Sort judgements by what they are worth."""
    everything = list(judgements)
    every = [judgement for judgement in everything if not isinstance(judgement.claim, Property)]
    known = [judgement for judgement in every if judgement.outcome not in NEVER_JUDGED]
    judged = [judgement for judgement in known if judgement.word != UNREAD]
    return Sorted(
        [judgement for judgement in judged if not is_exact(judgement.claim)],
        [judgement for judgement in judged if is_exact(judgement.claim)],
        [judgement for judgement in known if judgement.word == UNREAD],
        [judgement for judgement in every if judgement.outcome in NEVER_JUDGED],
        [judgement for judgement in everything if isinstance(judgement.claim, Property)],
    )


def _names(judgements: Iterable[Judgement]) -> set[str]:
    return {f"{judgement.technique}.{judgement.claim.id}" for judgement in judgements}


def tally(judgements: Iterable[Judgement]) -> str:
    """Counts verdicts as in ``3 holds at nano, 12 tuning open``, in the order of the words."""
    number = Counter(judgement.word for judgement in judgements)
    return ", ".join(f"{number[word]} {word}" for word in sorted(number, key=rank))


def lines(judgements: Iterable[Judgement]) -> list[ClaimLine]:
    """Builds a line for each claim and verdict, by technique, claim and verdict."""
    groups: dict[tuple[str, str, str], list[Judgement]] = {}
    for judgement in judgements:
        groups.setdefault((judgement.technique, judgement.claim.id, _verdict(judgement)), []).append(judgement)
    order = sorted(groups, key=lambda key: (key[0], rank(key[2])))
    return [_line(groups[key]) for key in order]


def _verdict(judgement: Judgement) -> str:
    """Returns the word; of what is not judged, what was seen in brackets."""
    said = judgement.word
    return f"{said} ({judgement.outcome})" if said == UNREAD else said


def _line(group: Sequence[Judgement]) -> ClaimLine:
    first = group[0]
    places: dict[str, list[str]] = {}
    for judgement, where in zip(group, _told_apart([judgement.basis for judgement in group]), strict=True):
        places.setdefault(shown(judgement), []).append(where)
    seen = "; ".join(f"{', '.join(filter(None, where))} {number}".strip() for number, where in places.items())
    clauses = "; ".join(judgement.reason for judgement in group).split("; ")
    judged = [
        judgement
        for judgement in group
        if judgement.outcome not in NEVER_JUDGED and not isinstance(judgement.claim, Property)
    ]
    return ClaimLine(
        _verdict(first),
        f"{first.technique}.{first.claim.id}",
        f"{first.claim.statement}{f' ({first.claim.source})' if first.claim.source else ''}",
        expectation(first.claim),
        seen,
        summary(tuple(dict.fromkeys(words for judgement in judged for words in judgement.basis.differs)))
        if judged
        else "",
        "; ".join(dict.fromkeys(filter(None, clauses))),
        f"{sum(costs):.0f} s"
        if (costs := [judgement.basis.cpu_s for judgement in group if judgement.basis.cpu_s is not None])
        else "",
        max((judgement.basis.newest[:10] for judgement in group), default=""),
        first.command,
    )


def _told_apart(places: Sequence[VerdictBasis]) -> list[str]:
    """A name for each place: its baseline, and of recipe and size what is not the same of all; the machine where two
    have all that alike."""
    telling = [name for name in ("baseline", "recipe", "size") if name == "baseline" or _differ(name, places)]
    known = [tuple(getattr(place, name) for name in telling) for place in places]
    alike = {key for key, number in Counter(known).items() if number > 1}
    return [
        " · ".join(filter(None, (*key, place.machine if key in alike else "")))
        for key, place in zip(known, places, strict=True)
    ]


def _differ(name: str, places: Sequence[VerdictBasis]) -> bool:
    return len({getattr(place, name) for place in places}) > 1


LOG_TITLE = "Negative results"
LOG_READING = (
    "What papers say and records did not show, by the date of the newest evidence, with what later versions of a "
    "baseline made of it. A line far from the paper's setting speaks against nothing but that setting."
)
LOG_COLUMNS = ("date", "claim", "what was believed", "measured", "verdict", "since then")


def section(judgements: Iterable[Judgement], kinds_of: Callable[[str], str] = lambda technique: "") -> Section:
    """Shows how often each verdict occurs, then a table of what was measured, and of the others.

    ``kinds_of``: what a technique's lines are filtered by on a page, where an exact claim that holds stands in the
    technique's own section.
    """
    by_worth = sort(judgements)
    (title, first), *others = by_worth.parts
    parts: list[Part] = [Subheading(title), _table(title, first, kinds_of)]
    parts += [
        Folded(title, [_table(title, part, kinds_of)], len(part), in_text_alone=title == EXACT_AND_SO)
        for title, part in others
    ]
    return Section("claims", "Claims of the papers", f"{by_worth.sentence} {READING}", parts)


def _table(title: str, part: Sequence[ClaimLine], kinds_of: Callable[[str], str]) -> PageTable:
    lines = []
    for claim in part:
        name = TableCell(claim.name, code=True, head=True)
        words = [TableCell(words, kind="words") for words in claim.cells[2:]]
        filtered = {"category": kinds_of(claim.name.partition(".")[0]), "name": claim.name}
        lines.append(TableRow([TableCell(claim.verdict, rank(claim.verdict)[0], "words"), name, *words], filtered))
    return PageTable(f"claims-{slug(title)}", f"Claims: {title}", columns(title), lines, align="l", kind="claims")


def log(results: Sequence[NegativeResult]) -> Section:
    """Shows negative results as a dated table, the newest first."""
    lines = [
        TableRow([TableCell(words, kind="words", code=column == 1) for column, words in enumerate(log_line(result))])
        for result in results
    ]
    table = PageTable("log-lines", LOG_TITLE, LOG_COLUMNS, lines, align="l", kind="claims")
    return Section("log", LOG_TITLE, f"{len(lines)} lines. {LOG_READING}", [table])


def log_line(result: NegativeResult) -> tuple[str, ...]:
    own = result.judgement
    version = f" (version {own.basis.version})" if own.basis.version is not None else ""
    later = [
        f"{judgement.basis.newest[:10]}, version {judgement.basis.version}: {judgement.word} {shown(judgement)}".strip()
        for judgement in result.later
    ]
    return (
        result.date,
        f"{own.technique}.{own.claim.id}",
        f"{own.claim.statement} {expectation(own.claim)}",
        f"{own.basis.title}{version}: {shown(own)}",
        f"{own.word}; {summary(own.basis.differs)}",
        "; ".join(later) or "nothing newer",
    )


ON_BOARD = (
    OnBoard(
        30,
        lambda report: section(report.verdicts, partial(kinds, cards=report.cards)) if report.verdicts else None,
        "claims of the papers",
    ),
    OnBoard(40, lambda report: log(report.negative) if report.negative else None, "negative results"),
)
