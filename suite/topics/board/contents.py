"""The sections that topics bring to the board, found by the names of their modules."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import import_module

import suite.topics
from suite.show.described import Section
from suite.show.on_board import OnBoard
from suite.topics.board.report import Report

SUFFIX = "_on_board"


@cache
def on_board() -> tuple[OnBoard, ...]:
    """Finds every topic's sections, in order."""
    modules = [each.name for each in pkgutil.walk_packages(suite.topics.__path__, "suite.topics.")]
    found = [import_module(name).ON_BOARD for name in modules if name.endswith(SUFFIX)]
    each = (one for of_module in found for one in (of_module if isinstance(of_module, tuple) else (of_module,)))
    return tuple(sorted(each, key=lambda one: one.order))


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
