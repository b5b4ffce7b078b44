"""The sections that topics bring to the board, and their parts of techniques' own, found by their modules' names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from suite import topics
from suite.show.described import Section
from suite.topics.board.report import Report
from suite.topics.on_board import OnBoard, OnPage


@cache
def on_board() -> tuple[OnBoard, ...]:
    """Finds every topic's sections, in order."""
    each = (one for of in _found("on_board") for one in (of if isinstance(of, tuple) else (of,)))
    return tuple(sorted(each, key=lambda one: one.order))


@cache
def on_page() -> tuple[OnPage, ...]:
    """Finds every topic's parts of a technique's own section, in order."""
    return tuple(sorted(_found("on_page"), key=lambda one: one.order))


def _found(kind: str) -> Iterator[Any]:
    """Yields what files that are called so have under that name: a new topic is a folder with such a file alone."""
    for folder in topics.__path__:
        for path in sorted(Path(folder).glob(f"*/*_{kind}.py")):
            yield getattr(import_module(f"suite.topics.{path.parent.name}.{path.stem}"), kind.upper())


def sections(report: Report) -> list[Section]:
    """Makes the sections that the report has something of."""
    return [section for section, _ in _made(report, on_board())]


def sections_beside_boards(report: Report) -> list[Section]:
    """Makes those that stand on a baseline's page in Markdown."""
    return [section for section, _ in _made(report, [one for one in on_board() if not one.link])]


def linked_sections(report: Report) -> list[tuple[Section, str]]:
    """Makes those that have a page of their own in Markdown, each with the words of a link to it."""
    return list(_made(report, [one for one in on_board() if one.link]))


def _made(report: Report, of: Iterable[OnBoard]) -> Iterator[tuple[Section, str]]:
    for one in of:
        if (section := one.section(report)) is not None:
            yield section, one.link
