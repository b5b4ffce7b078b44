"""What one board cannot show: the matrix of all techniques, the machines' calibrations, each technique's results.

Every row has a place on the page, with an identity of its own to link to, whatever records call things.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from suite.contract.card import Card
from suite.judge.claims import Judgement
from suite.judge.metrics import HEADLINES, METRICS, Value
from suite.judge.rows import Row
from suite.record.job import techniques_of
from suite.record.text import in_html
from suite.show import matrix as matrices
from suite.show.board import (
    HEADLINE,
    Board,
    change,
    decimals,
    ends,
    evidence_text,
    failure_lines,
    leaning,
    machine_line,
    mark,
    number,
    shown_interval,
    shown_number,
    text,
    unverified_text,
)
from suite.show.charts import whisker
from suite.show.markup import (
    cell,
    cell_of,
    code,
    data,
    folded,
    free_anchor,
    head,
    items,
    link,
    row_head,
    slug,
    table,
    unverified,
)

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
        anchor = free_anchor(slug(f"{board.title} {first.conditions.key[:4]} {first.machine.key[:4]}"), taken)
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
    heads = "".join(f'<th scope="col" rowspan="2">{in_html(title)}</th>' for title in titles)
    body = []
    for key, machine in sorted(known.items(), key=lambda item: item[1].name):
        facts = f'<span class="ends">{in_html(machine_line(machine.facts))}</span>'
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
    drawn = table("machines-title", "Machines and their calibration", several, "".join(body), "plain")
    legend = (
        f'<p class="legend">The gate is what <code>leantrain check</code> runs. At most {ALPHA:.0%} of unchanged code '
        "may raise an alarm; brackets hold the exact 95 % interval of the rate.</p>"
    )
    names = ", ".join(machine.name for machine in sorted(known.values(), key=lambda machine: machine.name))
    return folded(f"Machines and their calibration: {in_html(names)}", drawn + legend)


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


# the matrix ---------------------------------------------------------------------------------------------------------


def matrix(placed: Sequence[PlacedRow], cards: Mapping[str, Card]) -> str:
    """Draw every technique in a line, its intervals on one axis, and list those that were not measured."""
    by_row = {id(each.row): each for each in placed}
    whole = matrices.matrix(each.row for each in placed)
    costs = [metric for metric in matrices.COSTS if any(each.cost(metric.name) for each in whole.entries)]
    titles = ["technique", *whole.columns, *(f"{metric.heading}\xa0{metric.arrow}" for metric in costs), "in words"]
    firsts = range(1, 1 + len(whole.columns))
    lines = []
    for position, each in enumerate(whole.entries):
        rows = {column: [by_row[id(row)] for row in rows] for column, rows in each.cells.items()}
        section = next(iter(rows.values()))[0].technique
        cells = [
            row_head(each.stack, link(section, code(each.stack))),
            *(_headline_cell(rows[column]) if column in rows else cell("") for column in whole.columns),
            *(cell(each.cost(metric.name), _worst(each, metric.name), "cost") for metric in costs),
            cell(each.sentence, position, "words"),
        ]
        kind = data(category=kinds(each.stack, cards), name=each.stack, verdict=" ".join(each.verdicts))
        lines.append(f"<tr{kind}>{''.join(cells)}</tr>")
    missing = unmeasured((each.row for each in placed), cards)
    absent = f'<ul class="names">{items(map(code, missing))}</ul>'
    return (
        f'<section id="answer"><h2>Time to the same quality <span class="kind">{in_html(whole.shared)}</span></h2>'
        f"{_verdicts(whole)}"
        + table(
            "answer-title", "Time to the same quality by technique",
            head(titles, sorted_by=len(titles) - 1, descending=firsts),
            "\n" + "\n".join(lines) + "\n", "answer",
        )
        + f'<p class="legend">{in_html(matrices.SCOPE)} The axis of each cell ends at ½ and 2; the line is 1.</p>'
        + (
            folded(f"Not measured at all: {len(missing)} of {len(cards)} techniques of the catalogue", absent)
            if missing
            else ""
        )
        + "</section>"
    )  # fmt: skip


def _verdicts(whole: matrices.Matrix) -> str:
    """How many techniques are better, worse, ...: a button each, by which the script filters the matrix."""
    buttons = "".join(
        f'<button type="button" class="{verdict}" aria-pressed="false" data-verdict="{verdict}">'
        f"<b>{whole.count(verdict)}</b> {verdict}</button>"
        for verdict in matrices.VERDICTS
    )
    return f'<p id="verdicts" role="group" aria-label="Show techniques that are">{buttons}</p>'


def unmeasured(rows: Iterable[Row], cards: Mapping[str, Card]) -> list[str]:
    """List the techniques that stand in no row: neither alone, nor in a stack, nor as the reference."""
    measured = {name for row in rows for name in (*techniques_of(row.stack), row.reference)}
    return sorted(set(cards) - measured)


def _headline_cell(placed: Sequence[PlacedRow]) -> str:
    """The headline of the first row, and a link to each of the others."""
    first, *others = placed
    value = first.row.value(HEADLINE.name)
    sort = f"{shown_number(value, HEADLINE.direction):.6g}" if value.kind in ("measured", "bound") else ""
    interval = shown_interval(value, HEADLINE.direction)
    if first.row.failed and value.kind == "unavailable":
        shown = "failed"
    elif value.kind in ("unavailable", "missed"):
        shown = text(value, HEADLINE.direction)
    else:
        shown = (
            f"{mark(value, HEADLINE.direction)}{number(shown_number(value, HEADLINE.direction), decimals(interval))}"
        )
    brackets = f'<span class="ends">{in_html(ends(interval))}</span>' if ends(interval) else ""
    further = "".join(f" {link(each.identity, f'+{n}')}" for n, each in enumerate(others, 1))
    drawn = whisker(interval, AXIS) if interval else ""
    markup = f"{drawn}{link(first.identity, in_html(shown))}{unverified(unverified_text(first.row))}{further}{brackets}"
    return cell_of(markup, sort, f"{value.kind} {LEANS[leaning(value)]}".strip(), _hovered(first.row, value))


def _hovered(row: Row, value: Value) -> str:
    """What a cell says to a pointer: interval, evidence, and the seconds and bytes behind."""
    sizes = [
        f"{metric.heading} {sizes}"
        for metric in (METRICS["step_time"], METRICS["peak_tensor_bytes"])
        if (sizes := change(row.value(metric.name), metric.unit))
    ]
    said = [ends(shown_interval(value, HEADLINE.direction)), evidence_text(row), value.reason, value.note, *sizes]
    return "; ".join(filter(None, said))


AXIS = math.log(2)
LEANS = {1: "better", -1: "worse", 0: ""}


def _worst(entry: matrices.Entry, metric: str) -> str:
    known = [value.number for row in entry.best.values() if (value := row.value(metric)).known]
    return f"{max(known):.6g}" if known else ""


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
        f"{link(each.identity, in_html(each.board.title))}{unverified(unverified_text(each.row))}: "
        f"{in_html(_headlines(each.row))}"
        for each in placed
    )
    tally = "; ".join(
        f"{count} {verdict}" for name in known for verdict, count in sorted(verdicts.get(name, Counter()).items())
    )
    claims = f"<p>{link('claims', 'Claims of the paper')}: {in_html(tally)}.</p>" if tally else ""
    links = ", ".join(studies[name] for name in names if name in studies)
    return (
        f'<article id="{placed[0].technique}"{data(name=stack, category=kind)}>'
        f'<h3>{code(stack)} <span class="kind">{in_html(kind)}</span></h3>'
        f"{about}<ul>{results}</ul>{claims}{f'<p>Studies: {links}</p>' if links else ''}</article>"
    )


def _about(card: Card) -> str:
    paper = card.paper
    source = f"{paper.authors}: {paper.title}. {paper.venue}{f', arXiv {paper.arxiv}' if paper.arxiv else ''}."
    return f'<p>{in_html(card.summary)} <span class="source">{in_html(source)}</span></p>'


def _headlines(row: Row) -> str:
    if row.failed:
        return "; ".join(failure_lines(row))
    values = [(metric, row.value(metric.name)) for metric in HEADLINES]
    return ", ".join(
        f"{metric.heading} {text(value, metric.direction)}" for metric, value in values if value.kind != "unavailable"
    )
