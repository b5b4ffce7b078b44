"""Which tests are one entry's: those in its own file, and the cases of shared tests that are named by it."""

from __future__ import annotations

import re
from pathlib import Path

from suite.entries.catalogue import UnknownId, catalogue, lookup

FOLDER = Path(__file__).parent / "techniques"


def problem(entry: str) -> str:
    """Why there is no such entry, with the nearest names; empty where there is one."""
    try:
        lookup("technique", entry, catalogue())
    except UnknownId as error:
        return str(error)
    return ""


def entry_of(file: Path) -> str | None:
    """The entry whose own tests ``file`` holds: ``techniques/<category>/test_<id>.py`` or ``test_<id>_<more>.py``."""
    if file.suffix != ".py" or file.parent.parent != FOLDER:
        return None
    return max((name for name in catalogue() if f"{file.stem}_".startswith(f"test_{name}_")), key=len, default=None)


def is_of(entry: str, file: Path, test: str) -> bool:
    """Whether a test (``test_it[lion-gpt]``) is the entry's."""
    case = test.partition("[")[2].rstrip("]")
    return entry_of(file) == entry or entry in re.split("[-/]", case)
