"""Writes the repeated fragments of the page: tables that scroll, cells that sort, attributes by which the script
filters.

Parameters called ``markup`` are HTML already; all other text is escaped here.
"""

from __future__ import annotations

from collections.abc import Container, Iterable

from suite.record.text import in_html


def unverified(what: str) -> str:
    """Writes the mark of evidence whose code changed, which a pointer explains; nothing where ``what`` is empty."""
    return f'<abbr title="{in_html(what)}">†</abbr>' if what else ""


def free_anchor(name: str, taken: set[str]) -> str:
    """Returns the name, numbered where it is taken; adds it to ``taken``."""
    number = 1
    while (anchor := name if number == 1 else f"{name}-{number}") in taken:
        number += 1
    taken.add(anchor)
    return anchor


def data(**values: str) -> str:
    """Writes attributes by which the script filters: ``data-name="lion"``."""
    return "".join(f' data-{name}="{in_html(value)}"' for name, value in values.items())


def code(name: str) -> str:
    return f"<code>{in_html(name)}</code>"


def link(anchor: str, markup: str) -> str:
    return f'<a href="#{anchor}">{markup}</a>'


def items(markup: Iterable[str]) -> str:
    return "".join(f"<li>{item}</li>" for item in markup)


def folded(title: str, markup: str) -> str:
    """Puts content behind its title, opened by a click."""
    return f"<details><summary>{title}</summary>{markup}</details>"


def folded_section(anchor: str, title: str, introduction: str, markup: str) -> str:
    """Writes a section of the page: its heading and a sentence stand, the rest is opened by a click."""
    return (
        f'<section id="{anchor}"><h2>{in_html(title)}</h2><p>{in_html(introduction)}</p>'
        f"{folded('Show', markup)}</section>"
    )


# tables -------------------------------------------------------------------------------------------------------------


def table(anchor: str, caption: str, head_markup: str, body_markup: str, kind: str = "") -> str:
    """Writes a table that scrolls sideways; ``head_markup`` are the cells of its head, ``kind`` its class."""
    kind = f' class="{kind}"' if kind else ""
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-labelledby="{anchor}"><table{kind}>'
        f'<caption id="{anchor}">{in_html(caption)}</caption><thead><tr>{head_markup}</tr></thead>'
        f"<tbody>{body_markup}</tbody></table></div>"
    )


def head(titles: Iterable[str], sorted_by: int | None = None, descending: Container[int] = ()) -> str:
    """Writes cells of a head that the script sorts by; the table is sorted by that of position ``sorted_by``. In the
    columns at the positions ``descending`` the largest is the best, which the first click puts first."""
    return "".join(
        f'<th scope="col"{ascending(position == sorted_by)}{" data-largest" if position in descending else ""}>'
        f'<button type="button">{in_html(title)}</button></th>'
        for position, title in enumerate(titles)
    )


def ascending(is_so: bool) -> str:
    return ' aria-sort="ascending"' if is_so else ""


def cell(words: str, sort: object = None, kind: str = "", title: str = "") -> str:
    """Writes a cell of text, sorted by ``sort``, by its words where that is None."""
    return cell_of(in_html(words), None if sort is None or str(sort) == words else sort, kind, title)


def cell_of(markup: str, sort: object, kind: str = "", title: str = "") -> str:
    """Writes a cell of markup, sorted by ``sort``, by what it shows where that is None."""
    sort = "" if sort is None else f' data-sort="{in_html(str(sort))}"'
    kind = f' class="{kind}"' if kind else ""
    title = f' title="{in_html(title)}"' if title else ""
    return f"<td{sort}{kind}{title}>{markup}</td>"


def row_head(name: str, markup: str) -> str:
    """Writes the first cell of a row, sorted by the row's name."""
    return f'<th scope="row" data-sort="{in_html(name)}">{markup}</th>'
