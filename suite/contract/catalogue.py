"""Finds techniques: every folder with a card below the packages of the entry-point group ``leantrain.techniques``.

The project's own catalogue comes through that group too, so a plug-in is a package of the same shape:
``<package>/<category>/<id>/{card.toml, technique.py}``.
"""

from __future__ import annotations

import ast
import difflib
import importlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from functools import cache, cached_property
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

from suite.contract.card import Card, read_card
from suite.contract.technique import Technique
from suite.record.code import hash_files
from suite.record.job import StackError

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
            raise StackError(
                f"{self.module}: define exactly one @dataclass subclass of Technique, found {len(classes)}"
            )
        return classes[0]

    @cached_property
    def source_sha256(self) -> str:
        """Hash of the code that a run executes, imports from neighbours included. Records of another hash are stale."""
        own = [path for path in self.folder.glob("*.py") if path.name not in NOT_EXECUTED]
        return hash_files(own + imported(own, self.module.split(".")[0]), self.folder.glob("*.cu"))


NOT_EXECUTED = ("study.py", "peer.py")  # by a run


def package_folder(package: str) -> Path:
    """The folder of an installed package, without importing it."""
    return Path(next(iter(find_spec(package).submodule_search_locations)))  # type: ignore[union-attr,arg-type]


def imported(files: Sequence[Path], package: str) -> list[Path]:
    """The files of ``package`` that ``files`` import, and those that these import; without ``files`` themselves."""
    root = package_folder(package)
    reached: dict[Path, None] = dict.fromkeys(files)
    waiting = list(files)
    while waiting:
        for name in _imports(waiting.pop()):
            if name.split(".")[0] == package:
                path = root.joinpath(*name.split(".")[1:])
                for candidate in (path.with_suffix(".py"), path / "__init__.py"):
                    if candidate not in reached and candidate.is_file():
                        reached[candidate] = None
                        waiting.append(candidate)
    return [path for path in reached if path not in files]


def _imports(file: Path) -> Iterator[str]:
    """The absolute names that a source file imports; of ``from a import b`` both a and a.b, since b may be a module."""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):  # it will be named where it is imported
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


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
