"""Hears what a technique's code asks of the interpreter, by CPython's audit events, which no Python code takes back.

Heard from the moment before a technique's code is loaded until its run has ended, and held against the one whose frame
asked, where libraries' helpers between are passed over. What torch, Triton or the harness ask by themselves is theirs:
compilers read caches, and classes are made by looking at frames.

    frames and objects    sys._getframe, sys._current_frames, gc.get_objects, gc.get_referrers: what the harness has is
                          no part of what a technique gets
    code                  a function's code or defaults replaced, unless it is the technique's own; a profiling, tracing
                          or monitoring function set
    files                 one read that this run did not write, and that was there before: what an earlier run left
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Collection
from types import FrameType, FunctionType
from typing import Any

from suite.entries.module_files import package_of
from suite.measure.rules.broken import RuleBroken

FRAMES = "what calls a technique is not looked at"
LOOKS = frozenset(
    {"sys._getframe", "sys._current_frames", "sys._current_exceptions", "gc.get_objects", "gc.get_referrers"}
)
SETS = frozenset({"sys.setprofile", "sys.settrace", "sys.monitoring.register_callback"})
PARTS_OF_CODE = frozenset({"__code__", "__defaults__", "__kwdefaults__"})
HELPERS = frozenset(
    {
        "inspect",
        "traceback",
        "threading",
        "io",
        "os",
        "posixpath",
        "genericpath",
        "pathlib",
        "zipfile",
        "pickle",
        "json",
        "codecs",
        "tempfile",
        "shutil",
        "mmap",
        "gzip",
        "numpy",
        "safetensors",
        "torch.serialization",
        "torch.storage",
        "torch._utils",
        "torch._weights_only_unpickler",
        "contextlib",
    }
)
SOURCES = (".py", ".pyc", ".so", ".toml", ".cu", ".h")
SYSTEM = ("/proc/", "/sys/", "/dev/", "/etc/")
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class Audit:
    """Notes the first thing that code of ``packages`` (as :func:`package_of` names them) asked and may not."""

    def __init__(self, packages: Collection[str]) -> None:
        self._packages, self._broken = frozenset(packages), list[tuple[str, str]]()
        self._began_s = time.time()
        self._written: set[str] = set()
        self._hears, self._busy = True, False
        frame_of, stat, real = sys._getframe, os.stat, os.path.realpath  # as they were before a technique changed them
        sys.addaudithook(lambda event, given: self._hear(event, given, frame_of, stat, real))

    def end(self) -> None:
        """Hears no more."""
        self._hears = False

    def check(self) -> None:
        """Raises RuleBroken for the first that was noted."""
        if self._broken:
            raise RuleBroken(*self._broken[0])

    def _hear(
        self,
        event: str,
        given: tuple[Any, ...],
        frame_of: Callable[..., FrameType],
        stat: Any,
        real: Callable[[str], str],
    ) -> None:
        if not self._hears or self._busy or event not in HEARD:
            return
        self._busy = True
        try:
            if broken := self._judged(event, given, frame_of(2), stat, real):
                self._broken.append(broken)
        except (OSError, ValueError, TypeError):  # a file that is gone, a path that is none
            return
        finally:
            self._busy = False

    def _judged(
        self, event: str, given: tuple[Any, ...], frame: FrameType | None, stat: Any, real: Callable[[str], str]
    ) -> tuple[str, str] | None:
        from suite.measure.rules.held_out import UNTRAINED
        from suite.measure.rules.surroundings import DEFINITIONS, SETTINGS

        if event == "open":
            path, flags = given[0], given[2] or 0
            if not isinstance(path, (str, bytes)):
                return None
            path = real(os.fsdecode(path))
            if flags & WRITES:
                self._written.add(path)
            elif not self._spared(path) and self._asks(frame) and stat(path).st_mtime < self._began_s:
                return UNTRAINED, f"it read {os.path.basename(path)}, which this run did not write"
            return None
        if event == "object.__setattr__":
            thing, name = given[0], given[1]
            own = isinstance(thing, FunctionType) and self._is_own(thing.__module__)
            if name in PARTS_OF_CODE and not own and self._asks(frame):
                return DEFINITIONS, f"{getattr(thing, '__qualname__', thing)}.{name} was replaced"
            return None
        if not self._asks(frame):
            return None
        return (SETTINGS, f"it called {event}") if event in SETS else (FRAMES, f"it called {event}")

    def _spared(self, path: str) -> bool:
        return (
            path in self._written or path.endswith(SOURCES) or path.startswith((*SYSTEM, sys.prefix, sys.base_prefix))
        )

    def _is_own(self, module: str | None) -> bool:
        return package_of(module or "") in self._packages

    def _asks(self, frame: FrameType | None) -> bool:
        """Tells whether a technique's frame asks, by itself or through helpers."""
        while frame is not None:
            module = frame.f_globals.get("__name__") or ""
            if module not in HELPERS and module.partition(".")[0] not in HELPERS:
                return self._is_own(module)
            frame = frame.f_back
        return False


HEARD = LOOKS | SETS | {"open", "object.__setattr__"}
