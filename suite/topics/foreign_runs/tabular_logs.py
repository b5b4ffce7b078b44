"""Reads tables: CSV, TSV, JSON Lines, JSON (rows, columns, or transformers' trainer_state.json), Parquet, trackio's
database."""

from __future__ import annotations

import csv
import io
import json
import re
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from itertools import zip_longest
from pathlib import Path
from typing import Any

from suite.record.files import open_plain, read_plain
from suite.topics.foreign_runs.log_table import LogTable, flat, from_rows

OF_A_RUN = re.compile(r"(?P<run>.+) - (?P<metric>.+?)(?P<band>__(MIN|MAX))?")
"""A column of a chart that W&B exports: one for each run, and two of its band."""
STATE_FACTS = ("train_batch_size", "num_train_epochs", "max_steps", "best_metric")


def text_of(path: Path) -> str:
    """Returns a file's text. Raises ValueError with one sentence for an empty file and for what is no UTF-8."""
    try:
        text = read_plain(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no text in UTF-8 (byte {error.start}); convert it, or name another file") from None
    if not text.strip():
        raise ValueError(f"{path} is empty; leave it out, or wait until its run has written something")
    return text


def read_separated(path: Path) -> list[LogTable]:
    """Reads CSV or TSV; the header says which separator it has. W&B's export of a chart becomes a table a run."""
    text = text_of(path)
    header = text.lstrip().splitlines()[0]
    separator = max(",;\t", key=header.count) if path.suffix != ".tsv" else "\t"
    reader = csv.reader(io.StringIO(text), delimiter=separator)
    names: list[str] = []
    rows: list[list[str]] = []
    lines: list[int] = []
    for fields in reader:
        if not names:
            names = [name.strip() for name in fields]
        elif fields:
            if len(fields) != len(names):
                raise ValueError(
                    f"{path}, line {reader.line_num}: {len(fields)} fields where the header has {len(names)}: a line "
                    "that was cut, or commas within numbers; mend it"
                )
            rows.append(fields)
            lines.append(reader.line_num)
    if not rows:
        raise ValueError(f"{path} has a header and no rows; leave it out, or wait until its run has written something")
    columns = dict(zip(names, map(list, zip(*rows))))
    return _of_charts(path, columns, lines) or [LogTable(str(path), columns, lines)]


def _of_charts(path: Path, columns: Mapping[str, Sequence[str]], lines: Sequence[int]) -> list[LogTable]:
    """Returns a table for each run of an exported chart; none of another file."""
    first, *others = columns
    matches = {name: OF_A_RUN.fullmatch(name) for name in others}
    if not others or not all(matches.values()):
        return []
    by_run: dict[str, dict[str, Sequence[str]]] = {}
    for name, match in matches.items():
        if match and not match["band"]:
            by_run.setdefault(match["run"], {first: columns[first]})[match["metric"]] = columns[name]
    tables = []
    for run, own in by_run.items():
        metrics = [values for name, values in own.items() if name != first]
        rows = [row for row in range(len(lines)) if any(values[row] for values in metrics)]
        tables.append(LogTable(str(path), own, lines).rows(rows, run))
    return tables


def read_json_lines(path: Path) -> list[LogTable]:
    """Reads an object a line."""
    pairs = []
    for number, line in enumerate(text_of(path).splitlines(), 1):
        if line.strip():
            pairs.append((number, _object(line, f"{path}, line {number}")))
    return [from_rows(str(path), pairs)]


def _object(line: str, place: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        raise ValueError(f"{place}: it is no JSON, perhaps cut; remove the line, or name another file") from None
    if not isinstance(found, dict):
        raise ValueError(f"{place}: it is no JSON object of names and values; name another file")
    return flat(found)


def read_json(path: Path) -> list[LogTable]:
    """Reads rows ``[{...}, ...]``, columns ``{name: [...]}`` or ``{name: {row: ...}}``, and trainer_state.json."""
    text = text_of(path)
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        if len(text.splitlines()) > 1 and text.lstrip().startswith("{"):
            return read_json_lines(path)
        raise ValueError(f"{path} is no JSON, perhaps cut; name another file") from None
    facts: dict[str, str] = {}
    if isinstance(found, dict) and isinstance(found.get("log_history"), list):
        facts = {name: str(found[name]) for name in STATE_FACTS if found.get(name) is not None}
        found = found["log_history"]
    if isinstance(found, dict) and found and all(isinstance(values, list | dict) for values in found.values()):
        columns = [values if isinstance(values, list) else list(values.values()) for values in found.values()]
        found = [dict(zip(found, row)) for row in zip_longest(*columns)]
    if not (isinstance(found, list) and found and all(isinstance(row, dict) for row in found)):
        raise ValueError(f"{path} holds no rows of names and values; name another file")
    return [from_rows(str(path), enumerate(map(flat, found), 1), facts=facts, counted_in="row")]


def read_parquet(path: Path) -> list[LogTable]:
    """Reads Parquet. Raises ValueError, with what to install, where pyarrow is missing."""
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise ValueError(f"{path}: Parquet needs pyarrow: pip install 'leantrain[parquet]'") from None
    try:
        columns = parquet.read_table(io.BytesIO(read_plain(path))).to_pydict()
    except ArrowException as error:
        raise ValueError(f"{path} is no Parquet that can be read: {error}") from None
    return [of_columns(str(path), columns)]


def of_columns(source: str, columns: Mapping[str, Sequence[Any]]) -> LogTable:
    """Builds a table of typed columns, in which NaN is what is missing. Raises ValueError where there is no row."""
    count = len(next(iter(columns.values()), ()))
    if not count:
        raise ValueError(f"{source} has no rows; leave it out, or wait until its run has written something")
    cleaned = {str(name): [None if value != value else value for value in values] for name, values in columns.items()}
    return LogTable(source, cleaned, range(1, count + 1), counted_in="row")


def read_trackio(path: Path) -> list[LogTable]:
    """Reads trackio's database of a project: a table for each of its runs."""
    with open_plain(path):  # no pipe and no device
        pass
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
            asked = "SELECT run_name, step, timestamp, metrics FROM metrics ORDER BY run_name, step, id"
            found = database.execute(asked).fetchall()
    except sqlite3.Error as error:
        raise ValueError(f"{path} is no database of trackio: {error}; name another file") from None
    by_run: dict[str, list[tuple[int, dict[str, Any]]]] = {}
    for run, step, timestamp, metrics in found:
        rows = by_run.setdefault(run, [])
        fields = {"step": step, "timestamp": timestamp} | _object(metrics, f"{path}, run {run}, step {step}")
        rows.append((len(rows) + 1, fields))
    if not by_run:
        raise ValueError(f"{path} is empty; leave it out, or wait until its run has written something")
    return [from_rows(f"{path} ({run})", rows, counted_in="row") for run, rows in by_run.items()]
