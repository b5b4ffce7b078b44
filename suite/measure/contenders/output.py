"""Handles what a child prints: read as it comes, cut where it is too long, shown without what would command a terminal.

A technique may print a gigabyte, or escape sequences that a terminal obeys. So a child's standard output and error are
a pipe. The first part of what comes is passed on to standard error, filtered; of all of it the tail is kept, for a
record's details. Nobody waits for whoever prints: what is beyond the limit is read, counted and dropped.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any

from suite.record.text import lines

SHOWN_BYTES = 20_000  # of a child, passed on to standard error
TAIL_BYTES = 2_000  # kept for a record
PART_BYTES = 1 << 16
LAST_S = 1.0  # for what is still in the pipe when all who print are gone
HEARD_S = 0.1  # for what was printed just now


class Output:
    """Holds the parent's end of what one child prints."""

    def __init__(self, printed: Connection) -> None:
        self._printed = printed
        self._over, self._wake = os.pipe()
        self._shown = self._dropped = 0
        self._tail = bytearray()
        self._thread = threading.Thread(target=self._read, name="output", daemon=True)
        self._thread.start()

    def tail(self) -> str:
        """Returns the end of what it printed so far, as a terminal may show it."""
        self._thread.join(HEARD_S)
        return lines(bytes(self._tail).decode("utf-8", "replace")).strip()[-TAIL_BYTES:]

    def close(self) -> None:
        """Reads what is left, when the child has ended."""
        os.close(self._wake)
        self._thread.join(2 * LAST_S)

    def _read(self) -> None:
        end_s = math.inf
        while time.monotonic() < end_s:
            ready = wait([self._printed] if end_s < math.inf else [self._printed, self._over], LAST_S)
            if self._printed in ready:
                if not (part := os.read(self._printed.fileno(), PART_BYTES)):
                    break
                self._take(part)
            elif ready or end_s < math.inf:
                break
            if self._over in ready:
                end_s = time.monotonic() + LAST_S
        if self._dropped:
            _show(f"\n... {self._dropped} bytes more that it printed are left out\n")
        self._printed.close()
        os.close(self._over)

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


def printing_to(output: Connection, target: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    """Calls in the child ``target(*arguments)``, whose prints go into the pipe."""
    os.dup2(output.fileno(), 1)
    os.dup2(output.fileno(), 2)
    output.close()
    target(*arguments)
