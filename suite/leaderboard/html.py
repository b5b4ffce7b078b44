"""The leaderboard as one HTML file that opens offline: style and script inside, nothing loaded, everything escaped.

The tables are complete without the script, which only sorts, filters and saves. A content-security policy admits this
one script by its hash and no network at all.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from string import Template

from suite.claims import COLUMNS, WORDS, Verdict, counts
from suite.claims import table as claims_table
from suite.leaderboard import stacks
from suite.leaderboard.board import (
    HOW_TO_READ,
    Board,
    Column,
    boards,
    change,
    decimals,
    ends,
    failure_lines,
    number,
    remarks,
    setup_text,
    shown_interval,
    shown_number,
    summarised,
    text,
)
from suite.leaderboard.charts import curves, pareto, span, whisker
from suite.results import Row, Value, as_dict


def render(rows: Sequence[Row], problems: Sequence[str] = (), judged: Sequence[Verdict] = ()) -> str:
    """The whole page. ``problems`` are the store's sentences about lines that it could not read, ``judged`` the
    verdicts on the papers' claims."""
    folder = files(__package__)
    script = (folder / "board.js").read_text("utf-8")
    head = summarised(rows)
    shown = boards(rows)
    tried = stacks.stacks(shown)
    sentences = [*HOW_TO_READ]
    if head.stale:
        sentences.append(f"† stale, since code changed: {head.stale} of the rows. leantrain run measures them again.")
    if problems:
        sentences.append(f"Lines of the records that could not be read and are left out: {len(problems)}.")
    summary = f"{head.rows} rows from {head.records} replicates, {head.seeds} a row, newest record {head.newest}."
    return Template((folder / "board.html").read_text("utf-8")).substitute(
        policy=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        style=(folder / "board.css").read_text("utf-8"),
        script=script,
        summary=escape(summary if rows else "No records yet. Measure some: leantrain run"),
        machines=_list(f"<code>{escape(name)}</code> {escape(facts)}" for name, facts in head.machines),
        reading=_list(map(escape, sentences)),
        contents=_list(
            [f'<a href="#{_anchor(board)}">{escape(board.title)}</a>' for board in shown]
            + (['<a href="#stacks">Stacks</a>'] if tried else [])
            + (['<a href="#claims">Claims of the papers</a>'] if judged else [])
        ),
        boards="\n".join([*map(_board, shown), stacks.html(tried), *([_claims(judged)] if judged else [])]),
        data=_data(rows),
    )


def _data(rows: Sequence[Row]) -> str:
    """JSON that cannot end its script element."""
    return json.dumps([as_dict(row) for row in rows], ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")


def _list(items: Iterable[str]) -> str:
    """List items of markup."""
    return "".join(f"<li>{item}</li>" for item in items)


def _anchor(board: Board) -> str:
    """The same for the same board whatever stands beside it, so that links last."""
    row = board.rows[0]
    return f"{_slug(board.title)}-{row.conditions.key[:4]}-{row.machine.key[:4]}"


def _slug(words: str) -> str:
    return re.sub(r"[^a-z0-9_]+", "-", words.lower()).strip("-")


def _board(board: Board) -> str:
    anchor = _anchor(board)
    columns = board.columns()
    table = _table(board, columns, anchor) if board.ranked else ""
    missing = _list(f"{escape(title)}: n/a ({escape(reason)})" for title, reason in board.empty_columns())
    noted = [(row, found) for _, row in board.ranked if (found := remarks(row, columns))]
    notes = _list(f"<code>{escape(row.stack)}</code>: {escape('; '.join(found))}" for row, found in noted)
    failed = _list(f"<code>{escape(row.stack)}</code>: {escape('; '.join(failure_lines(row)))}" for row in board.failed)
    figures = [(row, drawn) for _, row in board.ranked if (drawn := curves(row))]
    grid = "".join(
        f"<figure>{drawn}<figcaption><code>{escape(row.stack)}</code></figcaption></figure>" for row, drawn in figures
    )
    plot = pareto([row for _, row in board.ranked])
    parts = [
        f'<section id="{anchor}"><h2>{escape(board.title)}</h2>',
        f"<p>{escape(board.subtitle)} {escape(board.detectable)}</p>",
        table,
        f"<ul>{missing}</ul>" if missing else "",
        _fold("Notes", f"<ul>{notes}</ul>") if notes else "",
        f"<h3>No numbers</h3><ul>{failed}</ul>" if failed else "",
        _fold("Time, memory and quality", f"{plot}{PARETO_LEGEND}") if plot else "",
        _fold("Loss curves", f'{CURVES_LEGEND}<div class="grid">{grid}</div>') if grid else "",
        "</section>",
    ]
    return "\n".join(filter(None, parts))


def _claims(judged: Sequence[Verdict]) -> str:
    summary = "; ".join(f"{count} {word}" for word, count in counts(judged).items())
    head = "".join(f'<th scope="col"><button type="button">{escape(title)}</button></th>' for title in COLUMNS)
    lines = []
    for word, name, *others in claims_table(judged):
        cells = "".join(f'<td class="words" data-sort="{escape(words)}">{escape(words)}</td>' for words in others)
        first = f'<td class="words" data-sort="{WORDS.index(word)}">{escape(word)}</td>'
        title = f'<th scope="row" data-sort="{escape(name)}"><code>{escape(name)}</code></th>'
        lines.append(f"<tr>{first}{title}{cells}</tr>")
    body = "\n".join(lines)
    return (
        f'<section id="claims"><h2>Claims of the papers</h2><p>{escape(summary)}. Ratios are costs: below 1 is better.'
        '</p><div class="scroll" role="region" tabindex="0" aria-labelledby="claims-title"><table class="claims">'
        f'<caption id="claims-title">Claims of the papers</caption><thead><tr>{head}</tr></thead>'
        f"<tbody>\n{body}\n</tbody></table></div></section>"
    )


PARETO_LEGEND = (
    '<p class="legend">● reached the reference\'s loss within 1 %, ▲ ended worse. Ringed: no other technique, nor the '
    "reference, is as good in time, memory and loss. Left and low is better.</p>"
)
CURVES_LEGEND = (
    '<p class="legend"><span class="reference">╌╌</span> reference, <span class="technique">━━</span> technique; '
    "a line for each seed. Test loss against cost, set-up included.</p>"
)


def _fold(title: str, content: str) -> str:
    return f"<details><summary>{title}</summary>{content}</details>"


def _table(board: Board, columns: Sequence[Column], anchor: str) -> str:
    titles = ["tier", "technique", *(f"{each.title}\xa0{each.arrow}" for each in columns), "set-up", "seeds"]
    head = "".join(
        f'<th scope="col"{_sorted_first(position)}><button type="button">{escape(title)}</button></th>'
        for position, title in enumerate(titles)
    )
    spans = {
        column.metric: span(i for _, row in board.ranked if (i := shown_interval(column, column.value(row))))
        for column in columns
    }
    lines = []
    taken: set[str] = set()
    for order, (tier, row) in enumerate(board.ranked):
        identity = f"{anchor}-{_slug(row.stack)}"
        lines.append(_line(order, tier, row, columns, spans, f"{identity}-{order}" if identity in taken else identity))
        taken.add(identity)
    body = "\n".join(lines)
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-labelledby="{anchor}-title"><table>'
        f'<caption id="{anchor}-title">{escape(board.title)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table></div>"
    )


def _sorted_first(position: int) -> str:
    return ' aria-sort="ascending"' if position == 0 else ""


def _line(order: int, tier: str, row: Row, columns: Sequence[Column], spans: dict[str, float], identity: str) -> str:
    tried = len(row.seeds) + len({each.seed for each in row.failures})
    seeds = str(tried) if tried == len(row.seeds) else f"{len(row.seeds)} of {tried}"
    mark = '<abbr title="stale">†</abbr>' if row.stale else ""
    control = " (A/A)" if row.stack == row.reference else ""
    setup = str(row.setup.estimate) if row.setup else ""
    cells = [
        f'<td data-sort="{order}">{escape(tier)}</td>',
        f'<th scope="row" data-sort="{escape(row.stack)}"><a href="#{identity}"><code>{escape(row.stack)}</code></a>'
        f"{mark}{control}</th>",
        *(_cell(column, column.value(row), spans[column.metric]) for column in columns),
        f'<td data-sort="{setup}">{escape(setup_text(row))}</td>',
        f'<td data-sort="{len(row.seeds)}">{escape(seeds)}</td>',
    ]
    return f'<tr id="{identity}"{" data-stale" if row.stale else ""}>{"".join(cells)}</tr>'


def _cell(column: Column, value: Value, half_width: float) -> str:
    if not value.known:
        why = escape(value.reason)
        return f'<td data-sort="" class="{value.kind}" title="{why}">{escape(text(column, value))}</td>'
    interval = shown_interval(column, value)
    shown = shown_number(column, value)
    mark = "=" if value.kind == "exact" else "×" if column.speedup else ""
    drawn = whisker(interval, half_width) if interval else ""
    brackets = f' <span class="ends">{escape(ends(interval))}</span>' if ends(interval) else ""
    says = "; ".join(filter(None, (change(column, value), value.note)))
    note = f' title="{escape(says)}"' if says else ""
    return (
        f'<td data-sort="{shown!r}" class="{value.kind}"{note}>{drawn}<span class="number">'
        f"{mark}{number(shown, decimals(interval))}</span>{brackets}</td>"
    )
