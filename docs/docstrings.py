"""Docstrings as Markdown: the few marks of reStructuredText that the project's docstrings have, for mkdocstrings."""

from __future__ import annotations

import re
from typing import Any

import griffe

RULE = re.compile(r" *=+(?: +=+)+ *")  # above, in and below a simple table
ROLE = re.compile(r":(?:mod|func|class|meth|data|attr):`(~?)([^`]+)`")


def markdown(docstring: str) -> str:
    """Roles as code, simple tables as tables, ``text::`` before an indented block as ``text:``."""
    words = ROLE.sub(lambda match: f"`{match[2].rpartition('.')[2] if match[1] else match[2]}`", docstring)
    words = re.sub(r"^( *)::$", "", re.sub(r"(?<=[^:\s])::$", ":", words, flags=re.MULTILINE), flags=re.MULTILINE)
    blocks = re.split(r"(\n[ ]*\n)", words)
    return "".join(_table(block.splitlines()) if RULE.match(block) else block for block in blocks)


def _table(lines: list[str]) -> str:
    """A simple table as one of Markdown's; a row goes on where its first cell is empty."""
    starts = [match.start() for match in re.finditer("=+", lines[0])]
    ends = [*starts[1:], None]
    rows: list[list[str]] = []
    for line in lines:
        if RULE.fullmatch(line):
            continue
        cells = [line[start:end].strip() for start, end in zip(starts, ends, strict=True)]
        if cells[0]:
            rows.append(cells)
        else:
            rows[-1] = [f"{before} {more}".strip() for before, more in zip(rows[-1], cells, strict=True)]
    head = rows.pop(0) if RULE.fullmatch(lines[2]) else [""] * len(starts)
    grid = [head, ["---"] * len(starts), *rows]
    return "\n".join(f"{' ' * starts[0]}| {' | '.join(cells)} |" for cells in grid)


class Marks(griffe.Extension):
    """Rewrites every docstring when it has been read."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = markdown(obj.docstring.value)
