"""Reads a user's plain files (text, CSV, JSON) as they were written, whatever a reader would make of them.

Lines end at line feeds and carriage returns alone: U+2028 and U+0085 are part of a text. Files may begin with a byte
order mark, UTF-16's too. A cell of a table is its text: "NA", "null" and "None" are words.
"""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MARKS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
NUMBERS: dict[Any, re.Pattern[str]] = {
    int: re.compile(r"[+-]?[0-9]{1,18}"),
    float: re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?"),
}
INTEGER = NUMBERS[int]
TEXTS = ("text", "sentence", "content", "document", "article", "body", "code", "instruction", "input", "output")


def decoded(location: str, path: Path) -> str:
    """Returns a file's text. Raises ValueError for one that is not UTF-8, or UTF-16 with its mark, with the line."""
    content = path.read_bytes()
    encoding = next((name for mark, name in MARKS.items() if content.startswith(mark)), "utf-8")
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise _undecodable(location, path, line, encoding) from None


def _check(location: str, path: Path) -> None:
    """Checks a file line by line, since readers of JSON find what is no UTF-8 when they come to it, or never."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                line.decode()
            except UnicodeDecodeError:
                raise _undecodable(location, path, number, "utf-8") from None


def _undecodable(location: str, path: Path, line: int, encoding: str) -> ValueError:
    name = encoding.upper().removesuffix("-SIG")
    return ValueError(f"{location}: line {line} of {path.name} is no {name}: save the file as UTF-8")


def lines(text: str) -> list[str]:
    """Returns the lines of a text, without their ends."""
    return text.replace("\r\n", "\n").replace("\r", "\n").split("\n")


def without_mark(location: str, path: Path, folder: Path) -> Path:
    """Returns the file itself or, where it begins with a byte order mark, a copy of it in UTF-8 without one, in
    ``folder``. Raises ValueError as :func:`decoded`."""
    with path.open("rb") as file:
        beginning = file.read(4)
    if not beginning.startswith(tuple(MARKS)):
        _check(location, path)
        return path
    copy = folder / f"{len(list(folder.iterdir()))}-{path.name}"
    copy.write_bytes(decoded(location, path).encode())
    return copy


def table(location: str, path: Path) -> dict[str, list[Any]]:
    """Reads the columns of a CSV file by name: texts; integers or numbers where they are nothing else and their name is
    not a text's, None where a cell is empty. Raises ValueError with the row for one that does not fit its head."""
    csv.field_size_limit(1 << 30)
    reader = csv.reader(io.StringIO(decoded(location, path), newline=""), strict=True)
    try:
        rows = [row for row in reader if row]
    except csv.Error as error:
        raise ValueError(f"{location}: line {reader.line_num} of {path.name} is no CSV: {error}") from None
    head, *rows = rows or [[]]
    if len(set(head)) < len(head):
        raise ValueError(f"{location}: {path.name} names a column twice: {', '.join(head)}")
    if len(head) == 1 and (other := next((sign for sign in ";\t|" if sign in head[0]), None)):
        raise ValueError(f"{location}: the columns of {path.name} are separated by {other!r}: separate them by commas")
    for number, row in enumerate(rows, 1):
        if len(row) != len(head):
            raise ValueError(f"{location}: row {number} of {path.name} has {len(row)} cells, and its head {len(head)}")
    columns = {name: [row[place] for row in rows] for place, name in enumerate(head)}
    return {name: cells if name in TEXTS else numbered(cells) for name, cells in columns.items()}


def numbered(cells: list[str]) -> list[Any]:
    """Returns a column's cells, as numbers where all that are filled are."""
    filled = [cell.strip() for cell in cells if cell.strip()]
    kinds = [kind for kind, form in NUMBERS.items() if filled and all(map(form.fullmatch, filled))]
    return [kinds[0](cell) if cell.strip() else None for cell in cells] if kinds else cells


def loaded(location: str, kind: str, by_split: Mapping[str, list[Path]], folder: str) -> Any:
    """Reads the splits of a location's files, as ``datasets`` has them; ``folder`` is for its copies."""
    import datasets

    if kind == "text":
        whole = {
            name: [line for path in paths for line in lines(decoded(location, path))]
            for name, paths in by_split.items()
        }
        return {name: datasets.Dataset.from_dict({"text": each}) for name, each in whole.items()}
    if kind == "csv":
        return {name: _joined([table(location, path) for path in paths]) for name, paths in by_split.items()}
    if kind != "json":
        files = {name: [str(path) for path in paths] for name, paths in by_split.items()}
        return datasets.load_dataset(kind, data_files=files, cache_dir=folder)
    copies = Path(folder) / "copies"
    copies.mkdir(exist_ok=True)
    files = {name: [str(without_mark(location, path, copies)) for path in paths] for name, paths in by_split.items()}
    return datasets.load_dataset(kind, data_files=files, cache_dir=folder)


def _joined(tables: list[dict[str, list[Any]]]) -> Any:
    import datasets

    return datasets.concatenate_datasets([datasets.Dataset.from_dict(each) for each in tables])
