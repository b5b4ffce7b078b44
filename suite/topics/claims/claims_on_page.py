"""Shows a paper's claims on its technique's page: each with what was seen and the command that repeats it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from suite.judge.claims import Judgement
from suite.judge.verdicts import rank
from suite.record.job import Spelling
from suite.record.text import in_html
from suite.show.on_board import Draws, OnPage
from suite.show.pages import markup
from suite.show.pages.places import PlacedRow
from suite.topics.claims import claims_on_board as claims


def _drawn(verdicts: Iterable[Judgement]) -> Draws:
    judged: dict[str, list[Judgement]] = {}
    for judgement in verdicts:
        judged.setdefault(judgement.technique, []).append(judgement)

    def part(stack: str, placed: Sequence[PlacedRow]) -> str:
        names = Spelling(stack).names
        return _claims(stack, placed[0].technique, judged.get(names[0], ()) if len(names) == 1 else ())

    return part


def _claims(stack: str, anchor: str, own: Sequence[Judgement]) -> str:
    if not own:
        return ""
    by_worth = claims.sort(own)
    lines = [line for _, part in by_worth.parts for line in part]
    body = "\n".join(map(_claim, lines))
    heads = markup.head((*claims.COLUMNS, "cost of the evidence, CPU", "seen last", "to repeat it"))
    drawn = markup.table(f"{anchor}--claims", f"Claims of {stack}'s paper", heads, f"\n{body}\n", "claims")
    return (
        f"<h4>Claims of the paper</h4><p>{in_html(by_worth.sentence)} {in_html(claims.READING)}</p>"
        f"{markup.folded(f'Every claim with what was seen: {len(lines)}', drawn)}"
    )


def _claim(line: claims.ClaimLine) -> str:
    cells = [
        markup.cell(line.verdict, rank(line.verdict)[0], "words"),
        markup.row_head(line.name, markup.code(line.name.partition(".")[2] or line.name)),
        *(markup.cell(words, kind="words") for words in (*line.cells[2:], line.cost, line.date)),
        markup.cell_of(markup.code(line.command) if line.command else "", line.command, "words"),
    ]
    return f"<tr>{''.join(cells)}</tr>"


ON_PAGE = OnPage(70, lambda report: _drawn(report.verdicts))
