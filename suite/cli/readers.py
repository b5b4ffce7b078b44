"""Whoever reads a command's output may leave early, as ``head`` does: the rest is dropped, and the command goes on.

A run that is measured is worth more than the words about it, and its exit code says what it would have said. Where a
stream is closed from the start, nobody reads it. Where the words were wanted and are lost (a full disk), the command
says so at its end, and no longer ends as fine.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO


class MayLeave(io.TextIOWrapper):
    """Wraps a stream of text that goes nowhere once nobody reads it.

    What is below it is C: a signal's handler runs when all of a text is written, never between its being written and
    its being known as such, which would write it twice. ``lost``: why something could not be written, though somebody
    reads.
    """

    lost: OSError | None = None

    def write(self, text: str) -> int:
        """Writes the text."""
        try:
            return super().write(text)
        except OSError as error:
            self._to_nowhere(error)
            return len(text)

    def flush(self) -> None:
        """Writes what waits."""
        try:
            super().flush()
        except OSError as error:
            self._to_nowhere(error)

    def _to_nowhere(self, error: OSError) -> None:
        self.lost = self.lost if isinstance(error, BrokenPipeError) else error
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.fileno())
        os.close(nowhere)
        super().flush()  # what waits still


def _open_closed_streams() -> None:
    """Has standard streams that were closed before the command began lead nowhere: else the next file that is opened
    would take their place."""
    while (nowhere := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(nowhere, True)
    os.close(nowhere)
    sys.stdin = sys.stdin or open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = sys.stdout or open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115


@contextmanager
def output_whole(code: int) -> Iterator[None]:
    """Ends the process with ``code``, and one sentence, where it would end as fine and standard output was lost."""
    ended: SystemExit | None = None
    try:
        yield
    except SystemExit as end:
        ended = end
    sys.stdout.flush()
    lost = getattr(sys.stdout, "lost", None)
    if lost and not (ended and ended.code):
        print(f"leantrain: standard output cannot be written: {lost.strerror}", file=sys.stderr)
        raise SystemExit(code)
    if ended:
        raise ended


def let_readers_leave() -> None:
    """Has standard output and error end quietly where their readers do."""
    sys.stdout, sys.stderr = _with_leave(sys.stdout), _with_leave(sys.stderr, line_buffering=True)


def _with_leave(stream: TextIO, line_buffering: bool = False) -> TextIO:
    stream.flush()
    raw = io.FileIO(stream.fileno(), "w", closefd=False)
    return MayLeave(
        io.BufferedWriter(raw),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=line_buffering or stream.isatty(),
    )


_open_closed_streams()  # before anything asks whether they are terminals
