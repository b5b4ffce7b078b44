"""Shows stacks on the board: which pairs have been tried together, and how far each gains more or less than its parts.

A board's matrix has one technique a row (first in the stack) and one a column (second); a cell is the interaction of
the first metric that any pair has. The table below it has every stack with every metric. Numbers are those of
:mod:`suite.judge.interaction`, as factors of speedup or saving: ×1 means that the parts' gains multiply.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from suite.judge.interaction import Interaction, interactions
from suite.judge.metrics import IN_STACKS, METRICS, Direction, MetricValue
from suite.show.described import Item, Items, PageTable, Paragraph, Part, Section, Subheading, TableCell, TableRow
from suite.show.pages.board import Board, against_text, how_many, shown_number, text
from suite.topics.on_board import OnBoard

DIRECTION: Direction = "higher"  # of an interaction, whatever the metric's own is
READING = (
    "The interaction is the speedup of a stack over the product of its parts' speedups, a saving in place of the "
    "speedup for bytes and loss: ×1, the gains multiply; above, more together; below, less. Brackets hold 95 % "
    "intervals, paired by seed or by set of processes; one in twenty excludes ×1 by chance."
)


def shown(value: MetricValue) -> str:
    """Writes the interaction as a factor with its interval, an exact one after ``=``, a word where there is none."""
    return text(value, DIRECTION)


def notes(stack: Interaction) -> list[str]:
    """Says on what the numbers rest."""
    unverified = sorted({kind for row in stack.rows for kind in row.unverified})
    sentences = [f"unverified: {', '.join(unverified)}, since the code changed"] if unverified else []
    sentences += _by_metric((metric, value.note) for metric, value in stack.values.items())
    if not stack.together and any(row.known.timed for row in stack.rows):
        sentences.append("timed apart from its parts: the machine's drift between them does not cancel")
    return sentences


def remarks(stack: Interaction) -> list[str]:
    """Says what the numbers do not: on what they rest, and why some are missing."""
    return notes(stack) + _by_metric((metric, value.reason) for metric, value in stack.values.items())


def _by_metric(sentences: Iterable[tuple[str, str]]) -> list[str]:
    """List each sentence once, with the metrics that it is about."""
    about: dict[str, list[str]] = {}
    for metric, sentence in sentences:
        if sentence:
            about.setdefault(sentence, []).append(METRICS[metric].heading)
    return [
        f"{', '.join(titles) if len(titles) < len(IN_STACKS) else 'all'}: {sentence}"
        for sentence, titles in about.items()
    ]


# one stack, for a terminal ------------------------------------------------------------------------------------------


def table(stack: Interaction) -> tuple[list[str], list[list[str]]]:
    """Returns the head and the lines of a table: by metric the ratios of the parts and of the whole, and the
    interaction."""
    head = ["", *(row.stack for row in stack.rows), "interaction", ""]
    lines = [
        [
            f"{metric.heading} {metric.arrow}",
            *(text(row.value(metric.name), metric.direction) for row in stack.rows),
            shown(stack.values[metric.name]),
            stack.reading(metric.name),
        ]
        for metric in IN_STACKS
    ]
    return head, lines


def title(stack: Interaction) -> str:
    """Says what was measured, in a line."""
    whole = stack.whole
    return f"{whole.stack} and its parts {against_text(whole)}, {how_many(len(stack.seeds))}, {whole.machine.name}"


# the board's section ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stacks:
    """Holds the stacks of one board."""

    board: Board
    interactions: tuple[Interaction, ...]

    @property
    def pairs(self) -> Mapping[tuple[str, str], Interaction]:
        """Returns the stacks of two parts, by (first, second)."""
        return {
            (interaction.parts[0].stack, interaction.parts[1].stack): interaction
            for interaction in self.interactions
            if len(interaction.parts) == 2
        }

    @property
    def firsts(self) -> list[str]:
        """Returns the rows of the matrix."""
        return sorted({first for first, _ in self.pairs})

    @property
    def seconds(self) -> list[str]:
        """Returns the columns of the matrix."""
        return sorted({second for _, second in self.pairs})

    @property
    def headline(self) -> str:
        """Returns the metric of the matrix: the first of IN_STACKS that some pair has."""
        names = [metric.name for metric in IN_STACKS]
        known = [name for name in names if any(pair.values[name].known for pair in self.pairs.values())]
        return (known or names)[0]

    @property
    def matrix(self) -> list[list[MetricValue | None]]:
        """Returns the interactions [firsts, seconds]; None where the pair was not measured."""
        pairs, metric = self.pairs, self.headline
        return [
            [pairs[first, second].values[metric] if (first, second) in pairs else None for second in self.seconds]
            for first in self.firsts
        ]


def stacks(boards: Iterable[Board]) -> list[Stacks]:
    """Find the boards on which a stack stands beside all its parts."""
    of_boards = [Stacks(board, tuple(interactions(board.rows))) for board in boards]
    return [board for board in of_boards if board.interactions]


HEAD = ("parts", "stack", *(f"{metric.heading} ×" for metric in IN_STACKS), "seeds")  # of the table of all metrics


def section(of_boards: Sequence[Stacks]) -> Section | None:
    """Shows for each board the matrix of pairs, the table of all stacks, remarks; None where there are no stacks."""
    parts = [part for position, board in enumerate(of_boards) for part in _parts(position, board)]
    return Section("stacks", "Stacks", READING, parts) if parts else None


def _parts(position: int, of_board: Stacks) -> Iterator[Part]:
    anchor = f"stacks-{position}"
    yield Subheading(of_board.board.title)
    yield Paragraph(of_board.board.subtitle)
    if of_board.firsts:
        caption = f"{METRICS[of_board.headline].heading}: interaction of the row's technique with the column's"
        columns: list[TableCell | str] = [caption, *(TableCell(name, code=True) for name in of_board.seconds)]
        lines = [
            TableRow([TableCell(name, code=True, head=True), *map(_matrix_cell, values)])
            for name, values in zip(of_board.firsts, of_board.matrix, strict=True)
        ]
        region = f"{of_board.board.title}, {caption}"
        yield PageTable(f"{anchor}-matrix", region, columns, lines, kind="matrix", sorted_by=None)
    lines = list(map(_line, of_board.interactions))
    yield PageTable(f"{anchor}-table", f"Stacks of {of_board.board.title}", HEAD, lines, align="rlr")
    if remarked := [
        Item("; ".join(sentences), one.whole.stack) for one in of_board.interactions if (sentences := remarks(one))
    ]:
        yield Items(remarked)


def _matrix_cell(value: MetricValue | None) -> TableCell:
    return TableCell(shown(value), kind=value.kind, title=value.reason or value.note) if value else TableCell("")


def _line(interaction: Interaction) -> TableRow:
    cells = [
        TableCell(
            shown(value),
            repr(shown_number(value, DIRECTION)) if value.known else "",
            value.kind,
            interaction.reading(metric),
        )
        for metric, value in interaction.values.items()
    ]
    name = TableCell(interaction.whole.stack, code=True, head=True, mark="†" if interaction.whole.unverified else "")
    counted = [TableCell(str(len(interaction.parts))), name, *cells, TableCell(str(len(interaction.seeds)))]
    return TableRow(counted, dated=bool(interaction.whole.unverified or interaction.whole.newer_version))


ON_BOARD = OnBoard(10, lambda report: section(stacks(report.boards)))
