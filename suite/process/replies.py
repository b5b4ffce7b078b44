"""Reads and writes what a child says to its parent: a line of JSON each, of plain values, with bounds.

Techniques put into it what they like: numpy's scalars, endless texts, lone surrogates, objects of classes that the
parent must not load. The child makes plain values of that, so nothing that arrives can run code or fail to be stored.
A reply names the command it answers and who speaks: a technique that forks answers twice.
"""

from __future__ import annotations

import json
import numbers
import os
import traceback
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any

from suite.record.files import Stored
from suite.record.schema import Status

Failure = tuple[Status, str, str]
"""How something ended, in the words of a record: its status, reason and details, all of them bounded."""
LONGEST_REASON = 500
LONGEST_TEXT = 4000
MOST_VALUES = 1_000_000  # a block of that many steps has as many losses
DEEPEST = 12
LARGEST_BYTES = 64 << 20
dumps, getpid, write = json.dumps, os.getpid, os.write  # as they were before a technique changed them


def plain(value: Any, depth: int = 0) -> Any:
    """Returns ``value`` as JSON has it: scalars of any library as numbers, texts bounded and without lone surrogates,
    whole numbers of at most 64 bits, and the name of its type for everything else."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return bounded(value)
    if isinstance(value, numbers.Integral):
        whole = int(value)
        return whole if -(2**63) <= whole < 2**63 else f"a whole number of {whole.bit_length()} bits"
    if isinstance(value, numbers.Real):
        return float(value)
    if isinstance(value, Stored):
        return plain(value.model_dump(), depth)
    if depth < DEEPEST and isinstance(value, Mapping):
        return {bounded(str(key)): plain(item, depth + 1) for key, item in _first(value.items())}
    if depth < DEEPEST and isinstance(value, list | tuple | set | frozenset):
        return [plain(item, depth + 1) for item in _first(value)]
    if depth < DEEPEST and getattr(value, "ndim", None) == 0 and hasattr(value, "item"):  # a tensor, a bool of numpy's
        return plain(value.item(), depth + 1)
    return f"<{bounded(type(value).__name__)}>"


def scalar(value: Any) -> Any:
    """Returns ``value`` as a plain number, truth or text; the name of its type where it is none."""
    single = plain(value, DEEPEST - 1)
    return single if not isinstance(single, list | dict) else f"<{bounded(type(value).__name__)}>"


def bounded(text: str, longest: int = LONGEST_TEXT) -> str:
    """Returns the text, cut where it is too long, with surrogates written out."""
    cut = text if len(text) <= longest else f"{text[:longest]}… ({len(text)} characters)"
    return cut.encode("utf-8", "backslashreplace").decode()


def first_line(error: BaseException) -> str:
    """Returns one line that says what went wrong, for a record's ``reason``."""
    said = message(error).strip().splitlines()
    name = type(error).__name__
    return bounded(f"{name}: {said[0]}" if said else name, LONGEST_REASON)


def trace(error: BaseException) -> str:
    """Returns the end of the traceback, for a record's ``details``."""
    try:
        return plain("".join(traceback.format_exception(error))[-4000:])
    except Exception as another:  # a message that raises when it is asked for
        return f"no traceback: {type(another).__name__}"


def message(error: BaseException) -> str:
    """Returns an exception's own words."""
    try:
        return str(error)[: 10 * LONGEST_REASON]
    except Exception as another:
        return f"its message cannot be read: {type(another).__name__}"


def _first(values: Any) -> Any:
    return (value for _, value in zip(range(MOST_VALUES), values, strict=False))


def send(connection: Connection, number: int, kind: str, value: Any) -> None:
    """Sends the reply to command ``number``. Raises ValueError for one that is too long, OSError without a parent."""
    line = dumps({"to": number, "by": getpid(), "kind": kind, "value": plain(value)}).encode() + b"\n"
    if len(line) > LARGEST_BYTES:
        raise ValueError(f"a reply of {len(line)} bytes is too long")
    handle, written = connection.fileno(), 0
    while written < len(line):
        written += write(handle, line[written:])


class NoReply(ValueError):
    """Is raised where what arrived is no reply; the message says what it is."""


class Replies:
    """Holds the parent's end: collects what comes until it is a line."""

    def __init__(self, connection: Connection, process: int) -> None:
        self.connection, self.process, self._read = connection, process, bytearray()

    def next(self, number: int) -> tuple[str, Any] | None:
        """Returns the kind and value of the reply to command ``number``; None while it is not there whole. Call it when
        there is something to read. Raises EOFError where nothing more will come, NoReply for what no contender says."""
        try:
            part = os.read(self.connection.fileno(), 1 << 20)
        except OSError:
            part = b""
        if not part:
            raise EOFError
        self._read += part
        line, end, rest = self._read.partition(b"\n")
        if not end:
            if len(self._read) > LARGEST_BYTES:
                raise NoReply(f"it sent more than {LARGEST_BYTES >> 20} MiB that are no reply")
            return None
        self._read = rest
        try:
            reply = json.loads(line)
            to, by, kind, value = reply["to"], reply["by"], reply["kind"], reply["value"]
        except (ValueError, LookupError, TypeError, RecursionError):
            raise NoReply("something else than its replies came through its channel") from None
        if by != self.process:
            raise NoReply("another process spoke for it: a technique must not go on in a process that it forked")
        if to != number:
            raise NoReply("it answered what was not asked")
        return kind, value
