"""Draws each technique's own section: what it is, what was seen, what it cost, its paper's claims, how it is used.

A section is folded, and packed, until a link leads to it. Its plots of one board share their ranges with all others of
that board.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from markupsafe import Markup

from suite.entries.card import Card
from suite.judge.metrics import METRICS, Metric
from suite.judge.rows import Row, of_version
from suite.record.job import Spelling
from suite.show.bibtex import bibtex
from suite.show.packing import Pack
from suite.show.pages.board import failure_lines, remarks, shown_interval, unverified_text, version_text
from suite.show.pages.cells import value_cell
from suite.show.pages.markup import fragments
from suite.show.pages.places import PlacedRow, categories, kinds
from suite.show.pictures.charts import CostFrame, CurveFrame, cost_and_quality, curves, span
from suite.show.pictures.drawing import definitions
from suite.topics.board.contents import on_page
from suite.topics.board.drawn import macros
from suite.topics.board.goals import GoalCell, GoalLine, GoalTable, change
from suite.topics.board.report import Folder, Origin, Report
from suite.topics.board.terms import meaning
from suite.topics.on_board import Draws, OnPage

DRAWN = macros("technique")
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


def techniques(
    report: Report, placed: Sequence[PlacedRow], tables: Sequence[GoalTable], linked: Collection[str], pack: Pack
) -> Markup:
    """Draw a section for each stack, packed behind its summary. ``tables``: the goals', whose lines say the verdicts;
    ``linked``: the rows that stand on a board of the page."""
    by_stack: dict[str, list[PlacedRow]] = {}
    for spot in placed:
        by_stack.setdefault(spot.row.stack, []).append(spot)
    ranges = Ranges.of(placed, report.qualities)
    lines = {line.stack: (table, line) for table in tables for line in table.lines}
    in_order = sorted((*_own_parts(ranges, linked), *on_page()), key=lambda part: part.order)
    draws = [(part.title, part.of(report)) for part in in_order]
    parts = [
        pack.fold(_technique(stack, by_stack[stack], lines.get(stack), report.cards, draws))
        for stack in sorted(by_stack)
    ]
    return DRAWN.techniques(ranges.definitions, parts)


def _own_parts(ranges: Ranges, linked: Collection[str]) -> tuple[OnPage, ...]:
    """Returns the parts that are no topic's."""

    def usage(report: Report) -> Draws:
        return lambda stack, placed: _usage(stack, placed, _known(stack, report.cards), report.folders)

    return (
        OnPage(10, lambda report: lambda stack, placed: Markup().join(map(_about, _known(stack, report.cards))), CARD),
        OnPage(30, lambda report: lambda stack, placed: _results(_today(placed), ranges, linked)),
        OnPage(40, lambda report: lambda stack, placed: _plots(_today(placed), ranges), "Plots"),
        OnPage(80, lambda report: lambda stack, placed: _mutants(Spelling(stack).names, report.folders), "Mutants"),
        OnPage(110, usage, "More ways to use it"),
        OnPage(115, lambda report: lambda stack, placed: _results(_former(placed), ranges, linked), "History"),
        OnPage(120, lambda report: lambda stack, placed: _records(placed, report.origins)),
    )


PEAK, SIZE = "peak_tensor_bytes", "paper's size"
CARD = "What it is: paper, variant, limitations"


def _today(placed: Sequence[PlacedRow]) -> list[PlacedRow]:
    return [spot for spot in placed if not spot.row.newer_version]


def _former(placed: Sequence[PlacedRow]) -> list[PlacedRow]:
    """Returns the rows of older versions of their baselines."""
    return [spot for spot in placed if spot.row.newer_version]


def _known(stack: str, cards: Mapping[str, Card]) -> list[Card]:
    """Returns the cards of the stack's techniques that are installed."""
    return [cards[name] for name in Spelling(stack).names if name in cards]


def _technique(
    stack: str,
    placed: Sequence[PlacedRow],
    found: tuple[GoalTable, GoalLine] | None,
    cards: Mapping[str, Card],
    draws: Sequence[tuple[str, Draws]],
) -> Markup:
    known = _known(stack, cards)
    about = " · ".join(filter(None, (", ".join(card.name for card in known), *categories(stack, cards))))
    values = {"name": stack, "category": kinds(stack, cards)}
    parts = [
        fragments.folded(title, drawn) if title else drawn
        for title, drawn in ((title, draw(stack, placed)) for title, draw in draws)
        if drawn
    ]
    said = str(found[1].verdict) if found else ""
    return DRAWN.technique(
        placed[0].technique, values, stack, about, said, [_opening(stack, placed, found, known), *parts]
    )


def _opening(
    stack: str, placed: Sequence[PlacedRow], found: tuple[GoalTable, GoalLine] | None, cards: Sequence[Card]
) -> Markup:
    """Draws what stands first: what it does and when to take it, its numbers, the lines that apply it, its latest
    evidence."""
    numbers, when = [], ""
    if found:
        table, line = found
        shown = (line.saves, line.step, line.quality, line.others, line.works)
        numbers = [
            (head, cell, meaning(head)) for head, cell in zip(table.heads[1:], shown, strict=False) if cell.words
        ]
        peak = line.at.ratio(PEAK) if line.at else None
        if peak and table.goal.counted != PEAK:
            numbers.insert(0, (f"peak memory, {SIZE}", GoalCell(change(peak), form="exact"), meaning(SIZE)))
        when = f"For {table.goal.title.lower()}: {line.verdict}."
    refused = next((card.own_loop for card in cards if card.own_loop), "")
    lines = [] if refused or not cards else applied(stack)
    beside = [f"leantrain stack {stack}+OTHER -b {placed[0].row.conditions.baseline}"] if len(cards) == 1 else []
    apart = "Beside another technique (what it excludes is refused in a sentence):" if beside else ""
    newest = max(spot.row.newest for spot in placed)[:10]
    return DRAWN.opening([card.summary for card in cards], when, numbers, lines, refused, newest, apart, beside)


def applied(stack: str) -> list[str]:
    """Writes the lines that train a model of the reader's with the stack."""
    return [
        "import leantrain",
        f'model, optimizer, context = leantrain.apply(model, "{stack}", batch=batch, learning_rate=1e-4)',
        "loss = context.update(batch)  # one training step; call it for every batch",
    ]


# the card -----------------------------------------------------------------------------------------------------------


def _about(card: Card) -> Markup:
    paper = card.paper
    source = f"{paper.authors}: {paper.title}. {paper.venue}{f', arXiv {paper.arxiv}' if paper.arxiv else ''}."
    words_of = [
        ("Variant", card.variant),
        ("Limitations", card.limitations),
        ("Counter-evidence", card.counter_evidence),
    ]
    return DRAWN.about(source, [(title, words.strip()) for title, words in words_of if words.strip()])


# what was seen ------------------------------------------------------------------------------------------------------


def _results(placed: Sequence[PlacedRow], ranges: Ranges, linked: Collection[str]) -> Markup:
    """Draws a line for each board; what failed, and what the numbers do not say, below."""
    if not placed:
        return Markup()
    alive = [spot for spot in placed if not spot.row.failed]
    metrics = [metric for metric in SHOWN if any(spot.row.value(metric.name).kind != "unavailable" for spot in alive)]
    heads = fragments.head(["board", *(f"{metric.heading}\xa0{metric.arrow}" for metric in metrics)])
    lines = [_result(spot, metrics, ranges, spot.identity in linked) for spot in alive]
    when = "history" if placed[0].row.newer_version else "results"
    anchor, caption = f"{placed[0].technique}--{when}", f"{when.capitalize()} of {placed[0].row.stack}"
    table = fragments.table(anchor, caption, heads, lines) if alive else Markup()
    said = [
        (spot.identity if spot.identity in linked else "", _where(spot.row), sentences)
        for spot in placed
        if (sentences := failure_lines(spot.row) if spot.row.failed else remarks(spot.row, metrics))
    ]
    return table + (DRAWN.notes(said) if said else "")


def _where(row: Row) -> str:
    at = row.conditions
    parts = [" ".join(filter(None, (at.baseline, version_text(row)))), at.recipe, at.model or at.size]
    return " · ".join([*parts, at.task] if at.task != "pretrain" else parts)


def _result(spot: PlacedRow, metrics: Sequence[Metric], ranges: Ranges, is_linked: bool) -> Markup:
    row, against = spot.row, "" if spot.row.reference == "baseline" else spot.row.reference
    anchor = spot.identity if is_linked else ""
    name = DRAWN.where(anchor, _where(row), unverified_text(row), against)
    cells = [value_cell(metric, row.value(metric.name), ranges.widths[metric.name]) for metric in metrics]
    return fragments.row([fragments.row_head(_where(row), name), *cells])


def _plots(placed: Sequence[PlacedRow], ranges: Ranges) -> Markup:
    """Draws learning curves and cost against quality, a figure for each board."""
    alive = [spot for spot in placed if not spot.row.failed]
    learned: list[tuple[str, str]] = []
    costs: list[tuple[str, str]] = []
    for spot in alive:
        quality = ranges.qualities.get(spot.row.conditions.baseline, "")
        where = _where(spot.row) + (f" · {quality}" if quality else "")
        for drawn, into in (
            (curves(spot.row, ranges.curves[spot.anchor]), learned),
            (cost_and_quality(spot.row, ranges.costs[spot.anchor]), costs),
        ):
            if drawn:
                into.append((drawn.svg(), where))
    titled = (
        ("Learning curves", learned, DRAWN.curves_legend()),
        ("Cost against quality", costs, DRAWN.cost_legend()),
    )
    return Markup().join(DRAWN.plots(*each) for each in titled if each[1])


# whether its claims could have failed ---------------------------------------------------------------------------------


def _mutants(names: Sequence[str], folders: Mapping[str, Folder]) -> Markup:
    """Says how the claims are put to the test."""
    if len(names) != 1 or not (folder := folders.get(names[0])) or not folder.mutants:
        return Markup()
    return DRAWN.mutants(names[0], folder.mutants)


# how to use it ------------------------------------------------------------------------------------------------------


def _usage(stack: str, placed: Sequence[PlacedRow], cards: Sequence[Card], folders: Mapping[str, Folder]) -> Markup:
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
    imports = [
        f"from {folder.module} import {', '.join(folder.names)}"
        for name in Spelling(stack).names
        if (folder := folders.get(name)) and folder.names
    ]
    return DRAWN.usage(commands, imports, "\n\n".join(map(bibtex, cards)).splitlines())


# the evidence -------------------------------------------------------------------------------------------------------


def _records(placed: Sequence[PlacedRow], origins: Mapping[str, Origin]) -> Markup:
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
        return Markup()
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
        cells = (fragments.cell(word, kind="words") for word in words)
        lines.append(fragments.row([fragments.row_head(where, where), *cells]))
    titles = ("board", "evidence", "of", "machine", "date", "commit", "code", "records, for leantrain repro")
    anchor = f"{placed[0].technique}--records"
    caption = f"Records of {placed[0].row.stack}"
    drawn = fragments.table(anchor, caption, fragments.head(titles), lines, "records")
    return fragments.folded(f"Records: {sum(map(len, groups.values()))}", drawn)
