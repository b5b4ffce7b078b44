"""What one board cannot show: the machines' calibrations, what was measured where, every technique's results together.

Every row has a place on the page, with an identity of its own to link to, whatever records call things.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from suite.contract.card import Card
from suite.judge.claims import Judgement
from suite.judge.metrics import HEADLINES
from suite.judge.rows import Row
from suite.record.job import techniques_of
from suite.show.board import Board, failure_lines, machine_line, text
from suite.show.markup import cell, cell_of, code, data, folded, free_anchor, head, items, link, row_head, slug, table

if TYPE_CHECKING:
    from suite.guard.calibration import Calibration


@dataclass(frozen=True)
class PlacedRow:
    """A row on the page. The anchors: ``anchor`` of its board, ``identity`` its own, ``technique`` of its stack."""

    board: Board
    anchor: str
    tier: str  # as shown; empty where the row has no numbers
    row: Row
    identity: str
    technique: str


def placed_rows(boards: Iterable[Board]) -> list[PlacedRow]:
    """Place all rows in the order of the page. A row keeps its identity whatever other rows are on the page."""
    taken: set[str] = set()
    techniques: dict[str, str] = {}
    placed = []
    for board in boards:
        first = board.rows[0]
        anchor = free_anchor(f"{slug(board.title)}-{first.conditions.key[:4]}-{first.machine.key[:4]}", taken)
        for tier, row in [*board.ranked, *(("", row) for row in board.failed)]:
            identity = free_anchor(f"{anchor}-{slug(row.stack)}", taken)
            if row.stack not in techniques:
                techniques[row.stack] = free_anchor(f"technique-{slug(row.stack)}", taken)
            placed.append(PlacedRow(board, anchor, tier, row, identity, techniques[row.stack]))
    return placed


def categories(stack: str, cards: Mapping[str, Card]) -> list[str]:
    """The categories of those techniques in the stack that are installed."""
    return sorted({cards[name].category for name in techniques_of(stack) if name in cards})


def kinds(stack: str, cards: Mapping[str, Card]) -> str:
    """The stack's categories, as the script filters by them."""
    return " ".join(categories(stack, cards))


# the machines -------------------------------------------------------------------------------------------------------


def machines(rows: Sequence[Row], calibrations: Mapping[str, Calibration]) -> str:
    """Draw a table of the machines: facts, rate of false alarms, and the slow-downs that the gate can see."""
    from suite.guard.calibration import TABLE_PAIRS  # it loads torch, which a page without machines does not need
    from suite.guard.gate import ALPHA

    known = {row.machine.key: row.machine for row in rows}
    if not known:
        return ""
    titles = ("machine", "false alarms of unchanged code", "planted slow-downs caught", "noise of a process pair")
    pairs = "".join(f'<th scope="col">{n} pairs</th>' for n in TABLE_PAIRS)
    heads = "".join(f'<th scope="col" rowspan="2">{escape(title)}</th>' for title in titles)
    body = []
    for key, machine in sorted(known.items(), key=lambda item: item[1].name):
        facts = f'<span class="ends">{escape(machine_line(machine.facts))}</span>'
        calibration = calibrations.get(key)
        cells = _calibrated(calibration) if calibration else (
            f'<td colspan="{len(TABLE_PAIRS) + 4}" class="words unavailable">not calibrated; on that machine, '
            "<code>leantrain calibrate</code> measures it and keeps the result with its records</td>"
        )  # fmt: skip
        body.append(f'<tr><th scope="row">{code(machine.name)}{facts}</th>{cells}</tr>')
    several = (
        f'{heads}<th scope="colgroup" colspan="{len(TABLE_PAIRS)}">smallest slow-down seen in four of five cases</th>'
        f'<th scope="col" rowspan="2">calibrated, valid</th></tr><tr>{pairs}'
    )
    return table("machines-title", "Machines and their calibration", several, "".join(body), "plain") + (
        f'<p class="legend">The gate is what <code>leantrain check</code> runs. At most {ALPHA:.0%} of unchanged code '
        "may raise an alarm; brackets hold the exact 95 % interval of the rate.</p>"
    )


def _calibrated(calibration: Calibration) -> str:
    from suite.guard.calibration import VALID

    rate, until = calibration.false_alarms, calibration.made + VALID
    return (
        f"<td>{rate.estimate:.1%} <span class='ends'>[{rate.low:.1%}, {rate.high:.1%}], {calibration.alarms} of "
        f"{len(calibration.unchanged)} gates</span></td>"
        f"<td>{calibration.caught} of {len(calibration.planted)} "
        f"<span class='ends'>of {calibration.planted_slower:.0%}</span></td>"
        f"<td>{calibration.sigma:.2%}</td>"
        + "".join(f"<td>{effect:.1%}</td>" for effect in calibration.smallest_effects().values())
        + f"<td>{calibration.made:%Y-%m-%d} <span class='ends'>to {until:%Y-%m-%d}</span></td>"
    )


# what was measured where --------------------------------------------------------------------------------------------


def coverage(placed: Sequence[PlacedRow], cards: Mapping[str, Card]) -> str:
    """Draw a table of stacks by conditions with their seeds, and list the techniques that were not measured."""
    several = len({each.row.machine.key for each in placed}) > 1
    columns: dict[tuple[str, ...], dict[str, list[PlacedRow]]] = {}
    for each in placed:
        row = each.row
        where = (
            row.conditions.baseline, row.conditions.recipe, row.conditions.size, row.conditions.task,
            row.conditions.model or "", row.machine.name if several else "",
        )  # fmt: skip
        columns.setdefault(where, {}).setdefault(row.stack, []).append(each)
    titles = ["category", "technique", *(" ".join(filter(None, where)) for where in columns)]
    lines = []
    for stack in sorted({each.row.stack for each in placed}):
        section = next(each.technique for each in placed if each.row.stack == stack)
        kind = kinds(stack, cards)
        name = row_head(stack, link(section, code(stack)))
        seeds = "".join(_seeds_of(column.get(stack, [])) for column in columns.values())
        lines.append(f"<tr{data(category=kind)}>{cell(kind, kind='words')}{name}{seeds}</tr>")
    missing = unmeasured((each.row for each in placed), cards)
    absent = f'<ul class="names">{items(map(code, missing))}</ul>'
    return (
        '<section id="coverage"><h2>What was measured where</h2><p>Seeds that gave numbers; † stale; failed: no seed '
        "did; an empty cell: not measured.</p>"
        + table(
            "coverage-title", "Seeds of each technique by conditions", head(titles, sorted_by=1),
            "\n" + "\n".join(lines) + "\n", "coverage",
        )
        + (
            folded(f"Not measured at all: {len(missing)} of {len(cards)} techniques of the catalogue", absent)
            if missing
            else ""
        )
        + "</section>"
    )  # fmt: skip


def unmeasured(rows: Iterable[Row], cards: Mapping[str, Card]) -> list[str]:
    """List the techniques that stand in no row: neither alone, nor in a stack, nor as the reference."""
    measured = {name for row in rows for name in (*techniques_of(row.stack), row.reference)}
    return sorted(set(cards) - measured)


def _seeds_of(placed: Sequence[PlacedRow]) -> str:
    """The cell of a stack's rows under one set of conditions."""
    links = " ".join(
        link(each.identity, f"{'failed' if each.row.failed else len(each.row.seeds)}{'†' if each.row.stale else ''}")
        for each in placed
    )
    return cell_of(links, max((len(each.row.seeds) for each in placed), default=""))


# every technique ----------------------------------------------------------------------------------------------------


def techniques(
    placed: Sequence[PlacedRow],
    judgements: Sequence[Judgement],
    cards: Mapping[str, Card],
    studies: Mapping[str, str],
) -> str:
    """Draw a section for each stack: its cards, its headline numbers, its claims by verdict, its studies.

    ``studies`` are links by technique.
    """
    by_stack: dict[str, list[PlacedRow]] = {}
    for each in placed:
        by_stack.setdefault(each.row.stack, []).append(each)
    verdicts: dict[str, Counter[str]] = {}
    for judgement in judgements:
        verdicts.setdefault(judgement.technique, Counter())[judgement.verdict] += 1
    parts = "\n".join(_technique(stack, by_stack[stack], verdicts, cards, studies) for stack in sorted(by_stack))
    return f'<section id="techniques"><h2>Techniques</h2>\n{parts}\n</section>'


def _technique(
    stack: str,
    placed: Sequence[PlacedRow],
    verdicts: Mapping[str, Counter[str]],
    cards: Mapping[str, Card],
    studies: Mapping[str, str],
) -> str:
    names = techniques_of(stack)
    known = [name for name in names if name in cards]
    kind = kinds(stack, cards)
    about = "".join(map(_about, (cards[name] for name in known)))
    results = items(
        f"{link(each.identity, escape(each.board.title))}{'†' if each.row.stale else ''}: "
        f"{escape(_headlines(each.row))}"
        for each in placed
    )
    tally = "; ".join(
        f"{count} {verdict}" for name in known for verdict, count in sorted(verdicts.get(name, Counter()).items())
    )
    claims = f"<p>{link('claims', 'Claims of the paper')}: {escape(tally)}.</p>" if tally else ""
    links = ", ".join(studies[name] for name in names if name in studies)
    return (
        f'<article id="{placed[0].technique}"{data(name=stack, category=kind)}>'
        f'<h3>{code(stack)} <span class="kind">{escape(kind)}</span></h3>'
        f"{about}<ul>{results}</ul>{claims}{f'<p>Studies: {links}</p>' if links else ''}</article>"
    )


def _about(card: Card) -> str:
    paper = card.paper
    source = f"{paper.authors}: {paper.title}. {paper.venue}{f', arXiv {paper.arxiv}' if paper.arxiv else ''}."
    return f'<p>{escape(card.summary)} <span class="source">{escape(source)}</span></p>'


def _headlines(row: Row) -> str:
    if row.failed:
        return "; ".join(failure_lines(row))
    values = [(metric, row.value(metric.name)) for metric in HEADLINES]
    return ", ".join(
        f"{metric.heading} {text(value, metric.direction)}" for metric, value in values if value.kind != "unavailable"
    )
