"""Finds techniques: every folder with a card below the packages of the entry-point group ``leantrain.techniques``.

The project's own catalogue comes through that group too, so a plug-in is a package of the same shape:
``<package>/<category>/<id>/{card.toml, technique.py}``.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, is_dataclass
from functools import cache, cached_property
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

from suite.card import Card, read_card
from suite.stack import Stack, StackError, configured, split
from suite.technique import Technique

T = TypeVar("T")


class UnknownId(LookupError):
    """No such technique, baseline or other named thing; the message has the nearest names."""


def lookup(kind: str, name: str, among: Mapping[str, T]) -> T:
    """``among[name]``, or UnknownId with the nearest names."""
    if name in among:
        return among[name]
    near = difflib.get_close_matches(name, among, n=3, cutoff=0.4)
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are: {', '.join(sorted(among)) or 'none'}"
    raise UnknownId(f"no {kind} is called {name!r}; {hint}")


@dataclass(frozen=True)
class Entry:
    """One technique's folder. ``module`` is the dotted name of its technique.py."""

    id: str
    folder: Path
    module: str

    @cached_property
    def card(self) -> Card:
        return read_card(self.folder / "card.toml")

    @cached_property
    def technique(self) -> type[Technique]:
        """The folder's one Technique class. Raises StackError if the module cannot be imported or has another shape."""
        try:
            module = importlib.import_module(self.module)
        except Exception as error:  # whatever a plug-in's module does: one bad entry is named, not traced
            why = f"{type(error).__name__}: {error}"
            raise StackError(f"{self.id} cannot be imported: {why}; mend {self.folder}") from error
        classes = [
            each
            for each in vars(module).values()
            if isinstance(each, type) and issubclass(each, Technique) and each.__module__ == self.module
        ]
        if len(classes) != 1 or not is_dataclass(classes[0]):
            found = f"found {len(classes)}"
            raise StackError(f"{self.module}: define exactly one @dataclass subclass of Technique, {found}")
        return classes[0]

    @cached_property
    def source_sha256(self) -> str:
        """Hash of the code that a run of it executes: records of another hash are stale."""
        apart = ("study.py", "peer.py")
        return hash_files((p for p in self.folder.glob("*.py") if p.name not in apart), self.folder.glob("*.cu"))


def hash_files(*groups: Iterable[Path]) -> str:
    """SHA-256 over names and contents of files, in the order of their names."""
    digest = hashlib.sha256()
    for path in sorted(path for group in groups for path in group):
        content = path.read_bytes()
        digest.update(f"{path.name}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


@cache
def catalogue() -> dict[str, Entry]:
    """All entries by id. Raises ValueError if two packages bring the same id."""
    entries: dict[str, Entry] = {}
    for point in entry_points(group="leantrain.techniques"):
        spec = find_spec(point.value)
        for root in map(Path, (spec.submodule_search_locations or []) if spec else []):
            for card in sorted(root.glob("*/*/card.toml")):
                folder = card.parent
                module = f"{point.value}.{folder.parent.name}.{folder.name}.technique"
                entry = Entry(folder.name, folder, module)
                if folder.name in entries and entries[folder.name].folder != folder:
                    raise ValueError(
                        f"two techniques are called {folder.name}: {entries[folder.name].folder}, {folder}"
                    )
                entries[folder.name] = entry
    return dict(sorted(entries.items()))


def build(stack: str) -> Stack:
    """The stack written as ``a+b:x=1``; ``""`` and ``baseline`` are the empty one.

    Raises UnknownId and StackError, both with one clear sentence.
    """
    if stack in ("", "baseline"):
        return Stack({})
    parts = split(stack)
    if not parts:
        raise StackError(f"{stack!r} names no technique")
    entries = catalogue()
    return Stack(
        {name: configured(lookup("technique", name, entries).technique, name, settings) for name, settings in parts}
    )
