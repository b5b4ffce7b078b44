"""Holds what a log says: columns of values as they stand there, and the line of each, for sentences about them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from suite.judge.statistics import Floats

DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+(e[+-]?\d+)?", re.IGNORECASE)
WITH_UNIT = re.compile(r"[+-]?[\d.,]+ ?[a-zA-Zµ%/]+")


@dataclass(frozen=True)
class LogTable:
    """Holds the columns of one log, or of one run in it; what is missing is None or an empty text.

    ``lines``: the number of each row's line, or of the row itself where ``counted_in`` says so. ``facts``: what the log
    says of the whole run (its configuration, its hardware), by name.
    """

    source: str
    columns: Mapping[str, Sequence[Any]]
    lines: Sequence[int]
    facts: Mapping[str, str] = field(default_factory=dict)
    counted_in: str = "line"

    def place(self, row: int) -> str:
        """Returns the file and the line of a row."""
        return f"{self.source}, {self.counted_in} {self.lines[row]}"

    def rows(self, chosen: Sequence[int], name: str) -> LogTable:
        """Returns the table of some rows, called by the file's name and ``name``."""
        columns = {key: [values[row] for row in chosen] for key, values in self.columns.items()}
        lines = [self.lines[row] for row in chosen]
        return LogTable(f"{self.source} ({name})", columns, lines, self.facts, self.counted_in)

    def present(self, name: str) -> list[int]:
        """Returns the rows that say something in a column."""
        return [row for row, value in enumerate(self.columns[name]) if value is not None and value != ""]

    def says(self, name: str) -> bool:
        """Tells whether there is anything in a column."""
        return any(value is not None and value != "" for value in self.columns[name])

    def numbers(self, name: str) -> Floats:
        """Returns a column as numbers, NaN where it says nothing. Raises ValueError with one sentence, file and line,
        for what is no number, or is not finite."""
        values = self.columns[name]
        try:
            found = np.array([math.nan if value is None or value == "" else float(value) for value in values])
        except (TypeError, ValueError):
            row = next(row for row, value in enumerate(values) if not _is_number(value))
            raise ValueError(f"{self.place(row)}: {why_no_number(name, values[row])}") from None
        for row in map(int, np.flatnonzero(~np.isfinite(found))):
            if values[row] is not None and values[row] != "":
                raise ValueError(
                    f"{self.place(row)}: {name} is {values[row]}: the run diverged there; leave it out of the "
                    "comparison, and say that it failed"
                )
        return found


def _is_number(value: Any) -> bool:
    try:
        return value is None or value == "" or float(value) is not None
    except (TypeError, ValueError):
        return False


def why_no_number(name: str, value: Any) -> str:
    """Tells what is wrong with a value that should be a number, and what to do."""
    text = str(value).strip()
    if DECIMAL_COMMA.fullmatch(text):
        return f"{name} is {text!r}, with a comma in the number; write it with a decimal point and no separators"
    if WITH_UNIT.fullmatch(text):
        return f"{name} is {text!r}, with a unit; write plain numbers, all of one unit, or read it with --pattern"
    return f"{name} is {text[:40]!r}, which is no number; name another column"


def from_rows(source: str, rows: Iterable[tuple[int, Mapping[str, Any]]], **others: Any) -> LogTable:
    """Builds a table of (line, fields) pairs whose fields may differ."""
    pairs = list(rows)
    names = list(dict.fromkeys(name for _, fields in pairs for name in fields))
    columns = {name: [fields.get(name) for _, fields in pairs] for name in names}
    return LogTable(source, columns, [line for line, _ in pairs], **others)


def flat(fields: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Returns nested fields by their path, ``eval/loss``; lists are left out."""
    found: dict[str, Any] = {}
    for name, value in fields.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{above}{name}/")
        elif not isinstance(value, list):
            found[f"{above}{name}"] = value
    return found
