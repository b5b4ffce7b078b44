"""The shape of the house: what a reader may count on."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
MOST_MODULES = 25
FLOORS: list[set[str]] = [
    {"record", "device", "model"},
    {"meters", "kernels"},
    {"chain", "pipeline"},
    {"loop"},
    {"entries"},
    {"reading", "judge"},
    {"measure"},
    {"guard"},
    {"show"},
    {"cli"},
]
"""Each imports from those above it in this list, and from no neighbour."""
TWICE = {"Call", "Pass", "Moment", "_Block", "Stored"}  # a rename would make evidence stale


def trees(folder: str) -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_bytes()) for path in sorted((ROOT / folder).rglob("*.py"))}


def test_no_class_of_the_suite_is_called_as_another() -> None:
    places = defaultdict(list)
    for path, tree in trees("suite").items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(str(path.relative_to(ROOT)))
    assert {name: where for name, where in places.items() if len(where) > 1 and name not in TWICE} == {}


def test_the_suite_imports_no_technique_and_no_baseline() -> None:
    imported = {
        (str(path.relative_to(ROOT)), node.module)
        for path, tree in trees("suite").items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in ("techniques", "baselines")
    }
    assert imported == set()


def test_a_folder_of_the_suite_can_be_looked_through() -> None:
    folders = [path for path in (ROOT / "suite").rglob("*") if path.is_dir() and path.name != "__pycache__"]
    assert {path.name for path in folders if len([*path.glob("*.py")]) - 1 > MOST_MODULES} == set()


def test_arrows_point_down() -> None:
    """What is imported for its types alone counts, too, but for the loop's, whose parts speak of each other."""
    floor = {name: number for number, names in enumerate(FLOORS) for name in names}
    assert floor.keys() == {path.name for path in (ROOT / "suite").iterdir() if any(path.glob("*.py"))}
    upward = {
        f"{path.relative_to(ROOT)} imports {module}"
        for path, tree in trees("suite").items()
        for node in ast.walk(tree)
        for module in imported_by(node)
        if path.parts[-2] != "suite" and module.count(".") and floor[here(path)] <= floor[room_of(module)]
        if here(path) != room_of(module)
    }
    assert upward == set()


def imported_by(node: ast.AST) -> list[str]:
    """The modules of the suite that a statement imports."""
    if isinstance(node, ast.ImportFrom) and node.module:
        return [node.module] if node.module.startswith("suite.") else []
    return [each.name for each in node.names if each.name.startswith("suite.")] if isinstance(node, ast.Import) else []


def here(path: Path) -> str:
    return path.relative_to(ROOT / "suite").parts[0]


def room_of(module: str) -> str:
    return module.split(".")[1]
