"""Stacks on the board: which pairs have been tried together, and how far each gains more or less than its parts.

A board's matrix has one technique a row (first in the stack) and one a column (second); a cell is the interaction of
the first metric that any pair has. The table below it has every stack with every metric. Numbers are those of
:mod:`suite.judge.interaction`, as factors of speedup or saving: ×1 means that the parts' gains multiply.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from suite.judge.interaction import METRICS, Interaction, interactions
from suite.judge.rows import Value
from suite.show.board import COLUMNS, Board, Column, count_text, shown_number, text

TITLES = {column.metric: column.title for column in COLUMNS}
BY_METRIC = {column.metric: column for column in COLUMNS}
GAIN = Column("interaction", "", speedup=True)
READING = (
    "The interaction is the speedup of a stack over the product of its parts' speedups, a saving in place of the "
    "speedup for bytes and loss: ×1, the gains multiply; above, more together; below, less. Brackets hold 95 % "
    "intervals over seeds, paired by seed; one in twenty excludes ×1 by chance."
)


def shown(value: Value) -> str:
    """The interaction as a factor with its interval, an exact one after ``=``, a word where there is none."""
    return text(GAIN, value)


def notes(found: Interaction) -> list[str]:
    """On what the numbers rest."""
    said = [f"stale: {why}" for why in sorted({why for row in found.rows for why in row.stale})]
    said += _by_metric((metric, value.note) for metric, value in found.values.items())
    if not found.together and found.seeds:
        said.append("parts from other comparisons: the machine's drift between them does not cancel")
    return said


def remarks(found: Interaction) -> list[str]:
    """What the numbers do not say: on what they rest, and why some are missing."""
    return notes(found) + _by_metric((metric, value.reason) for metric, value in found.values.items())


def _by_metric(told: Iterable[tuple[str, str]]) -> list[str]:
    """One sentence for each thing told, with the metrics that it is about."""
    about: dict[str, list[str]] = {}
    for metric, sentence in told:
        if sentence:
            about.setdefault(sentence, []).append(TITLES[metric])
    return [f"{', '.join(titles) if len(titles) < len(METRICS) else 'all'}: {each}" for each, titles in about.items()]


# one stack, for a terminal ------------------------------------------------------------------------------------------


def table(found: Interaction) -> tuple[list[str], list[list[str]]]:
    """Head and lines: a metric a line; the parts' and the whole's ratios, the interaction, and what it says."""
    head = ["", *(row.stack for row in found.rows), "interaction", ""]
    lines = [
        [
            f"{BY_METRIC[metric].title} {BY_METRIC[metric].arrow}",
            *(text(BY_METRIC[metric], BY_METRIC[metric].value(row)) for row in found.rows),
            shown(found.values[metric]),
            found.reading(metric),
        ]
        for metric in METRICS
    ]
    return head, lines


def title(found: Interaction) -> str:
    """What was measured, in a line."""
    row, conditions = found.whole, found.whole.conditions
    return (
        f"{row.stack} and its parts against {row.reference} on {conditions.baseline} {conditions.size} "
        f"({conditions.recipe}, {conditions.task}), {count_text(len(found.seeds))}, {row.machine.name}"
    )


# the board's section ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stacks:
    """The stacks of one board."""

    board: Board
    found: tuple[Interaction, ...]

    @property
    def pairs(self) -> Mapping[tuple[str, str], Interaction]:
        """Those of two parts, by (first, second)."""
        return {(each.parts[0].stack, each.parts[1].stack): each for each in self.found if len(each.parts) == 2}

    @property
    def firsts(self) -> list[str]:
        """The matrix' rows."""
        return sorted({first for first, _ in self.pairs})

    @property
    def seconds(self) -> list[str]:
        """The matrix' columns."""
        return sorted({second for _, second in self.pairs})

    @property
    def headline(self) -> str:
        """The matrix' metric: the first of METRICS that some pair has."""
        known = [metric for metric in METRICS if any(each.values[metric].known for each in self.pairs.values())]
        return (known or METRICS)[0]

    @property
    def matrix(self) -> list[list[Value | None]]:
        """[firsts, seconds]; None where the pair was not tried."""
        pairs, metric = self.pairs, self.headline
        return [
            [pairs[first, second].values[metric] if (first, second) in pairs else None for second in self.seconds]
            for first in self.firsts
        ]


def stacks(boards: Iterable[Board]) -> list[Stacks]:
    """Of the boards on which a stack stands beside all its parts."""
    made = [Stacks(board, tuple(interactions(board.rows))) for board in boards]
    return [each for each in made if each.found]


def head() -> list[str]:
    """Of the table of all metrics."""
    return ["parts", "stack", *(f"{TITLES[metric]} ×" for metric in METRICS), "seeds"]


def html(found: Sequence[Stacks]) -> str:
    """One section; nothing when there are no stacks."""
    if not found:
        return ""
    parts = "\n".join(_html_of(position, each) for position, each in enumerate(found))
    return f'<section id="stacks"><h2>Stacks</h2><p>{escape(READING)}</p>\n{parts}\n</section>'


def _html_of(position: int, each: Stacks) -> str:
    anchor = f"stacks-{position}"
    lines = [f"<h3>{escape(each.board.title)}</h3><p>{escape(each.board.subtitle)}</p>"]
    if each.firsts:
        titles = "".join(f'<th scope="col"><code>{escape(name)}</code></th>' for name in each.seconds)
        body = "".join(
            f'<tr><th scope="row"><code>{escape(name)}</code></th>{"".join(map(_matrix_cell, cells))}</tr>'
            for name, cells in zip(each.firsts, each.matrix, strict=True)
        )
        caption = f"{TITLES[each.headline]}: interaction of the row's technique with the column's"
        lines.append(
            scrolled(f"{anchor}-matrix", caption, f'<th scope="col">{escape(caption)}</th>{titles}', body, "matrix")
        )
    titles = "".join(f'<th scope="col"><button type="button">{escape(name)}</button></th>' for name in head())
    body = "".join(map(_line, each.found))
    lines.append(scrolled(f"{anchor}-table", f"Stacks of {each.board.title}", titles, body, ""))
    noted = [(one.whole.stack, said) for one in each.found if (said := remarks(one))]
    items = "".join(f"<li><code>{escape(stack)}</code>: {escape('; '.join(said))}</li>" for stack, said in noted)
    return "\n".join([*lines, f"<ul>{items}</ul>" if items else ""])


def scrolled(anchor: str, caption: str, titles: str, body: str, kind: str) -> str:
    """A table of markup that scrolls sideways; ``kind`` is its class."""
    kind = f' class="{kind}"' if kind else ""
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-labelledby="{anchor}"><table{kind}>'
        f'<caption id="{anchor}">{escape(caption)}</caption><thead><tr>{titles}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _matrix_cell(value: Value | None) -> str:
    if value is None:
        return "<td></td>"
    return f'<td class="{value.kind}" title="{escape(value.reason or value.note)}">{escape(shown(value))}</td>'


def _line(each: Interaction) -> str:
    stack = escape(each.whole.stack)
    cells = "".join(
        f'<td data-sort="{repr(shown_number(GAIN, value)) if value.known else ""}" class="{value.kind}" '
        f'title="{escape(each.reading(metric))}">{escape(shown(value))}</td>'
        for metric, value in each.values.items()
    )
    stale = " data-stale" if each.whole.stale else ""
    return (
        f'<tr{stale}><td data-sort="{len(each.parts)}">{len(each.parts)}</td>'
        f'<th scope="row" data-sort="{stack}"><code>{stack}</code></th>{cells}'
        f'<td data-sort="{len(each.seeds)}">{len(each.seeds)}</td></tr>\n'
    )
