"""Stores evidence, append-only: JSON Lines, ``<results>/<machine>/{counted,learned,timed}.jsonl``.

A line is appended whole or not at all, with its checksum (:mod:`suite.record.seal`). What others measured is in
``<results>/merged/`` (:mod:`suite.topics.publish.merging`).
"""

from __future__ import annotations

import codecs
import errno
import gc
import os
import shlex
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from suite.record.files import OlderSchema, open_plain, printable
from suite.record.machine import key_of
from suite.record.schema import Counted, Learned, Line, Machine, Renewal, Timed, Witness, parse, unattached
from suite.record.seal import NoChecksum, opened, sealed


class StoreError(RuntimeError):
    """Is raised where the results folder cannot be used; the message says why and what to do."""


class NoRecord(LookupError):
    """Is raised where no record is what was asked for; the message says what to do."""

    @classmethod
    def beginning(cls, beginning: str) -> NoRecord:
        """Builds the error for an id with which no record's id begins."""
        return cls(
            f"no record begins with {beginning!r}; leantrain leaderboard --json and leantrain claims ID print the ids, "
            f"--results names another folder"
        )


LOCK = "writing"
LONGEST_LINE = 1 << 24
"""Bytes of a line that is read: ours have a thousandth of that."""
MERGED = "merged"
"""The folder of records that were measured elsewhere, beside those of machines."""


@dataclass(frozen=True)
class Records:
    """Holds all that a results folder holds, oldest first. ``places``: file and line of each record by its id, where it
    was read from files."""

    counted: list[Counted] = field(default_factory=list)
    learned: list[Learned] = field(default_factory=list)
    timed: list[Timed] = field(default_factory=list)
    witnesses: list[Witness] = field(default_factory=list)
    renewals: list[Renewal] = field(default_factory=list)
    places: Mapping[str, str] = field(default_factory=dict, compare=False)

    @classmethod
    def of(cls, lines: Iterable[Line], places: Mapping[str, str] | None = None) -> Records:
        """Sorts the lines by kind, in order of their start."""
        records = cls(places=places or {})
        lists: dict[str, list[Any]] = {
            "counted": records.counted,
            "learned": records.learned,
            "timed": records.timed,
            "witness": records.witnesses,
            "renewal": records.renewals,
        }
        for line in sorted(lines, key=lambda line: line.started):
            lists[line.kind].append(line)
        return records

    @property
    def lines(self) -> list[Line]:
        """Returns everything, kind by kind."""
        return [*self.counted, *self.learned, *self.timed, *self.witnesses, *self.renewals]


class Store:
    """Keeps the evidence in one results folder (of all its machines), appended for one machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, machine: str, kind: str) -> Path:
        return self.folder / machine / f"{kind}.jsonl"

    @property
    def merged(self) -> Path:
        """Returns the file of records that were measured elsewhere."""
        return self.folder / MERGED / "records.jsonl"

    @contextmanager
    def writing(self, machine: str) -> Iterator[None]:
        """Holds the folder for one writer. Raises StoreError if another run has it or it cannot be written."""
        target = self.folder / machine / LOCK
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
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

    def append(self, added: Line, machine: str) -> None:
        """Adds one line, whole or not at all, and flushes it to the disk.

        Raises StoreError, e.g. on a full disk, and for a run whose technique did not attach.
        """
        for run in unattached(added):
            raise StoreError(f"{run.stack}: {run.reason}; such a run is not kept")
        target = self.path(machine, "learned" if isinstance(added, Witness | Renewal) else added.kind)
        line = sealed(added.model_dump_json().encode()) + b"\n"
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(target, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK, 0o644)
        except OSError as error:
            raise StoreError(f"cannot write {target}: {error.strerror}; this one is not kept") from None
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise StoreError(f"cannot write {target}: it is no regular file; this one is not kept")
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
                f"cannot write {target}: {what}; what was measured before is kept, this one is not"
            ) from None
        finally:
            os.close(handle)

    def read(self) -> tuple[Records, list[str]]:
        """Reads all evidence of all machines, and gives a sentence for each reason for which lines of a file cannot be
        read."""
        with collection_paused():
            return self._read()

    def mentions(self, text: str) -> bool:
        """Tells whether a line has this text in it: soon known, since nothing is parsed."""
        paths = self.folder.glob("*/*.jsonl")
        return any(text.encode() in line for path in paths for _, line in _lines_or_why(path, []))

    def _read(self) -> tuple[Records, list[str]]:
        lines_by_id: dict[str, Line] = {}
        places: dict[str, str] = {}
        texts: dict[str, int] = {}  # what a line was, without keeping it
        problems: list[str] = []
        left: dict[tuple[Path, str], list[int]] = {}
        older: dict[Path, list[str]] = {}
        unsealed: dict[Path, int] = {}
        resaved: dict[tuple[Path, str], int] = {}
        for path in sorted(self.folder.glob("*/*.jsonl")):
            for number, line in _lines_or_why(path, problems):
                try:
                    parsed = parse_sealed(line)
                    if path.parent.name == MERGED and not parsed.source:  # by hand, so nobody said where it is from
                        parsed = parsed.model_copy(update={"source": MERGED})
                    if texts.setdefault(parsed.id, hash(line)) != hash(line) and not same(
                        parsed, lines_by_id[parsed.id]
                    ):
                        raise ValueError(f"it has the id of another one, {printable(parsed.id)}")
                except OlderSchema as error:
                    older.setdefault(path, []).append(f"{path}:{number}: {error}")  # as all its lines are, probably
                except NoChecksum:
                    unsealed[path] = unsealed.get(path, 0) + 1
                except Resaved as error:
                    resaved[path, str(error)] = resaved.get((path, str(error)), 0) + 1
                except ValueError as error:
                    left.setdefault((path, str(error)), []).append(number)
                else:
                    if parsed.id not in lines_by_id or not parsed.source:  # rather ours than a copy of it
                        lines_by_id[parsed.id] = parsed
                        places[parsed.id] = f"{path}:{number}"
        for (path, why), numbers in left.items():
            others_too = and_others(numbers)
            problems.append(f"{path}:{numbers[0]}: {why}; the line is left out and left in place{others_too}")
        for first, *others in older.values():
            lines = f", nor can {len(others)} more of its lines; delete them" if others else "; delete the line"
            problems.append(f"{first}{lines} and measure again with: leantrain run")
        for (path, why), count in resaved.items():
            problems.append(f"{path}: {count} of its lines {why}; they are left out and left in place")
        for path, count in unsealed.items():
            problems.append(
                f"{path}: {count} of its lines have no checksum and are left out; if you trust them, add it with: "
                f"python -m suite.record.seal {shlex.quote(str(path))}"
            )
        return Records.of(lines_by_id.values(), places), problems


MOST_NUMBERS = 5


def and_others(numbers: Sequence[int]) -> str:
    """Ends a sentence about the first of these lines of a file with the others: of another schema there are
    thousands."""
    _, *others = numbers
    if len(others) > MOST_NUMBERS:
        return f", with {len(others)} more of its lines"
    named = ", ".join(str(number) for number in others)
    return f", with line{'s' * (len(others) > 1)} {named}" if others else ""


def lines_of(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yields the lines of a file that are not blank, with their numbers from 1 on; of one that is no record's for its
    length the beginning. Raises OSError."""
    with open_plain(path) as file:
        number = 0
        while line := file.readline(LONGEST_LINE):
            number += 1
            rest = line
            while len(rest) == LONGEST_LINE and not rest.endswith(b"\n"):
                rest = file.readline(LONGEST_LINE)
            if line.strip():
                yield number, line.removesuffix(b"\n")


def _lines_or_why(path: Path, problems: list[str]) -> Iterator[tuple[int, bytes]]:
    """Yields lines as :func:`lines_of` gives them, with a sentence where the file cannot be read."""
    try:
        yield from lines_of(path)
    except OSError as error:
        problems.append(f"{path}: cannot be read: {error.strerror}; its records are left out")


class Resaved(ValueError):
    """Is raised where an editor, or git on Windows, saved the file in another form; the message says which, and how to
    undo it."""


def parse_sealed(line: bytes) -> Line:
    """Reads a line of evidence with its checksum. Raises ValueError, NoChecksum where that alone is missing, Resaved.

    A line whose machine's key is not the hash of its facts is refused: it would be pooled with a machine that it says
    it is not.
    """
    if len(line) >= LONGEST_LINE:
        raise ValueError(f"not a record: it is longer than {LONGEST_LINE >> 20} MiB")
    if line.startswith(codecs.BOM_UTF8):
        raise Resaved("begin with a byte order mark (BOM); save the file as UTF-8 without one")
    if line.endswith(b"\r"):
        raise Resaved("end as Windows has them (CRLF); save the file with LF (git config core.autocrlf input)")
    try:
        line_read = parse(opened(line))
    except NoChecksum:
        parse(line)  # what is damaged is called so
        raise
    machine = line_read.machine
    if isinstance(machine, Machine) and machine.key != key_of(machine.facts):
        raise ValueError(f"its machine's key, {printable(machine.key)}, is not that of the facts beside it")
    return line_read


def same(one: Line, other: Line) -> bool:
    """Tells whether two lines say the same, wherever they came from."""
    origin = {"source", "machine"} if isinstance(one, Renewal) else {"source"}  # older renewals name no machine
    return one.model_dump_json(exclude=origin) == other.model_dump_json(exclude=origin)


@contextmanager
def collection_paused() -> Iterator[None]:
    """Stops the search for cycles, of which records and what is read from them have none: among millions of objects
    that doubles the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
