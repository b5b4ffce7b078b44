"""The append-only store of records: JSON Lines under ``<results>/<machine>/records.jsonl``.

A record is appended whole or not at all; folders are merged with ``cat``.
"""

from __future__ import annotations

import errno
import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from suite.record.files import printable
from suite.record.schema import Record, parse


class StoreError(RuntimeError):
    """The results folder cannot be used; the message says why and what to do."""


class NoRecord(LookupError):
    """No record is what was asked for; the message says what to do."""


class Store:
    """The records of one results folder (of all its machines), appended for one machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, machine: str) -> Path:
        return self.folder / machine / "records.jsonl"

    @contextmanager
    def writing(self, machine: str) -> Iterator[None]:
        """Holds the folder for one writer. Raises StoreError if another run has it or it cannot be written."""
        target = self.path(machine)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("a"):
                pass
            lock = FileLock(target.with_suffix(".lock"), timeout=0)
            lock.acquire()
        except Timeout:
            raise StoreError(
                f"another run is writing to {target.parent}; wait for it, or choose another folder with --results"
            ) from None
        except OSError as error:
            raise StoreError(
                f"cannot write to {target.parent}: {error.strerror}; choose another folder with --results"
            ) from None
        try:
            yield
        finally:
            lock.release()  # the empty lock file stays: removing it could let two writers in

    def append(self, record: Record) -> None:
        """Adds one line, whole or not at all, and flushes it to the disk. Raises StoreError, e.g. on a full disk."""
        target = self.path(record.machine.name)
        line = record.model_dump_json(exclude_defaults=False).encode() + b"\n"
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(target, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise StoreError(f"cannot write {target}: {error.strerror}; this replicate is not kept") from None
        end = os.lseek(handle, 0, os.SEEK_END)
        try:
            if end and os.pread(handle, 1, end - 1) != b"\n":  # a line that a crash cut off: keep it apart from ours
                line = b"\n" + line
            written = 0
            while written < len(line):
                written += os.write(handle, line[written:])
            os.fsync(handle)
        except OSError as error:
            os.ftruncate(handle, end)
            what = "the disk is full" if error.errno == errno.ENOSPC else (error.strerror or str(error))
            raise StoreError(
                f"cannot write {target}: {what}; what was measured before is kept, this replicate is not"
            ) from None
        finally:
            os.close(handle)

    def read(self) -> tuple[list[Record], list[str]]:
        """All records of all machines, oldest first, and one sentence for each line that cannot be read."""
        with collection_paused():
            return self._read()

    def _read(self) -> tuple[list[Record], list[str]]:
        records: dict[str, Record] = {}
        lines_of: dict[str, int] = {}  # what a line was, without keeping it
        problems: list[str] = []
        for path in sorted(self.folder.glob("*/*.jsonl")):
            try:
                lines = path.read_bytes().split(b"\n")
            except OSError as error:
                problems.append(f"{path}: cannot be read: {error.strerror}; its records are left out")
                continue
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                try:
                    record = parse(line)
                    if lines_of.setdefault(record.id, hash(line.strip())) != hash(line.strip()):
                        raise ValueError(f"it has the id of another one, {printable(record.id)}")
                except ValueError as error:
                    problems.append(f"{path}:{number}: {error}; the line is left out and left in place")
                else:
                    records[record.id] = record
        return sorted(records.values(), key=lambda record: record.started), problems


@contextmanager
def collection_paused() -> Iterator[None]:
    """Without searching for cycles, of which records have none: among millions of objects that doubles the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
