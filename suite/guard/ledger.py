"""Keeps the ledger of tries: an append-only file of JSON lines, each of which seals itself and names the one before.

A try is written twice, when it begins and when it ended: one that was killed stays a try, or whoever kills what looks
bad would be let off. A line that a crash cut off is dropped; every other change of the file is refused.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock, Timeout

from suite.judge.many_tries import FALSE_KEEPS, level_of
from suite.record.files import json_of, read_plain
from suite.record.seal import opened, sealed

Decision = Literal["keep", "discard", "undecided"]
WAIT_S = 60.0  # for another try to write its line
BEGINNING = "leantrain ledger 1"


class LedgerError(ValueError):
    """Is raised for a file that is no ledger, was edited, or cannot be written."""


@dataclass(frozen=True)
class Try:
    """Describes one try, once it has begun.

    Attributes:
        number: from 1 on; kept: how many were kept when it began.
        level: the e-value must reach its inverse.
    """

    number: int
    kept: int
    level: float


@dataclass(frozen=True)
class EndedTry:
    """Says how a try ended: its evidence as ln of an e-value, infinite where the change is exact."""

    number: int
    decision: Decision
    log_evidence: float
    basis: str


class Ledger:
    """Is a file of tries, which several processes may use at once."""

    def __init__(self, path: Path, false_keeps: float = FALSE_KEEPS) -> None:
        self.path = path
        self.false_keeps = false_keeps

    def begin(self, **what: Any) -> Try:
        """Writes that a try begins, and of ``what``; returns its number and level. Raises LedgerError."""
        with self._locked():
            lines = self._lines()
            if not lines:
                lines.append(self._append(BEGINNING, {"false_keeps": self.false_keeps}))
            tries = [line for line in map(json_of, lines) if line["is"] == "begun"]
            kept = sum(line.get("decision") == "keep" for line in map(json_of, lines))
            number = len(tries) + 1
            begun = Try(number, kept, level_of(number, kept, self.false_keeps))
            self._append(_digest(lines[-1]), {"is": "begun", **asdict(begun), **what})
        return begun

    def end(self, ended: EndedTry) -> None:
        """Writes how a try ended. Raises LedgerError where it did not begin, or ended before."""
        with self._locked():
            lines = self._lines()
            known = [(line["is"], line["number"]) for line in map(json_of, lines) if line["is"] != "ledger"]
            if ("begun", ended.number) not in known or ("ended", ended.number) in known:
                raise LedgerError(f"{self.path}: try {ended.number} did not begin, or has ended")
            self._append(_digest(lines[-1]), {"is": "ended", **asdict(ended)})

    def read(self) -> list[dict[str, Any]]:
        """Returns all lines but the first, in their order. Raises LedgerError."""
        return [json_of(line) for line in self._lines()[1:]]

    @contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            lock = FileLock(self.path.with_name(f"{self.path.name}.lock"), timeout=WAIT_S)
            lock.acquire()
        except Timeout:
            raise LedgerError(f"{self.path}: another process holds it; if none runs, remove {lock.lock_file}") from None
        except OSError as error:
            raise LedgerError(f"{self.path} cannot be written: {error.strerror}") from None
        try:
            yield
        finally:
            lock.release()

    def _lines(self) -> list[bytes]:
        """Returns the sealed lines, the first of which names the ledger; none where there is no file. What a crash cut
        off, which no line follows, is left out. Raises LedgerError."""
        try:
            whole, _, _cut = read_plain(self.path).rpartition(b"\n")
        except FileNotFoundError:
            return []
        except OSError as error:
            raise LedgerError(f"{self.path} cannot be read: {error.strerror or error}") from None
        lines = whole.split(b"\n") if whole else []
        before = BEGINNING
        for number, line in enumerate(lines, 1):
            try:
                content = json_of(opened(line))
                chained = content["after"] == before
            except (ValueError, KeyError, TypeError):
                chained = False
            if not chained:
                raise LedgerError(
                    f"{self.path}:{number}: the line was edited, or one before it was taken out; a ledger that was "
                    "changed decides nothing: begin a new one"
                )
            before = _digest(line)
        if lines and (known := json_of(lines[0])["false_keeps"]) != self.false_keeps:
            raise LedgerError(f"{self.path} was begun for a share of {known:g} false keeps, not {self.false_keeps:g}")
        return lines

    def _append(self, before: str, content: dict[str, Any]) -> bytes:
        """Adds one line, flushed to the disk, in the place of one that was cut off; returns it."""
        stamp = {"after": before, "is": "ledger", "at": datetime.now(UTC).isoformat(timespec="seconds")}
        line = sealed(json.dumps({**stamp, **content}, separators=(",", ":")).encode())
        with self.path.open("ab") as file:
            file.truncate(read_plain(self.path).rfind(b"\n") + 1)
            file.write(line + b"\n")
            file.flush()
            os.fsync(file.fileno())
        return line


def _digest(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()
