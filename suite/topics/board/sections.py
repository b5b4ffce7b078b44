"""Draws each technique's own section: what it is, what was seen, what it cost, its paper's claims, how it is used.

A section is folded, and packed, until a link leads to it. Its plots of one board share their ranges with all others of
that board.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from suite.entries.card import Card
from suite.judge.metrics import METRICS, Metric
from suite.judge.rows import Row, of_version
from suite.record.job import Spelling
from suite.record.text import in_html
from suite.show.bibtex import bibtex
from suite.show.on_board import Draws, OnPage
from suite.show.packing import Pack
from suite.show.pages import markup, matrix
from suite.show.pages.board import failure_lines, remarks, shown_interval, unverified_text, version_text
from suite.show.pages.cells import value_cell
from suite.show.pages.places import PlacedRow, categories, kinds
from suite.show.pictures.charts import CostFrame, CurveFrame, cost_and_quality, curves, span
from suite.show.pictures.drawing import definitions
from suite.topics.board.contents import on_page
from suite.topics.board.report import Folder, Origin, Report

SHOWN = tuple(
    METRICS[name]
    for name in (
        "time_to_quality",
        "equivalent_budget",
        "step_time",
        "training_time",
        "peak_tensor_bytes",
        "training_flops",
        "energy",
        "modelled_energy",
        "loss",
    )
)
SHORT_ID = 8  # letters of a record's id, which name it to `repro`


@dataclass(frozen=True)
class Ranges:
    """Holds what plots and cells share: by a board's anchor the axes, by metric the width of whiskers.

    ``qualities``: by baseline what its loss is.
    """

    curves: Mapping[str, CurveFrame | None]
    costs: Mapping[str, CostFrame | None]
    widths: Mapping[str, float]
    qualities: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, placed: Sequence[PlacedRow], qualities: Mapping[str, str]) -> Ranges:
        by_board: dict[str, list[Row]] = {}
        for spot in placed:
            if not spot.row.failed:
                by_board.setdefault(spot.anchor, []).append(spot.row)
        widths = {
            metric.name: span(
                interval
                for spot in placed
                if (interval := shown_interval(spot.row.value(metric.name), metric.direction))
            )
            for metric in SHOWN
        }
        return cls(
            {anchor: CurveFrame.of(rows, f"{anchor}--curves") for anchor, rows in by_board.items()},
            {anchor: CostFrame.of(rows, f"{anchor}--costs") for anchor, rows in by_board.items()},
            widths,
            qualities,
        )

    @property
    def definitions(self) -> str:
        return definitions(curve.shared for curve in (*self.curves.values(), *self.costs.values()) if curve)


def techniques(report: Report, placed: Sequence[PlacedRow], pack: Pack) -> str:
    """Draw a section for each stack, packed behind its summary."""
    by_stack: dict[str, list[PlacedRow]] = {}
    for spot in placed:
        by_stack.setdefault(spot.row.stack, []).append(spot)
    ranges = Ranges.of(placed, report.qualities)
    goods = {id: card.good for id, card in report.cards.items()}
    sentences = {entry.stack: entry.sentence for entry in matrix.matrix((spot.row for spot in placed), goods).entries}
    in_order = sorted((*_own_parts(ranges), *on_page()), key=lambda part: part.order)
    draws = [part.of(report) for part in in_order]
    parts = "\n".join(
        pack.fold(_technique(stack, by_stack[stack], sentences[stack], report.cards, draws))
        for stack in sorted(by_stack)
    )
    return f'<section id="techniques"><h2>Techniques</h2>{ranges.definitions}\n{parts}\n</section>'


def _own_parts(ranges: Ranges) -> tuple[OnPage, ...]:
    """Returns the parts that are no topic's."""
    return (
        OnPage(10, lambda report: lambda stack, placed: "".join(map(_about, _known(stack, report.cards)))),
        OnPage(30, lambda report: lambda stack, placed: _results(placed, ranges)),
        OnPage(40, lambda report: lambda stack, placed: _plots(placed, ranges)),
        OnPage(80, lambda report: lambda stack, placed: _mutants(Spelling(stack).names, report.folders)),
        OnPage(
            110,
            lambda report: lambda stack, placed: _usage(stack, placed, _known(stack, report.cards), report.folders),
        ),
        OnPage(120, lambda report: lambda stack, placed: _records(placed, report.origins)),
    )


def _known(stack: str, cards: Mapping[str, Card]) -> list[Card]:
    """Returns the cards of the stack's techniques that are installed."""
    return [cards[name] for name in Spelling(stack).names if name in cards]


def _technique(
    stack: str, placed: Sequence[PlacedRow], sentence: str, cards: Mapping[str, Card], draws: Sequence[Draws]
) -> str:
    names = ", ".join(card.name for card in _known(stack, cards))
    about = " · ".join(filter(None, (names, *categories(stack, cards))))
    return (
        f'<details class="technique" id="{placed[0].technique}"'
        f"{markup.data(name=stack, category=kinds(stack, cards))}><summary>"
        f'{markup.code(stack)} <span class="kind">{in_html(about)}</span> '
        f'<span class="said">{in_html(sentence)}</span></summary>'
        f"<article><h3>{markup.code(stack)}</h3>"
        f"{''.join(draw(stack, placed) for draw in draws)}</article></details>"
    )


# the card -----------------------------------------------------------------------------------------------------------


def _about(card: Card) -> str:
    paper = card.paper
    source = f"{paper.authors}: {paper.title}. {paper.venue}{f', arXiv {paper.arxiv}' if paper.arxiv else ''}."
    words_of = [
        ("Variant", card.variant),
        ("Limitations", card.limitations),
        ("Counter-evidence", card.counter_evidence),
    ]
    further = "".join(f"<p><b>{title}.</b> {in_html(words.strip())}</p>" for title, words in words_of if words.strip())
    return f'<p>{in_html(card.summary)} <span class="source">{in_html(source)}</span></p>{further}'


# what was seen ------------------------------------------------------------------------------------------------------


def _results(placed: Sequence[PlacedRow], ranges: Ranges) -> str:
    """Draws a line for each board; what failed, and what the numbers do not say, below."""
    alive = [spot for spot in placed if not spot.row.failed]
    metrics = [metric for metric in SHOWN if any(spot.row.value(metric.name).kind != "unavailable" for spot in alive)]
    lines = "\n".join(_result(spot, metrics, ranges) for spot in alive)
    heads = markup.head(["board", *(f"{metric.heading}\xa0{metric.arrow}" for metric in metrics)])
    anchor = f"{placed[0].technique}--results"
    parts = [markup.table(anchor, f"Results of {placed[0].row.stack}", heads, f"\n{lines}\n")] if alive else []
    said = [
        f"{markup.link(spot.identity, in_html(_where(spot.row)))}: {in_html('; '.join(sentences))}"
        for spot in placed
        if (sentences := failure_lines(spot.row) if spot.row.failed else remarks(spot.row, metrics))
    ]
    return "".join(parts) + (markup.folded("Notes", f"<ul>{markup.items(said)}</ul>") if said else "")


def _where(row: Row) -> str:
    at = row.conditions
    parts = [" ".join(filter(None, (at.baseline, version_text(row)))), at.recipe, at.model or at.size]
    return " · ".join([*parts, at.task] if at.task != "pretrain" else parts)


def _result(spot: PlacedRow, metrics: Sequence[Metric], ranges: Ranges) -> str:
    row = spot.row
    against = "" if row.reference == "baseline" else f' <span class="kind">against {in_html(row.reference)}</span>'
    name = f"{markup.link(spot.identity, in_html(_where(row)))}{markup.unverified(unverified_text(row))}{against}"
    cells = [value_cell(metric, row.value(metric.name), ranges.widths[metric.name]) for metric in metrics]
    return f"<tr>{markup.row_head(_where(row), name)}{''.join(cells)}</tr>"


CURVES_LEGEND = (
    '<p class="legend"><span class="reference">╌╌</span> reference, <span class="technique">━━</span> technique: '
    "validation loss, the mean over seeds; each seed is a thin line. All plots of a board have one range.</p>"
)
COST_LEGEND = (
    '<p class="legend"><span class="reference">━━</span> the reference, fully trained at several budgets. ● what the '
    "technique's final loss is worth on that curve, with its interval; ○ the time that it took, set-up included. "
    "○ left of ●: sooner than the reference.</p>"
)


def _plots(placed: Sequence[PlacedRow], ranges: Ranges) -> str:
    """Draws learning curves and cost against quality, a figure for each board."""
    alive = [spot for spot in placed if not spot.row.failed]
    learned: list[str] = []
    costs: list[str] = []
    for spot in alive:
        quality = ranges.qualities.get(spot.row.conditions.baseline, "")
        where = _where(spot.row) + (f" · {quality}" if quality else "")
        for drawn, into in (
            (curves(spot.row, ranges.curves[spot.anchor]), learned),
            (cost_and_quality(spot.row, ranges.costs[spot.anchor]), costs),
        ):
            if drawn:
                into.append(f"<figure>{drawn.svg()}<figcaption>{in_html(where)}</figcaption></figure>")
    titled = (("Learning curves", CURVES_LEGEND, learned), ("Cost against quality", COST_LEGEND, costs))
    return "".join(
        f'<h4>{title}</h4><div class="grid">{"".join(figures)}</div>{legend}'
        for title, legend, figures in titled
        if figures
    )


# whether its claims could have failed ---------------------------------------------------------------------------------


def _mutants(names: Sequence[str], folders: Mapping[str, Folder]) -> str:
    """Says how the claims are put to the test."""
    if len(names) != 1 or not (folder := folders.get(names[0])) or not folder.mutants:
        return ""
    return (
        f"<p><b>Mutants.</b> {len(folder.mutants)} broken variants are written beside it, and each method that it "
        f"overrides is taken away: a claim must notice every one, or the tests fail. "
        f"<code>leantrain claims {in_html(names[0])} --mutants</code> tries them.</p>"
        f"{markup.folded('The broken variants', f'<ul>{markup.items(map(in_html, folder.mutants))}</ul>')}"
    )


# how to use it ------------------------------------------------------------------------------------------------------


def _usage(stack: str, placed: Sequence[PlacedRow], cards: Sequence[Card], folders: Mapping[str, Folder]) -> str:
    """Shows commands, a stack, one's own loop, citations."""
    baseline = placed[0].row.conditions.baseline
    commands = [f"leantrain compare {stack} -b {baseline}"]
    if len(Spelling(stack).names) == 1:
        other = "OTHER" if stack != "OTHER" else "ANOTHER"
        commands += [
            f"leantrain stack {stack}+{other} -b {baseline}     # does it still help together with another one?",
            f"leantrain count -t {stack} -b {baseline}     # bytes and FLOPs at the paper's size, in seconds",
            f"leantrain claims {stack}",
        ]
    parts = [f'<pre tabindex="0"><code>{in_html(chr(10).join(commands))}</code></pre>']
    imports = [
        f"from {folder.module} import {', '.join(folder.names)}"
        for name in Spelling(stack).names
        if (folder := folders.get(name)) and folder.names
    ]
    if imports:
        own = "\n".join(imports)
        parts.append(f'<p>In your own loop:</p><pre tabindex="0"><code>{in_html(own)}</code></pre>')
    if cards:
        cited = "\n\n".join(map(bibtex, cards))
        parts.append(markup.folded("BibTeX", f'<pre tabindex="0"><code>{in_html(cited)}</code></pre>'))
    return f"<h4>How to use it</h4>{''.join(parts)}"


# the evidence -------------------------------------------------------------------------------------------------------


def _records(placed: Sequence[PlacedRow], origins: Mapping[str, Origin]) -> str:
    """Says where the numbers come from: a line for what one machine counted, learned or timed of one stack."""
    groups: dict[tuple[str, ...], list[tuple[str, Origin]]] = {}
    for spot in placed:
        for id in dict.fromkeys(spot.row.records):
            if origin := origins.get(id):
                changed = "changed since" if origin.kind in spot.row.unverified else "as installed"
                state = of_version(spot.row) or changed
                key = (_where(spot.row), origin.kind, origin.stack, origin.machine, state)
                groups.setdefault(key, []).append((id, origin))
    if not groups:
        return ""
    lines = []
    for (where, kind, stack, machine, state), of in groups.items():
        dates = sorted({origin.started[:10] for _, origin in of})
        commits = sorted({origin.commit[:8] for _, origin in of if origin.commit})
        ids = " ".join(id[:SHORT_ID] for id, _ in of)
        words = (
            kind,
            stack,
            machine,
            " to ".join(dict.fromkeys((dates[0], dates[-1]))),
            ", ".join(commits),
            state,
            ids,
        )
        cells = "".join(markup.cell(word, kind="words") for word in words)
        lines.append(f"<tr>{markup.row_head(where, in_html(where))}{cells}</tr>")
    titles = ("board", "evidence", "of", "machine", "date", "commit", "code", "records, for leantrain repro")
    anchor = f"{placed[0].technique}--records"
    caption = f"Records of {placed[0].row.stack}"
    drawn = markup.table(anchor, caption, markup.head(titles), "\n" + "\n".join(lines) + "\n", "records")
    return markup.folded(f"Records: {sum(map(len, groups.values()))}", drawn)
