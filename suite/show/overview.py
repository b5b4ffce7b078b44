"""What one board cannot show: the machines' calibrations, what was measured where, every technique's results together.

Places are where rows stand on the page; every one has an identity of its own to link to, whatever records call things.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from suite.contract.card import Card
from suite.guard.calibration import TABLE_PAIRS, VALID, Calibration
from suite.guard.gate import ALPHA
from suite.judge.claims import Verdict
from suite.judge.rows import Row
from suite.record.job import techniques_of
from suite.show.board import COLUMNS, Board, failure_lines, machine_line, text

HEADLINES = tuple(column for column in COLUMNS if column.metric in ("time_to_quality", "step_time", "loss")) + tuple(
    column for column in COLUMNS if column.metric == "peak_tensor_bytes"
)


@dataclass(frozen=True)
class Place:
    """A row on the page. ``anchor`` is its board's, ``identity`` its own, ``technique`` that of its stack's section."""

    board: Board
    anchor: str
    tier: str  # as shown; empty where the row has no numbers
    row: Row
    identity: str
    technique: str


def slug(words: str) -> str:
    return re.sub(r"[^a-z0-9_]+", "-", words.lower()).strip("-")


def places(boards: Iterable[Board]) -> list[Place]:
    """All rows in the order of the page. Identities of the same board and stack last, whatever stands beside them."""
    taken: set[str] = set()
    techniques: dict[str, str] = {}
    found = []
    for board in boards:
        first = board.rows[0]
        anchor = free(f"{slug(board.title)}-{first.conditions.key[:4]}-{first.machine.key[:4]}", taken)
        for tier, row in [*board.ranked, *(("", row) for row in board.failed)]:
            identity = free(f"{anchor}-{slug(row.stack)}", taken)
            if row.stack not in techniques:
                techniques[row.stack] = free(f"technique-{slug(row.stack)}", taken)
            found.append(Place(board, anchor, tier, row, identity, techniques[row.stack]))
    return found


def free(name: str, taken: set[str]) -> str:
    """The name, numbered where it is taken; then it is taken, too."""
    number = 1
    while (chosen := name if number == 1 else f"{name}-{number}") in taken:
        number += 1
    taken.add(chosen)
    return chosen


def categories(stack: str, cards: Mapping[str, Card]) -> list[str]:
    """Of the techniques in the stack that are installed."""
    return sorted({cards[name].category for name in techniques_of(stack) if name in cards})


# the machines -------------------------------------------------------------------------------------------------------


def machines(rows: Sequence[Row], calibrations: Mapping[str, Calibration]) -> str:
    """A table: what each machine is, its rate of false alarms, and the slow-downs that its gate can see."""
    known = {row.machine.key: row.machine for row in rows}
    if not known:
        return ""
    titles = ("machine", "false alarms of unchanged code", "planted slow-downs caught", "noise of a process pair")
    pairs = "".join(f'<th scope="col">{n} pairs</th>' for n in TABLE_PAIRS)
    heads = "".join(f'<th scope="col" rowspan="2">{escape(title)}</th>' for title in titles)
    body = []
    for key, machine in sorted(known.items(), key=lambda item: item[1].name):
        name = (
            f'<th scope="row"><code>{escape(machine.name)}</code>'
            f'<span class="ends">{escape(machine_line(machine.facts))}</span></th>'
        )
        made = calibrations.get(key)
        if made is None:
            width = len(TABLE_PAIRS) + 4
            cells = (
                f'<td colspan="{width}" class="words unavailable">not calibrated; on that machine, '
                "<code>leantrain calibrate</code> measures it and keeps the result with its records</td>"
            )
        else:
            rate, until = made.false_alarms, made.made + VALID
            cells = (
                f"<td>{rate.estimate:.1%} <span class='ends'>[{rate.low:.1%}, {rate.high:.1%}], {made.alarms} of "
                f"{len(made.unchanged)} gates</span></td>"
                f"<td>{made.caught} of {len(made.planted)} <span class='ends'>of {made.planted_slower:.0%}</span></td>"
                f"<td>{made.sigma:.2%}</td>"
                + "".join(f"<td>{effect:.1%}</td>" for effect in made.smallest_effects().values())
                + f"<td>{made.made:%Y-%m-%d} <span class='ends'>to {until:%Y-%m-%d}</span></td>"
            )
        body.append(f"<tr>{name}{cells}</tr>")
    return (
        '<div class="scroll" role="region" tabindex="0" aria-labelledby="machines-title"><table class="plain">'
        '<caption id="machines-title">Machines and their calibration</caption>'
        f'<thead><tr>{heads}<th scope="colgroup" colspan="{len(TABLE_PAIRS)}">smallest slow-down seen in four of five '
        f'cases</th><th scope="col" rowspan="2">calibrated, valid</th></tr><tr>{pairs}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
        f'<p class="legend">The gate is what <code>leantrain check</code> runs. At most {ALPHA:.0%} of unchanged code '
        "may raise an alarm; brackets hold the exact 95 % interval of the rate.</p>"
    )


# what was measured where --------------------------------------------------------------------------------------------


def coverage(found: Sequence[Place], cards: Mapping[str, Card]) -> str:
    """A table of stacks by conditions: seeds of each, failures, and what of the catalogue nothing is known of."""
    several = len({place.row.machine.key for place in found}) > 1
    columns: dict[tuple[str, ...], dict[str, list[Place]]] = {}
    for place in found:
        row = place.row
        where = (
            row.conditions.baseline, row.conditions.recipe, row.conditions.size, row.conditions.task,
            row.conditions.model or "", row.machine.name if several else "",
        )  # fmt: skip
        columns.setdefault(where, {}).setdefault(row.stack, []).append(place)
    heads = "".join(
        f'<th scope="col"><button type="button">{escape(" ".join(filter(None, where)))}</button></th>'
        for where in columns
    )
    lines = []
    for stack in sorted({place.row.stack for place in found}):
        link = next(place.technique for place in found if place.row.stack == stack)
        kinds = " ".join(categories(stack, cards))
        cells = "".join(_covered(column.get(stack, [])) for column in columns.values())
        lines.append(
            f'<tr data-category="{escape(kinds)}"><td class="words" data-sort="{escape(kinds)}">{escape(kinds)}</td>'
            f'<th scope="row" data-sort="{escape(stack)}"><a href="#{link}"><code>{escape(stack)}</code></a></th>'
            f"{cells}</tr>"
        )
    body = "\n".join(lines)
    missing = unmeasured((place.row for place in found), cards)
    absent = "".join(f"<li><code>{escape(name)}</code></li>" for name in missing)
    return (
        '<section id="coverage"><h2>What was measured where</h2><p>Seeds that gave numbers; † stale; failed: no seed '
        "did; an empty cell: not measured.</p>"
        '<div class="scroll" role="region" tabindex="0" aria-labelledby="coverage-title"><table class="coverage">'
        '<caption id="coverage-title">Seeds of each technique by conditions</caption><thead><tr>'
        '<th scope="col"><button type="button">category</button></th>'
        f'<th scope="col" aria-sort="ascending"><button type="button">technique</button></th>{heads}</tr></thead>'
        f"<tbody>\n{body}\n</tbody></table></div>"
        + (
            f"<details><summary>Not measured at all: {len(missing)} of {len(cards)} techniques of the catalogue"
            f'</summary><ul class="names">{absent}</ul></details>'
            if missing
            else ""
        )
        + "</section>"
    )


def unmeasured(rows: Iterable[Row], cards: Mapping[str, Card]) -> list[str]:
    """The techniques that no row is of, neither alone, nor in a stack, nor as the reference."""
    measured = {name for row in rows for name in (*techniques_of(row.stack), row.reference)}
    return sorted(set(cards) - measured)


def _covered(there: Sequence[Place]) -> str:
    if not there:
        return '<td data-sort=""></td>'
    seeds = max(len(place.row.seeds) for place in there)
    links = " ".join(
        f'<a href="#{place.identity}">{"failed" if place.row.failed else len(place.row.seeds)}'
        f"{'†' if place.row.stale else ''}</a>"
        for place in there
    )
    return f'<td data-sort="{seeds}">{links}</td>'


# every technique ----------------------------------------------------------------------------------------------------


def techniques(
    found: Sequence[Place], judged: Sequence[Verdict], cards: Mapping[str, Card], studied: Mapping[str, str]
) -> str:
    """A section for each stack: its cards, its headline numbers everywhere, its claims by verdict, its studies, which
    ``studied`` has as links by technique."""
    by_stack: dict[str, list[Place]] = {}
    for place in found:
        by_stack.setdefault(place.row.stack, []).append(place)
    verdicts: dict[str, Counter[str]] = {}
    for verdict in judged:
        verdicts.setdefault(verdict.technique, Counter())[verdict.word] += 1
    parts = "\n".join(_technique(stack, by_stack[stack], verdicts, cards, studied) for stack in sorted(by_stack))
    return f'<section id="techniques"><h2>Techniques</h2>\n{parts}\n</section>'


def _technique(
    stack: str,
    there: Sequence[Place],
    verdicts: Mapping[str, Counter[str]],
    cards: Mapping[str, Card],
    studied: Mapping[str, str],
) -> str:
    names = techniques_of(stack)
    known = [name for name in names if name in cards]
    kinds = " ".join(categories(stack, cards))
    about = "".join(map(_about, (cards[name] for name in known)))
    results = "".join(
        f'<li><a href="#{place.identity}">{escape(place.board.title)}</a>{"†" if place.row.stale else ""}: '
        f"{escape(_headlines(place.row))}</li>"
        for place in there
    )
    said = "; ".join(
        f"{count} {word}" for name in known for word, count in sorted(verdicts.get(name, Counter()).items())
    )
    claims = f'<p><a href="#claims">Claims of the paper</a>: {escape(said)}.</p>' if said else ""
    asked = ", ".join(studied[name] for name in names if name in studied)
    studies = f"<p>Studies: {asked}</p>" if asked else ""
    return (
        f'<article id="{there[0].technique}" data-name="{escape(stack)}" data-category="{escape(kinds)}">'
        f'<h3><code>{escape(stack)}</code> <span class="kind">{escape(kinds)}</span></h3>'
        f"{about}<ul>{results}</ul>{claims}{studies}</article>"
    )


def _about(card: Card) -> str:
    paper = card.paper
    source = f"{paper.authors}: {paper.title}. {paper.venue}{f', arXiv {paper.arxiv}' if paper.arxiv else ''}."
    return f'<p>{escape(card.summary)} <span class="source">{escape(source)}</span></p>'


def _headlines(row: Row) -> str:
    if row.failed:
        return "; ".join(failure_lines(row))
    values = [(column, column.value(row)) for column in HEADLINES]
    return ", ".join(f"{column.title} {text(column, value)}" for column, value in values if value.kind != "unavailable")
