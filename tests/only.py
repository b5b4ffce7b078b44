"""Which tests are one entry's: those in its own files, those of the shared modules that it imports, and the cases of
other tests that are named by it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from suite.entries.catalogue import UnknownId, catalogue, lookup

FOLDER = Path(__file__).parent / "techniques"
ROOT = FOLDER.parents[1]
ROOMS = ("chain", "pipeline", "kernels")
"""Rooms of the suite that techniques are made with, and the loop is not; each has a folder of tests by its name."""
FOLLOWED = (("techniques",), ("tests",), *(("suite", room) for room in ROOMS))
"""Packages whose modules are looked into for what they import."""


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


@cache
def imported(file: Path) -> frozenset[Path]:
    """The modules that a file imports, wherever it does: of techniques, of what these are made with, and of tests."""
    return frozenset(filter(None, map(_module_of, _names_in(file))))


def _names_in(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _module_of(name: str) -> Path | None:
    """The file of :data:`FOLLOWED` that a dotted name is, or is defined in."""
    parts = name.split(".")
    if not any(tuple(parts[: len(package)]) == package for package in FOLLOWED):
        return None
    paths = (ROOT.joinpath(*parts[:end]).with_suffix(".py") for end in range(len(parts), 1, -1))
    return next(filter(Path.is_file, paths), None)


def reached(files: Iterable[Path]) -> frozenset[Path]:
    """Files, and all that they import, themselves or through others."""
    waiting = [*files]
    found = {*waiting}
    while waiting:
        new = imported(waiting.pop()) - found
        found |= new
        waiting += new
    return frozenset(found)


@cache
def shared_by(entry: str) -> frozenset[Path]:
    """The modules outside of all entries' folders that an entry imports, itself or through others."""
    folders = {each.folder for each in catalogue().values()}
    found = reached(catalogue()[entry].folder.rglob("*.py"))
    return frozenset(file for file in found if folders.isdisjoint(file.parents))


@cache
def tested_by(file: Path) -> frozenset[Path]:
    """The shared modules that a file of tests imports, itself or by what tests share."""
    helpers = {file}
    while new := {each for one in helpers for each in imported(one) if FOLDER.parent in each.parents} - helpers:
        helpers |= new
    return frozenset(each for one in helpers for each in imported(one))


def is_of_shared(entry: str, file: Path) -> bool:
    """Whether ``file`` tests what the entry shares with others: it is no entry's own, stands beside a category's or in
    a room's folder, and imports a module of theirs that the entry imports too."""
    in_room = file.parent.parent == FOLDER.parent and file.parent.name in ROOMS
    if (not in_room and file.parent.parent != FOLDER) or entry_of(file):
        return False
    here = ROOT / "suite" / file.parent.name if in_room else ROOT / "techniques"
    return any(here in module.parents for module in shared_by(entry) & tested_by(file))


def is_of(entry: str, file: Path, test: str) -> bool:
    """Whether a test (``test_it[lion-gpt]``) is the entry's."""
    case = test.partition("[")[2].rstrip("]")
    return entry_of(file) == entry or is_of_shared(entry, file) or entry in re.split("[-/]", case)
