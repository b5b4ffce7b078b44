"""Finds which files are meant, and which format each has: by its name, else by its first bytes."""

from __future__ import annotations

import glob
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from suite.record.files import open_plain
from suite.topics.foreign_runs.event_files import W_AND_B, read_events, read_offline
from suite.topics.foreign_runs.log_table import LogTable
from suite.topics.foreign_runs.tabular_logs import (
    read_json,
    read_json_lines,
    read_parquet,
    read_separated,
    read_trackio,
)
from suite.topics.foreign_runs.text_logs import PRESETS, read_text

Reader = Callable[[Path], list[LogTable]]
BY_SUFFIX: dict[str, Reader] = {
    ".csv": read_separated,
    ".tsv": read_separated,
    ".jsonl": read_json_lines,
    ".ndjson": read_json_lines,
    ".json": read_json,
    ".parquet": read_parquet,
    ".db": read_trackio,
    ".wandb": read_offline,
}
IN_A_FOLDER = ("*.wandb", "*tfevents*", "trainer_state.json")
"""What a run's folder is read for: the first of these that it has."""


def files_of(patterns: Sequence[str], option: str) -> list[Path]:
    """Returns the files that names and patterns mean, each once. Raises ValueError for one that means none."""
    found: dict[Path, None] = {}
    for pattern in patterns:
        paths = [Path(name) for name in sorted(glob.glob(pattern, recursive=True))] or [Path(pattern)]
        if not paths[0].exists():
            raise ValueError(f"{option} {pattern}: there is no such file")
        for path in paths:
            found |= dict.fromkeys(_in_folder(path, option) if path.is_dir() else [path])
    return list(found)


def _in_folder(folder: Path, option: str) -> list[Path]:
    for pattern in IN_A_FOLDER:
        files = sorted(folder.glob(pattern))
        if len(files) > 1:
            raise ValueError(
                f"{option} {folder}: the folder holds {len(files)} files {pattern}, of a run that was resumed, or of "
                "several; name those that are whole runs"
            )
        if files:
            return files
    wanted = ", ".join(IN_A_FOLDER)
    raise ValueError(f"{option} {folder}: the folder holds no run's file ({wanted}); name the files themselves")


def read(path: Path, patterns: Sequence[str] = (), preset: str = "") -> list[LogTable]:
    """Reads a file, as text where a pattern or a preset is given: a table for each run that it tells apart.

    Raises ValueError with one sentence, the file's name and mostly a line; OSError for what cannot be read; UnknownId.
    """
    if preset:
        from suite.entries.setting import chosen  # cards and their checks: only where a word is to be looked up

        chosen("preset", preset, tuple(PRESETS))
    as_text = bool(patterns or preset)
    reader = partial(read_text, patterns=patterns, preset=preset) if as_text else _reader_of(path)
    try:
        return reader(path)
    except ValueError as error:
        raise error if str(path) in str(error) else ValueError(f"{path}: {error}") from None


def _reader_of(path: Path) -> Reader:
    if reader := BY_SUFFIX.get(path.suffix.lower()):
        return reader
    if "tfevents" in path.name:
        return read_events
    with open_plain(path) as file:
        start = file.read(16)
    if start.startswith(b"SQLite format 3"):
        return read_trackio
    if start.startswith(b"PAR1"):
        return read_parquet
    if start.startswith(W_AND_B):
        return read_offline
    return read_text
