"""Whoever reads a command's output may leave early, as ``head`` does: the rest is dropped, and the command goes on.

A run that is measured is worth more than the words about it, and its exit code says what it would have said.
"""

from __future__ import annotations

import io
import os
import sys
from typing import TextIO


class MayLeave(io.FileIO):
    """A file descriptor for writing, from which on nothing goes anywhere once nobody reads it."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor, "w", closefd=False)

    def write(self, content: bytes) -> int:  # type: ignore[override]
        """Writes a part of the content, as files do."""
        try:
            return super().write(content)
        except BrokenPipeError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            return len(content)


def let_readers_leave() -> None:
    """Has standard output and error end quietly where their readers do."""
    sys.stdout, sys.stderr = _with_leave(sys.stdout), _with_leave(sys.stderr, line_buffering=True)


def _with_leave(stream: TextIO, line_buffering: bool = False) -> TextIO:
    if stream is None:  # closed before the command began
        return stream
    stream.flush()
    raw: io.RawIOBase = MayLeave(stream.fileno())
    return io.TextIOWrapper(
        io.BufferedWriter(raw), encoding=stream.encoding, errors=stream.errors,
        line_buffering=line_buffering or stream.isatty(),
    )  # fmt: skip
