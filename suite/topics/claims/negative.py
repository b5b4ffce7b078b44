"""Lists negative results, as dated lines: what was believed, what was measured, and when it changed.

Every row is judged, those of older versions of a baseline too, which verdicts leave out where there is a newer one. So
a line stands for each claim that did not hold somewhere, and says what a later version made of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from suite.entries.card import Card, of_study
from suite.judge.claims import Judgement, is_exact, judge_row, rows_about, unfit_row
from suite.judge.rows import Row
from suite.judge.verdicts import FAILS


@dataclass(frozen=True)
class NegativeResult:
    """Describes a claim that did not hold by one version's evidence; ``later``: what newer ones said, the oldest
    first."""

    judgement: Judgement
    later: tuple[Judgement, ...] = ()

    @property
    def date(self) -> str:
        """Returns the date of the newest evidence, ISO 8601 without the time."""
        return self.judgement.basis.newest[:10]


def negative_results(rows: Iterable[Row], cards: Iterable[Card]) -> list[NegativeResult]:
    """Returns the negative results, the newest first. Exact counts and statements that nobody has read are no results
    of this kind."""
    known: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        known.setdefault((row.stack, row.reference), []).append(row)
    results = []
    for card in cards:
        for claim in card.claim:
            if is_exact(claim) or of_study(claim) or claim.kind in ("literature", "modelled") or not claim.read:
                continue
            histories: dict[tuple[str, str, str], list[Judgement]] = {}
            for row in rows_about(card, claim, known):
                at = row.conditions
                fits = at.baseline in (claim.baselines or card.baselines) and at.task == card.task
                if fits and not unfit_row(claim, row):
                    place = at.baseline, at.recipe, at.model or at.size
                    histories.setdefault(place, []).append(judge_row(card, claim, row))
            results += [result for history in histories.values() for result in _of_place(history)]
    return sorted(
        results, key=lambda result: (result.date, result.judgement.technique, result.judgement.claim.id), reverse=True
    )


def _of_place(history: Sequence[Judgement]) -> list[NegativeResult]:
    ordered = sorted(history, key=lambda judgement: (judgement.basis.version or 0, judgement.basis.newest))
    return [
        NegativeResult(judgement, tuple(later for later in ordered[at + 1 :] if later.outcome != "not measured"))
        for at, judgement in enumerate(ordered)
        if judgement.outcome == FAILS
    ]
