"""Handles what a child prints: read as it comes, cut where it is too long, shown without what would command a terminal.

A technique may print a gigabyte, or escape sequences that a terminal obeys. So a child's standard output and error are
a pipe. The first part of what comes is passed on to standard error, filtered; of all of it the tail is kept, for a
record's details. Nobody waits for whoever prints: what is beyond the limit is read, counted and dropped.
"""

from __future__ import annotations

import os
import sys
import threading
from multiprocessing.connection import Connection

from suite.record.text import lines

SHOWN_BYTES = 20_000  # of a child, passed on to standard error
TAIL_BYTES = 2_000  # kept for a record
PART_BYTES = 1 << 16
LAST_S = 2.0  # for what is still in the pipe when all that print are gone
HEARD_S = 0.1  # for what was printed just now


class Output:
    """Holds the parent's end of what one child prints."""

    def __init__(self, printed: Connection) -> None:
        self._printed = printed
        self._shown = self._dropped = 0
        self._tail = bytearray()
        self._thread = threading.Thread(target=self._read, name="output", daemon=True)
        self._thread.start()

    def tail(self) -> str:
        """Returns the end of what it printed so far, as a terminal may show it."""
        self._thread.join(HEARD_S)
        return lines(bytes(self._tail).decode("utf-8", "replace")).strip()[-TAIL_BYTES:]

    def close(self) -> None:
        """Reads what is left, when all that print have ended."""
        self._thread.join(LAST_S)

    def _read(self) -> None:
        with self._printed:
            while part := os.read(self._printed.fileno(), PART_BYTES):
                self._take(part)
        if self._dropped:
            _show(f"\n... {self._dropped} bytes more that it printed are left out\n")

    def _take(self, part: bytes) -> None:
        self._tail += part
        del self._tail[:-TAIL_BYTES]
        room = max(0, SHOWN_BYTES - self._shown)
        if room:
            _show(lines(part[:room].decode("utf-8", "replace")))
        self._shown += len(part[:room])
        self._dropped += len(part[room:])


def _show(text: str) -> None:
    """Writes on standard error, in one piece where there is one."""
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except (OSError, ValueError):  # it is closed, or full
        return
