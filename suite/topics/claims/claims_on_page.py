"""Shows a paper's claims on its technique's page: each with what was seen and the command that repeats it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from markupsafe import Markup

from suite.judge.claims import Judgement
from suite.judge.verdicts import rank
from suite.record.job import Spelling
from suite.show.pages.markup import fragments
from suite.show.pages.places import PlacedRow
from suite.show.pages.rendered import macros_beside
from suite.topics.claims import claims_on_board as claims
from suite.topics.on_board import Draws, OnPage

DRAWN = macros_beside(__file__)


def _drawn(verdicts: Iterable[Judgement]) -> Draws:
    judged: dict[str, list[Judgement]] = {}
    for judgement in verdicts:
        judged.setdefault(judgement.technique, []).append(judgement)

    def part(stack: str, placed: Sequence[PlacedRow]) -> Markup:
        names = Spelling(stack).names
        return _claims(stack, placed[0].technique, judged.get(names[0], ()) if len(names) == 1 else ())

    return part


def _claims(stack: str, anchor: str, own: Sequence[Judgement]) -> Markup:
    if not own:
        return Markup()
    by_worth = claims.sort(own)
    lines = [_claim(line) for _, part in by_worth.parts for line in part]
    heads = fragments.head((*claims.COLUMNS, "cost of the evidence, CPU", "seen last", "to repeat it"))
    drawn = fragments.table(f"{anchor}--claims", f"Claims of {stack}'s paper", heads, lines, "claims")
    return DRAWN.claims(f"{by_worth.sentence} {claims.READING}", len(lines), drawn)


def _claim(line: claims.ClaimLine) -> Markup:
    return fragments.row(
        [
            fragments.cell(line.verdict, rank(line.verdict)[0], "words"),
            fragments.row_head(line.name, fragments.code(line.name.partition(".")[2] or line.name)),
            *(fragments.cell(words, kind="words") for words in (*line.cells[2:], line.cost, line.date)),
            fragments.cell_of(fragments.code(line.command) if line.command else "", line.command, "words"),
        ]
    )


ON_PAGE = OnPage(70, lambda report: _drawn(report.verdicts))
