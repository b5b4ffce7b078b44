"""Sets a limit on the processor seconds of some work, which ends it where it stands, and says where that was.

Processor time and not the clock's: what is counted is exact, so whether it is counted must not depend on what else the
machine does. Only what computes for ever comes here; what waits for ever is the parent's to end.
"""

from __future__ import annotations

import signal
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import torch

HARNESS, STANDARD = Path(__file__).parents[2], Path(traceback.__file__).parent


class OutOfTime(RuntimeError):
    """Is raised where the work takes longer; the message has the limit, and the line that ran when it was over."""


class _Over(BaseException):
    """Is no Exception: what runs may try something else after one of those, for as long again."""


@contextmanager
def processor_limit(limit_s: float) -> Iterator[None]:
    """Ends what runs meanwhile in the main thread once this process has used ``limit_s`` seconds of processors more.

    Raises OutOfTime, with a sentence that has the line which ran then.
    """

    def over(number: int, frame: FrameType | None) -> None:
        raise _Over

    before: Any = signal.signal(signal.SIGPROF, over)
    signal.setitimer(signal.ITIMER_PROF, limit_s)
    try:
        yield
    except _Over as error:
        at = line_of(error.__traceback__)
        raise OutOfTime(f"it takes more than {limit_s:g} s of a core; when these were over it ran {at}") from None
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def line_of(trace: TracebackType | None) -> str:
    """Tells where something was raised: the last line that is a technique's or a model's, or else the last of the
    harness, as ``folder/folder/file.py, line 3: x = y()``."""
    frames = traceback.extract_tb(trace)
    outside = [frame for frame in frames if not _is_of_library(Path(frame.filename))]
    own = [frame for frame in outside if HARNESS not in Path(frame.filename).parents]
    last = (own or outside or frames)[-1]
    return f"{'/'.join(Path(last.filename).parts[-3:])}, line {last.lineno}: {last.line}"


def _is_of_library(path: Path) -> bool:
    """Tells whether it is torch's, or of Python's own library, which may have installed packages in a folder of its
    own."""
    own = STANDARD in path.parents and not {"site-packages", "dist-packages"} & {*path.parts}
    return own or Path(torch.__file__).parent in path.parents
