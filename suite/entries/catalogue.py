"""Finds techniques: every folder with a card below the packages of the entry-point group ``leantrain.techniques``.

The project's own catalogue comes through that group too, so a plug-in is a package of the same shape:
``<package>/<category>/<id>/{card.toml, technique.py}``.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, is_dataclass
from functools import cache, cached_property
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

from suite.entries.card import Card, read_card
from suite.loop.technique import Technique
from suite.record.job import BASELINE, Spelling, StackError, Task

T = TypeVar("T")


class UnknownId(LookupError):
    """Is raised where there is no such technique, baseline or other named thing; the message has the nearest names."""


FEW = 20  # names that one reads
NEIGHBOURS = 5
ALIKE = 0.4  # of difflib's ratio: names with less in common are no misspellings of each other
AS_ALIKE = 0.75  # of the nearest's: what is less alike was not meant


def lookup(kind: str, name: str, among: Mapping[str, T]) -> T:
    """Returns ``among[name]``, or raises UnknownId with the nearest names, or all where none is near and they are
    few."""
    if name in among:
        return among[name]
    near = _near(name, among)
    hint = f"did you mean {' or '.join(near)}?"
    if not near and len(among) <= FEW:
        hint = f"there are: {', '.join(sorted(among)) or 'none'}"
    elif not near:
        hint = f"the nearest of {len(among)}: {', '.join(_close(name, among, 0.0))}; leantrain list shows all"
    raise UnknownId(f"no {kind} is called {name!r}; {hint}")


def _near(name: str, among: Iterable[str]) -> list[str]:
    """Returns the names of which ``name`` may be a misspelling, the nearest first."""
    near = _close(name, among, ALIKE)
    if not near:
        return []
    most = difflib.SequenceMatcher(None, near[0].casefold(), name.casefold()).ratio()
    return _close(name, near, AS_ALIKE * most)


def _close(name: str, among: Iterable[str], cutoff: float) -> list[str]:
    """Returns the few names that are alike, the nearest first; capitals make no difference."""
    folded = {known.casefold(): known for known in among}
    near = difflib.get_close_matches(name.casefold(), folded, n=NEIGHBOURS, cutoff=cutoff)
    return [folded[alike] for alike in near]


@dataclass(frozen=True)
class Entry:
    """Describes one technique's folder. ``module`` is the dotted name of its technique.py."""

    id: str
    folder: Path
    module: str

    @cached_property
    def card(self) -> Card:
        return read_card(self.folder / "card.toml")

    @cached_property
    def technique(self) -> type[Technique]:
        """Returns the folder's one Technique class. Raises StackError if the module cannot be imported or has another
        shape."""
        try:
            module = importlib.import_module(self.module)
        except Exception as error:  # whatever a plug-in's module does: one bad entry is named, not traced
            why = f"{type(error).__name__}: {error}"
            raise StackError(f"{self.id} cannot be imported: {why}; mend {self.folder}") from error
        classes = [
            var
            for var in vars(module).values()
            if isinstance(var, type) and issubclass(var, Technique) and var.__module__ == self.module
        ]
        if len(classes) != 1 or not is_dataclass(classes[0]):
            raise StackError(
                f"{self.module}: define exactly one @dataclass subclass of Technique, found {len(classes)}"
            )
        return classes[0]

    @property
    def instruments(self) -> str | None:
        """Returns the dotted name of the folder's probes.py (:mod:`suite.reading.recording`); None where there is
        none."""
        return self.module.removesuffix("technique") + "probes" if (self.folder / "probes.py").is_file() else None


@cache
def catalogue() -> dict[str, Entry]:
    """Returns all entries by id. Raises ValueError if two packages bring the same id."""
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


def reference_of(stack: str) -> tuple[str, Task]:
    """Returns the reference and the task that the stack's cards ask for; of several, the one that is not the default.

    Raises UnknownId.
    """
    entries = catalogue()
    cards = [lookup("technique", name, entries).card for name in Spelling(stack).names]
    reference = next((card.reference for card in cards if card.reference != BASELINE), BASELINE)
    return reference, "adapt" if any(card.task == "adapt" for card in cards) else "pretrain"


def tunes(stack: str) -> bool:
    """Tells whether a card of the stack asks for a tuned learning rate; not where a technique is not installed."""
    entries = catalogue()
    return any("rate" in entries[name].card.tune for name in Spelling(stack).names if name in entries)


def activity_probes(stack: str) -> tuple[str, ...]:
    """Returns the probes, by the names under which runs report them, that show whether the mechanism of a stack of one
    technique acts; none of several, where the others may."""
    entries = catalogue()
    names = Spelling(stack).names
    if len(names) != 1 or names[0] not in entries:
        return ()
    probes = (claim.needs.active.removeprefix("probe.") for claim in entries[names[0]].card.claim if claim.needs.active)
    return tuple(dict.fromkeys(name if name.startswith(f"{names[0]}.") else f"{names[0]}.{name}" for name in probes))
