"""Every number of an entry stands beside it in words: the paper's with its place, the others with a reason.

Cards say it in ``[published]`` and ``[free]``, shared folders in their ``published.toml``. The values are literals, so
that a default that changes, by whatever hand, differs from them. Read are the fields of the technique's dataclass and
the constants in capitals of its modules; kernels (sizes of tiles), benches, and studies (grids of an experiment, which
its tables show) have constants of another kind.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import techniques
from suite.entries.catalogue import catalogue
from suite.entries.origins import Free, Published, agrees, inherited, shared_origins

ROOT = Path(techniques.__file__).parent
OTHER_KINDS = ("kernel", "peer", "packages", "probes", "moves", "study", "probe", "benches", "__init__")
NUMERIC = re.compile(r"\b(int|float|bool)\b")
ENTRIES = {entry.folder for entry in catalogue().values()}
SHARED = sorted({path.parent for path in ROOT.rglob("*.py")} - ENTRIES)


def is_numeric(value: object) -> bool:
    if isinstance(value, Mapping):
        return bool(value) and all(map(is_numeric, value.values()))
    return bool(value) and all(map(is_numeric, value)) if isinstance(value, tuple) else isinstance(value, int | float)


def constants(folder: Path) -> dict[str, object]:
    """The numeric constants of a folder's modules, by the names that cards have for them."""
    found: dict[str, object] = {}
    for path in sorted(folder.glob("*.py")):
        if path.stem.endswith(OTHER_KINDS):
            continue
        module = importlib.import_module(".".join(path.relative_to(ROOT.parent).with_suffix("").parts))
        for name in assigned(path):
            if is_numeric(value := getattr(module, name, None)):
                found[name if path.stem == "technique" else f"{path.stem}.{name}"] = value
    return found


def assigned(path: Path) -> Iterator[str]:
    """The names in capitals that the top level of a file assigns to."""
    for statement in ast.parse(path.read_text("utf-8")).body:
        targets = getattr(statement, "targets", [getattr(statement, "target", None)])
        for target in filter(None, targets):
            yield from (node.id for node in ast.walk(target) if isinstance(node, ast.Name) and node.id.isupper())


def settings(technique: type) -> dict[str, object]:
    """The fields that a command may set and that have a default, with these."""
    return {
        field.name: field.default
        for field in dataclasses.fields(technique)
        if field.init and field.default is not dataclasses.MISSING
    }


def numeric(technique: type) -> set[str]:
    kinds = {field.name: str(field.type) for field in dataclasses.fields(technique)}
    return {name for name, default in settings(technique).items() if NUMERIC.search(kinds[name]) or is_numeric(default)}


def differing(stated: Mapping[str, Published | Free], values: Mapping[str, object]) -> list[str]:
    return [
        f"{name} is {values[name]}, its card says {said.value}"
        for name, said in stated.items()
        if name in values and not agrees(said.value, values[name])
    ]


@pytest.mark.parametrize("id", catalogue())
def test_each_number_is_published_or_free(id: str) -> None:
    entry = catalogue()[id]
    technique, stated = entry.technique, entry.card.stated
    values = settings(technique) | constants(entry.folder)
    assert not differing({**inherited(technique), **stated}, values)
    silent = numeric(technique) | constants(entry.folder).keys()
    silent -= inherited(technique).keys() | stated.keys()
    assert not silent, f"{id}: say in [published] where the paper has it, or in [free] why it is so: {sorted(silent)}"
    unknown = stated.keys() - values.keys()
    assert not unknown, f"{id}: no field and no constant of its modules: {sorted(unknown)}"


@pytest.mark.parametrize("folder", SHARED, ids=lambda folder: str(folder.relative_to(ROOT.parent)))
def test_each_number_that_entries_share_is_published_or_free(folder: Path) -> None:
    stated, values = shared_origins(folder).stated, constants(folder)
    handed_down = fields_handed_down(folder)
    values |= handed_down
    assert not differing(stated, values)
    assert values.keys() == stated.keys()


def fields_handed_down(folder: Path) -> dict[str, object]:
    """The numeric fields that classes of a folder hand down to techniques, as ``Class.field``."""
    found: dict[str, object] = {}
    for entry in catalogue().values():
        technique = entry.technique
        for base in technique.mro()[1:-1]:
            if Path(inspect.getfile(base)).parent == folder and dataclasses.is_dataclass(base):
                own = numeric(base) & vars(base).get("__annotations__", {}).keys()
                found |= {f"{base.__name__}.{name}": settings(base)[name] for name in own}
    return found


@pytest.mark.parametrize(
    ("said", "value", "same"),
    [
        (8, 8, True),
        (8, 16, False),
        (16, 16.0, True),
        ("5/90", 5 / 90, True),
        ("1/11", 0.2 / 2.2, True),
        ("5/90", 5 / 91, False),
        (True, True, True),
        (True, 1, False),
        (None, None, True),
        (None, 0, False),
        (0, None, False),
        ((0.25, 0.5), (0.25, 0.5), True),
        ((0.25,), (0.25, 0.5), False),
        ({"L1": 4}, {"L1": 4}, True),
        ({"L1": 4}, {"L1": 2}, False),
        ("paper", "paper", True),
        ("paper", "timm", False),
        (math.inf, math.inf, True),
        (math.nan, math.nan, True),
    ],
)
def test_what_a_card_says_is_compared_literally(said: object, value: object, same: bool) -> None:
    assert agrees(said, value) is same
