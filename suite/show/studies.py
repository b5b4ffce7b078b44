"""What studies found, on the boards: each with its own module's plot, drawn when the page is made, and its tables."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from suite.contract.card import Card
from suite.contract.catalogue import catalogue
from suite.record.job import techniques_of
from suite.record.text import in_html
from suite.show import markup
from suite.show.board import how_many
from suite.show.overview import PlacedRow, kinds

if TYPE_CHECKING:
    from suite.measure.lab import Cell, Table
    from suite.measure.study import Study

READING = (
    "Questions over many runs. Their tables and plots are as the study made them; † unverified: code changed since."
)
CHANGED = "Unverified: the code changed since"
MOST_ROWS = 500  # of a table, on the page; a study with longer ones is not drawn either


@dataclass(frozen=True)
class Studied:
    """A study, and whether the code that made it has changed since."""

    study: Study
    unverified: bool = False

    @property
    def baseline(self) -> str:
        return self.study.baseline


@dataclass(frozen=True)
class PlacedStudy:
    """A study on a page. ``title`` has the card's name, the id where none is installed;
    ``technique`` is the anchor of the technique's own section, empty where the page has none."""

    study: Study
    title: str
    unverified: bool
    anchor: str
    technique: str

    @property
    def subtitle(self) -> str:
        """Where and when, and whether the code changed since."""
        origin = f"Machine {self.study.machine.name}; {self.study.made:%Y-%m-%d}; {how_many(self.study.seeds)} at most."
        return f"{origin} {CHANGED}." if self.unverified else origin

    @property
    def tables(self) -> list[Table]:
        return [table for table in self.study.tables if table.rows]


def placed_studies(
    studies: Sequence[Studied], cards: Mapping[str, Card], rows: Sequence[PlacedRow] = ()
) -> list[PlacedStudy]:
    """Place the studies, in order, on a page that has the rows ``rows``."""
    taken = {name for row in rows for name in (row.anchor, row.identity, row.technique)}
    sections: dict[str, PlacedRow] = {}
    for row in sorted(rows, key=lambda row: len(row.row.stack), reverse=True):
        sections |= dict.fromkeys(techniques_of(row.row.stack), row)  # the shortest stack is the technique alone
    placed = []
    for each in sorted(studies, key=lambda each: (*_title(each.study), each.study.machine.name, str(each.study.made))):
        study = each.study
        name = cards[study.technique].name if study.technique in cards else study.technique
        section = sections.get(study.technique)
        placed.append(
            PlacedStudy(
                study,
                " · ".join((name, *_title(study)[1:])),
                each.unverified,
                markup.free_anchor(f"study-{markup.slug(' '.join((*_title(study), study.machine.key[:4])))}", taken),
                section.technique if section else "",
            )
        )
    return placed


def _title(study: Study) -> tuple[str, ...]:
    return study.technique, study.baseline, study.recipe, study.size


def links(placed: Sequence[PlacedStudy]) -> dict[str, str]:
    """Links to the studies by technique id."""
    by_technique: dict[str, list[str]] = {}
    for each in placed:
        link = f"{markup.link(each.anchor, in_html(each.title))}{_mark(each)}"
        by_technique.setdefault(each.study.technique, []).append(link)
    return {id: ", ".join(links) for id, links in by_technique.items()}


def html(placed: Sequence[PlacedStudy], cards: Mapping[str, Card]) -> str:
    """Draw the section; nothing where there are no studies."""
    if not placed:
        return ""
    parts = "\n".join(_html_of(each, cards) for each in placed)
    return markup.folded_section("studies", "Studies", READING, f"\n{parts}\n")


def _html_of(placed: PlacedStudy, cards: Mapping[str, Card]) -> str:
    study, title = placed.study, in_html(placed.title)
    filtered = markup.data(
        name=study.technique, category=kinds(study.technique, cards), baseline=study.baseline, recipe=study.recipe,
        size=study.size, machine=study.machine.name,
    )  # fmt: skip
    tables = "".join(_table(f"{placed.anchor}--{n}", placed.title, table) for n, table in enumerate(placed.tables))
    return (
        f'<article id="{placed.anchor}"{filtered}{" data-unverified" if placed.unverified else ""}><h3>'
        + (markup.link(placed.technique, title) if placed.technique else title)
        + f"{_mark(placed)}</h3><p>{in_html(placed.subtitle)}</p>{_plot(placed)}"
        f"{markup.folded('Tables', tables)}</article>"
    )


def _mark(placed: PlacedStudy) -> str:
    return markup.unverified(CHANGED if placed.unverified else "")


def _table(anchor: str, study: str, table: Table) -> str:
    caption = f"{study}: {table.name}. {table.note}"  # the name of a region, of which a page has no two alike
    if len(table.rows) > MOST_ROWS:
        caption += f" The first {MOST_ROWS} of {len(table.rows)} rows; all are in the study's file beside the records."
    body = "\n".join(
        f"<tr>{''.join(map(_cell, row, words))}</tr>"
        for row, words in zip(table.rows[:MOST_ROWS], table.as_text(), strict=False)
    )
    return markup.table(anchor, caption, markup.head(table.columns), body, "found")


def _cell(cell: Cell, words: str) -> str:
    return markup.cell(words, "" if cell is None else cell)


# the plot -----------------------------------------------------------------------------------------------------------


def _plot(placed: PlacedStudy) -> str:
    """The figure, a sentence where it cannot be drawn, nothing where the study has none."""
    try:
        drawn = drawing(placed.study, placed.anchor, f"Plot of {placed.title}")
    except Exception as error:  # whatever a module, which may be newer than the tables, does with them
        return f"<p>No plot: {in_html(str(error) or type(error).__name__)}</p>"
    return f"<figure>{drawn}</figure>" if drawn else ""


def drawing(study: Study, anchor: str, label: str) -> str:
    """The plot as an SVG element with ids of its own, in the page's colours. Empty where the module draws none.

    Raises ValueError for a technique that is not installed and for what does not belong on the page, and whatever the
    module raises.
    """
    from suite.measure.study import study_of  # a study's module loads torch, which a page without plots does not need

    if study.technique not in catalogue():
        raise ValueError(f"{study.technique} is not installed")
    module = study_of(catalogue()[study.technique])
    if not hasattr(module, "plot"):
        return ""
    if any(len(table.rows) > MOST_ROWS for table in study.tables):
        raise ValueError(f"a table has more than {MOST_ROWS} rows")
    import matplotlib

    svg = BytesIO()
    with (
        matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": anchor, "text.usetex": False}),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")  # of axes without data
        module.plot(study.tables).savefig(svg, format="svg", facecolor="none", metadata={"Date": None})
    return inline(svg.getvalue(), anchor, label)


PAPER = {"#000000": "currentColor", "#ffffff": "var(--page)"}  # what matplotlib's colours are on this page


def inline(svg: bytes, anchor: str, label: str) -> str:
    """Matplotlib's SVG file as an element of a page. Raises ValueError where it refers to anything outside of it."""
    root = ElementTree.fromstring(svg)
    for parent in root.iter():
        parent.tag = _local(parent.tag)
        parent[:] = [child for child in parent if _local(child.tag) not in ("metadata", "style")]
        parent.attrib = {_local(name): _ours(_local(name), value, anchor) for name, value in parent.attrib.items()}
    width = float(root.attrib["viewBox"].split()[2])
    root.attrib = {
        "class": "study", "role": "img", "aria-label": label, "viewBox": root.attrib["viewBox"], "width": f"{width}pt",
    }  # fmt: skip
    return ElementTree.tostring(root, "unicode")


def _local(name: str) -> str:
    return name.rpartition("}")[2]


def _ours(name: str, value: str, anchor: str) -> str:
    """An attribute's value with ids that no other figure has and colours that a dark page can show."""
    if name == "id":
        return f"{anchor}--{value}"
    if name == "href" and not value.startswith("#"):
        raise ValueError("it has an image or a link, which this page does not")
    if name == "href":
        return f"#{anchor}--{value[1:]}"
    if name in ("style", "fill", "stroke"):
        value = re.sub("|".join(PAPER), lambda match: PAPER[match[0]], value)
    return re.sub(r"url\(#", f"url(#{anchor}--", value)
