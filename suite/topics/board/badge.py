"""Draws what the records say as a badge for a README: of one technique on one baseline the headline, of more a tally.

As the board opens: of one recipe and size, coloured only where the interval excludes 1. A check has one, too, which is
never green where nobody looked at speed.
"""

from __future__ import annotations

from collections.abc import Collection

from suite.guard.findings import NOT_CHECKED, Finding, speed
from suite.judge.rows import Row
from suite.record.text import in_html
from suite.show.pages import matrix
from suite.show.pages.board import HEADLINE, text, version_text
from suite.show.pictures.drawing import COLOURS
from suite.topics.board.report import Report

HEIGHT, CHARACTER, MARGIN = 20, 6.4, 7.0  # pixels
ENDINGS = {0: "passed", 1: "regressed", 3: "inconclusive", 4: "unfit", 5: "failed"}
"""A check's exit code in a word."""
LEANINGS = {1: "better", -1: "worse", 0: "faint"}


def render(report: Report) -> str:
    """Draws the badge, an SVG. Raises ValueError where nothing was measured."""
    whole = matrix.matrix(matrix.first(report.rows), {id: card.good for id, card in report.cards.items()})
    rows = [row for entry in whole.entries for row in entry.best.values()]
    if not rows:
        raise ValueError("there is nothing to say yet; measure some with: leantrain run")
    if len(rows) == 1:
        return _drawn(*_of_row(rows[0]))
    return _drawn("leantrain", whole.tally, "faint")


def of_check(findings: Collection[Finding], code: int) -> str:
    """Draws the badge of a check that ended with that exit code, an SVG."""
    seen = speed(findings)
    colour = {0: "faint" if seen == NOT_CHECKED else "better", 1: "worse", 5: "worse"}.get(code, "faint")
    return _drawn("leantrain check", f"{ENDINGS[code]}; speed: {seen}", colour)


def _of_row(row: Row) -> tuple[str, str, str]:
    value, at = row.value(HEADLINE.name), row.conditions
    said = matrix.headline_in_words(row)
    if said not in (matrix.FAILED, matrix.MISSED, matrix.UNKNOWN):
        said = f"{text(value, HEADLINE.direction)} to the same quality{'†' if row.unverified else ''}"
    where = " ".join(filter(None, (at.baseline, at.size, version_text(row))))
    said = " ".join(filter(None, (said, matrix.hardware(row))))
    return f"{row.stack} · {where}", said, LEANINGS[matrix.surely(row)]


def _drawn(label: str, message: str, colour: str) -> str:
    """Draws two fields of white text, the second one in a colour of the board's."""
    left, right = (len(words) * CHARACTER + 2 * MARGIN for words in (label, message))
    fields = ((0.0, left, label, COLOURS["line"][1]), (left, right, message, COLOURS[colour][0]))
    drawn = "".join(
        f'<rect x="{x:g}" width="{width:g}" height="{HEIGHT}" fill="{fill}"/>'
        f'<text x="{x + MARGIN:g}" y="14" textLength="{width - 2 * MARGIN:g}">{in_html(words)}</text>'
        for x, width, words, fill in fields
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right:g}" height="{HEIGHT}" role="img" '
        f'aria-label="{in_html(f"{label}: {message}")}">'
        f'<g fill="#ffffff" font-family="Verdana, DejaVu Sans, sans-serif" font-size="11">{drawn}</g></svg>\n'
    )
