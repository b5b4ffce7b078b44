"""Draws what the records say as a badge for a README: of one technique its verdict, of more a tally of the words.

Of what stands on the board, by the board's own rule (:mod:`suite.judge.helps`). A check has a badge, too, which is
never green where nobody looked at speed.
"""

from __future__ import annotations

from collections.abc import Collection

from suite.guard.findings import NOT_CHECKED, Finding, speed
from suite.record.text import in_html
from suite.show.pictures.drawing import COLOURS
from suite.topics.board.goals import GoalLine, tables, tally
from suite.topics.board.report import Report
from suite.topics.board.standing import Standing

HEIGHT, CHARACTER, MARGIN = 20, 6.4, 7.0  # pixels
ENDINGS = {0: "passed", 1: "regressed", 3: "inconclusive", 4: "unfit", 5: "failed"}
"""A check's exit code in a word."""
VERDICTS = {"helps": "better", "costs": "worse"}


def render(report: Report) -> str:
    """Draws the badge, an SVG. Raises ValueError where nothing was measured."""
    standing = Standing.of(report)
    lines = [line for table in tables(standing) for line in table.lines]
    if not standing.rows or not lines:
        raise ValueError("there is nothing to say yet; measure some with: leantrain run")
    if len(lines) == 1:
        return _drawn(*_of_line(lines[0], standing))
    return _drawn("leantrain", tally(line.verdict for line in lines), "faint")


def of_check(findings: Collection[Finding], code: int) -> str:
    """Draws the badge of a check that ended with that exit code, an SVG."""
    seen = speed(findings)
    colour = {0: "faint" if seen == NOT_CHECKED else "better", 1: "worse", 5: "worse"}.get(code, "faint")
    return _drawn("leantrain check", f"{ENDINGS[code]}; speed: {seen}", colour)


def _of_line(line: GoalLine, standing: Standing) -> tuple[str, str, str]:
    where = ", ".join(sorted({row.conditions.baseline for row in standing.rows}))
    quality = f"{line.quality.words} {line.quality.ends}".strip()
    said = f"{line.verdict} · {quality}" if quality else str(line.verdict)
    return f"{line.stack} · {where}", said, VERDICTS.get(line.verdict.word, "faint")


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
