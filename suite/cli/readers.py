"""Whoever reads a command's output may leave early, as ``head`` does: the rest is dropped, and the command goes on.

A run that is measured is worth more than the words about it, and its exit code says what it would have said.
"""

from __future__ import annotations

import io
import os
import sys
from typing import TextIO


class MayLeave(io.TextIOWrapper):
    """A stream of text from which on nothing goes anywhere once nobody reads it.

    What is below it is C: a signal's handler runs when all of a text is written, never between its being written and
    its being known as such, which would write it twice.
    """

    def write(self, text: str) -> int:
        """Writes the text."""
        try:
            return super().write(text)
        except BrokenPipeError:
            self._to_nowhere()
            return len(text)

    def flush(self) -> None:
        """Writes what waits."""
        try:
            super().flush()
        except BrokenPipeError:
            self._to_nowhere()

    def _to_nowhere(self) -> None:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.fileno())
        os.close(nowhere)
        super().flush()  # what waits still


def let_readers_leave() -> None:
    """Has standard output and error end quietly where their readers do."""
    sys.stdout, sys.stderr = _with_leave(sys.stdout), _with_leave(sys.stderr, line_buffering=True)


def _with_leave(stream: TextIO, line_buffering: bool = False) -> TextIO:
    if stream is None:  # closed before the command began
        return stream
    stream.flush()
    raw = io.FileIO(stream.fileno(), "w", closefd=False)
    return MayLeave(
        io.BufferedWriter(raw), encoding=stream.encoding, errors=stream.errors,
        line_buffering=line_buffering or stream.isatty(),
    )  # fmt: skip
