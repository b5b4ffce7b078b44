"""Draws what the page opens with: findings, pictures, the legend, and a table for each goal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from markupsafe import Markup

from suite.show.pages.markup import fragments
from suite.topics.board.board_findings import BoardFinding
from suite.topics.board.drawn import macros
from suite.topics.board.goals import MOST_SHOWN, GoalLine, GoalTable
from suite.topics.board.pictures import memory_and_step, same_quality
from suite.topics.board.terms import FORMS, TERMS, meaning

DRAWN = macros("goals")
PICTURES = ("Memory and a step's time at the paper's size", "Time to the same quality")


def front(
    found: Sequence[BoardFinding],
    tables: Sequence[GoalTable],
    anchors: Mapping[str, str],
    targets: Iterable[str],
    banner: str,
) -> Markup:
    """Draws the page's first part. ``anchors``: of techniques' sections by stack; ``targets``: anchors that the page
    has; ``banner``: a sentence above the tables, empty for none."""
    drawings = (memory_and_step(tables, anchors), same_quality(tables, anchors))
    drawn = [(title, drawing.svg()) for title, drawing in zip(PICTURES, drawings, strict=True) if drawing]
    parts = [
        DRAWN.findings(found, anchors, set(targets)) if found else Markup(),
        DRAWN.pictures(drawn) if drawn else Markup(),
        DRAWN.legend(FORMS) if tables else Markup(),
        DRAWN.choose([(table.goal.id, table.goal.title) for table in tables]) if tables else Markup(),
        Markup('<p class="banner">{}</p>').format(banner) if banner else Markup(),
        *(_goal(table, anchors) for table in tables),
    ]
    return Markup("\n").join(part for part in parts if part)


def words() -> Markup:
    """Draws the list of terms."""
    return Markup(DRAWN.terms(TERMS))


def _goal(table: GoalTable, anchors: Mapping[str, str]) -> Markup:
    """Draws a goal's table: its first lines, the rest folded."""
    heads = Markup("").join(DRAWN.head(head, meaning(head), not at) for at, head in enumerate(table.heads))
    lines = [_line(line, table, order, anchors) for order, line in enumerate(table.lines)]
    shown, rest = lines[:MOST_SHOWN], lines[MOST_SHOWN:]
    goal = table.goal
    first = fragments.table(f"{goal.id}-first", goal.title, heads, shown, "goals")
    others = fragments.table(f"{goal.id}-rest", f"{goal.title}: the rest", heads, rest, "goals") if rest else Markup()
    return Markup(DRAWN.table(goal.id, goal.title, table.tally(), first, others, f"{len(rest)} more"))


def _line(line: GoalLine, table: GoalTable, order: int, anchors: Mapping[str, str]) -> Markup:
    cells = (line.saves, line.step, line.quality, line.others, line.works)
    drawn = [DRAWN.cell(cell, head) for cell, head in zip(cells, table.heads[1:], strict=False)]
    anchor = anchors.get(line.stack, "")
    return Markup(DRAWN.line(line.stack, anchor, line.does, drawn, line.verdict, order))
