"""Writes a report in the forms that people ask for: boards for themselves, tables for other tools."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from suite.record.files import read_plain_text, replacing
from suite.topics.board import badge, html, markdown, pictures
from suite.topics.board.report import Report
from suite.topics.board.stamp import check, stamp
from suite.topics.publish import eval_records, export

PAGES: Mapping[str, Callable[[Report], str]] = {
    "markdown": markdown.render,
    "html": html.render,
    "svg": pictures.render,
    "badge": badge.render,
}
"""What draws each form of a board; the other forms are tables."""
KEEPING = ("model-index", "findings")
"""The forms that are a part of a file, of which all else is kept."""
Target = tuple[Any, Path | None]  # a form, and the file that gets it; of one that is printed None


@dataclass(frozen=True)
class Details:
    """Says what single forms ask beyond the report: ``table`` that of CSV and Parquet, ``benchmark`` the Hub's data set
    that evaluation results refer to."""

    table: str = "rows"
    benchmark: str = ""


def write(
    report: Report, targets: Sequence[Target], folder: Path, chosen: Sequence[str], details: Details, anew: bool
) -> str | None:
    """Writes the report to the targets; returns the text of one that is to be printed, which is then the only one.

    ``chosen``: the stacks and baselines that it is of, none for all, in which case Markdown is a front page with its
    boards in ``folder``. Raises ValueError, before anything is written, where a board would take the place of something
    else and that is not to be made ``anew``.
    """
    boards = [path for kind, path in targets if path and kind in PAGES]
    stamps = {board: stamp(board, folder, report.records, " ".join(chosen)) for board in boards}
    for board in () if anew else boards:
        check(board, stamps[board])
    for kind, path in targets:
        content = _content(report, kind, path, None if chosen else folder / "boards", details)
        if path is None:
            return content.decode()
        with replacing(path) as partial:
            partial.write_bytes(content + stamps.get(path, b""))
    return None


def _content(report: Report, kind: Any, path: Path | None, boards: Path | None, details: Details) -> bytes:
    """Returns a form of the report; ``boards``: the folder of the boards of a front page."""
    if kind == "markdown" and path and boards:
        return _front_page(report, path, boards)
    if kind in PAGES:
        return PAGES[kind](report).encode()
    existing = read_plain_text(path) if path and path.exists() and kind in KEEPING else ""
    if kind == "findings":
        home = Path(os.path.relpath(boards, path.parent)).as_posix() if boards and path else ""
        return markdown.with_findings(existing, report, home).encode()
    if kind in eval_records.FORMATS:
        return eval_records.results(report.rows, kind, details.benchmark)
    return export.exported(report.rows, kind, details.table, existing)


def _front_page(report: Report, path: Path, boards: Path) -> bytes:
    """Writes the boards of each baseline into ``boards`` and returns the front page that ``path`` becomes."""
    front, pages = markdown.split(report, Path(os.path.relpath(boards, path.parent)).as_posix())
    for name, content in pages.items():
        with replacing(boards / name) as partial:
            partial.write_text(content, "utf-8")
    return front.encode()
