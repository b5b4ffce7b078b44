"""Shows what studies found, on the boards: each with its plot and its tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from suite.entries.card import Card
from suite.judge.study_tables import Study, StudyTable
from suite.record.job import Spelling
from suite.show.described import Article, Figure, Folded, PageTable, Paragraph, Part, Section, TableCell, TableRow, slug
from suite.show.pages.board import how_many
from suite.show.pages.markup import fragments, free_anchor
from suite.show.pages.places import PlacedRow, kinds
from suite.topics.on_board import OnBoard
from suite.topics.studies import study_plots
from suite.topics.studies.study_plots import MOST_ROWS

READING = (
    "Questions over many runs. Their tables and plots are as the study made them; † unverified: code changed since."
)
SHORT = 12  # rows that text shows of a table, or none
CHANGED = "Unverified: the code changed since"


@dataclass(frozen=True)
class Studied:
    """Holds a study, and whether the code that made it has changed since. ``plot``: the drawing that was kept of it, an
    SVG file; empty where there is none."""

    study: Study
    unverified: bool = False
    plot: bytes = b""

    @property
    def baseline(self) -> str:
        return self.study.baseline


@dataclass(frozen=True)
class PlacedStudy:
    """Describes a study on a page. ``title`` has the card's name, the id where none is installed; ``technique`` is the
    anchor of the technique's own section, empty where the page has none."""

    study: Study
    title: str
    unverified: bool
    anchor: str
    technique: str
    plot: bytes = b""

    @property
    def subtitle(self) -> str:
        """Says where and when, and whether the code changed since."""
        origin = f"Machine {self.study.machine.name}; {self.study.made:%Y-%m-%d}; {how_many(self.study.seeds)} at most."
        return f"{origin} {CHANGED}." if self.unverified else origin

    @property
    def tables(self) -> list[StudyTable]:
        return [table for table in self.study.tables if table.rows]


def placed_studies(
    studies: Sequence[Studied], cards: Mapping[str, Card], rows: Sequence[PlacedRow] = ()
) -> list[PlacedStudy]:
    """Place the studies, in order, on a page that has the rows ``rows``."""
    taken = {name for row in rows for name in (row.anchor, row.identity, row.technique)}
    sections: dict[str, PlacedRow] = {}
    for row in sorted(rows, key=lambda row: len(row.row.stack), reverse=True):
        sections |= dict.fromkeys(Spelling(row.row.stack).names, row)  # the shortest stack is the technique alone
    placed = []
    for studied in sorted(
        studies, key=lambda study: (*_title(study.study), study.study.machine.name, str(study.study.made))
    ):
        study = studied.study
        name = cards[study.technique].name if study.technique in cards else study.technique
        section = sections.get(study.technique)
        placed.append(
            PlacedStudy(
                study,
                " · ".join((name, *_title(study)[1:])),
                studied.unverified,
                free_anchor(f"study-{slug(' '.join((*_title(study), study.machine.key[:4])))}", taken),
                section.technique if section else "",
                studied.plot,
            )
        )
    return placed


def _title(study: Study) -> tuple[str, ...]:
    return study.technique, study.baseline, study.recipe, study.size


def section(placed: Sequence[PlacedStudy], cards: Mapping[str, Card], most_in_text: int = SHORT) -> Section | None:
    """Shows for each study where it was made, its plot and its tables, in text those of at most ``most_in_text`` rows;
    None where there are no studies."""
    parts = [_article(spot, cards, most_in_text) for spot in placed]
    return Section("studies", "Studies", READING, parts) if parts else None


def _article(placed: PlacedStudy, cards: Mapping[str, Card], most_in_text: int) -> Article:
    study = placed.study
    filtered = {
        "name": study.technique,
        "category": kinds(study.technique, cards),
        "baseline": study.baseline,
        "recipe": study.recipe,
        "size": study.size,
        "machine": study.machine.name,
    }
    tables = [
        _table(f"{placed.anchor}--{n}", placed.title, table, most_in_text) for n, table in enumerate(placed.tables)
    ]
    parts = [*plot_of(placed), Folded("Tables", tables)]
    dated = CHANGED if placed.unverified else ""
    return Article(placed.anchor, placed.title, placed.subtitle, parts, filtered, placed.technique, dated)


def mark(placed: PlacedStudy) -> Markup:
    return fragments.unverified(CHANGED if placed.unverified else "")


def _table(anchor: str, study: str, table: StudyTable, most_in_text: int) -> PageTable:
    lines = [
        TableRow([TableCell(text, "" if cell is None else cell) for cell, text in zip(row, texts, strict=True)])
        for row, texts in zip(table.rows, table.as_text(), strict=True)
    ]
    return PageTable(
        anchor,
        f"{study}: {table.name}. {table.note}",  # the name of a region, of which a page has no two alike
        [TableCell(name, code=True) for name in table.columns],
        lines,
        align="r",
        kind="found",
        label=(table.name, table.note),
        most=MOST_ROWS,
        most_in_text=most_in_text,
    )


# the plot -----------------------------------------------------------------------------------------------------------


def plot_of(placed: PlacedStudy) -> list[Part]:
    """Returns the figure, a sentence where it cannot be drawn, nothing where the study has none."""
    try:
        drawn = study_plots.element(placed.study, placed.anchor, f"Plot of {placed.title}", placed.plot)
    except Exception as error:  # whatever a module, which may be newer than the tables, does with them
        return [Paragraph(f"No plot: {str(error) or type(error).__name__}", in_text=False)]
    return [Figure(drawn, placed.title)] if drawn else []


ON_BOARD = OnBoard(
    20, lambda report: section(placed_studies(report.studies, report.cards, report.placed), report.cards)
)
