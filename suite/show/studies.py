"""What studies found, on the boards: each with its own module's plot, drawn when the page is made, and its tables."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from io import BytesIO
from xml.etree import ElementTree

from suite.contract.card import Card
from suite.contract.catalogue import catalogue
from suite.measure.lab import Cell, Table
from suite.measure.study import Study, study_of
from suite.record.files import printable
from suite.record.job import techniques_of
from suite.show.board import count_text
from suite.show.overview import Place, categories, free, slug
from suite.show.stacks import scrolled

READING = "Questions over many runs. Their tables and plots are as the study made them; † stale: code changed since."
MOST_ROWS = 500  # of a table, on the page; a study with longer ones is not drawn either


Studied = tuple[Study, tuple[str, ...]]  # and what changed since


@dataclass(frozen=True)
class Shown:
    """A study on a page, with what changed since. ``title`` has the card's name, the id where none is installed;
    ``technique`` is the anchor of the technique's own section, empty where the page has none."""

    study: Study
    title: str
    stale: tuple[str, ...]
    anchor: str
    technique: str

    @property
    def subtitle(self) -> str:
        """Where and when, and what changed since."""
        made = f"Machine {self.study.machine.name}; {self.study.made:%Y-%m-%d}; {count_text(self.study.seeds)} at most."
        return f"{made} Stale: {', '.join(self.stale)}." if self.stale else made

    @property
    def tables(self) -> list[Table]:
        return [table for table in self.study.tables if table.rows]


def placed(studied: Sequence[Studied], cards: Mapping[str, Card], found: Sequence[Place] = ()) -> list[Shown]:
    """The studies in the order of a page whose rows stand at ``found``."""
    taken = {name for place in found for name in (place.anchor, place.identity, place.technique)}
    sections: dict[str, Place] = {}
    for place in sorted(found, key=lambda place: len(place.row.stack), reverse=True):
        sections |= dict.fromkeys(techniques_of(place.row.stack), place)  # the shortest stack is the technique alone
    shown = []
    for study, stale in sorted(studied, key=lambda each: (*_title(each[0]), each[0].machine.name, str(each[0].made))):
        name = cards[study.technique].name if study.technique in cards else study.technique
        section = sections.get(study.technique)
        shown.append(
            Shown(
                study,
                " · ".join((name, *_title(study)[1:])),
                stale,
                free(f"study-{slug(' '.join((*_title(study), study.machine.key[:4])))}", taken),
                section.technique if section else "",
            )
        )
    return shown


def _title(study: Study) -> tuple[str, ...]:
    return study.technique, study.baseline, study.recipe, study.size


def links(shown: Sequence[Shown]) -> dict[str, str]:
    """Technique id -> links to its studies."""
    found: dict[str, list[str]] = {}
    for each in shown:
        mark = "†" if each.stale else ""
        found.setdefault(each.study.technique, []).append(f'<a href="#{each.anchor}">{escape(each.title)}</a>{mark}')
    return {id: ", ".join(markup) for id, markup in found.items()}


def html(shown: Sequence[Shown], cards: Mapping[str, Card]) -> str:
    """One section; nothing when there are no studies."""
    if not shown:
        return ""
    parts = "\n".join(_html_of(each, cards) for each in shown)
    return f'<section id="studies"><h2>Studies</h2><p>{escape(READING)}</p>\n{parts}\n</section>'


def _html_of(shown: Shown, cards: Mapping[str, Card]) -> str:
    study, title = shown.study, escape(shown.title)
    values = {
        "name": study.technique, "category": " ".join(categories(study.technique, cards)), "baseline": study.baseline,
        "recipe": study.recipe, "size": study.size, "machine": study.machine.name,
    }  # fmt: skip
    data = "".join(f' data-{name}="{escape(value)}"' for name, value in values.items())
    mark = '<abbr title="stale">†</abbr>' if shown.stale else ""
    tables = "".join(_table(f"{shown.anchor}--{number}", table) for number, table in enumerate(shown.tables))
    return (
        f'<article id="{shown.anchor}"{data}{" data-stale" if shown.stale else ""}><h3>'
        + (f'<a href="#{shown.technique}">{title}</a>' if shown.technique else title)
        + f"{mark}</h3><p>{escape(shown.subtitle)}</p>{_plot(shown)}"
        f"<details><summary>Tables</summary>{tables}</details></article>"
    )


def _table(anchor: str, table: Table) -> str:
    caption = f"{table.name}. {table.note}"
    if len(table.rows) > MOST_ROWS:
        caption += f" The first {MOST_ROWS} of {len(table.rows)} rows; all are in the study's file beside the records."
    titles = "".join(f'<th scope="col"><button type="button">{escape(name)}</button></th>' for name in table.columns)
    body = "\n".join(
        f"<tr>{''.join(map(_cell, row, words))}</tr>"
        for row, words in zip(table.rows[:MOST_ROWS], table.as_text(), strict=False)
    )
    return scrolled(anchor, caption, titles, body, "found")


def _cell(cell: Cell, words: str) -> str:
    return f'<td data-sort="{"" if cell is None else escape(str(cell))}">{escape(words)}</td>'


# the plot -----------------------------------------------------------------------------------------------------------


def _plot(shown: Shown) -> str:
    """The figure, a sentence where it cannot be drawn, nothing where the study has none."""
    try:
        drawn = drawing(shown.study, shown.anchor, f"Plot of {shown.title}")
    except Exception as error:  # whatever a module, which may be newer than the tables, does with them
        return f"<p>No plot: {escape(printable(str(error) or type(error).__name__))}</p>"
    return f"<figure>{drawn}</figure>" if drawn else ""


def drawing(study: Study, anchor: str, label: str) -> str:
    """The plot as an SVG element with ids of its own, in the page's colours. Empty where the module draws none.

    Raises ValueError for a technique that is not installed and for what does not belong on the page, and whatever the
    module raises.
    """
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
        value = re.sub("|".join(PAPER), lambda found: PAPER[found[0]], value)
    return re.sub(r"url\(#", f"url(#{anchor}--", value)
