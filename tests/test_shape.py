"""The shape of the house: what a reader may count on."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
MOST_MODULES = 25
LARGER = {"measure", "show"}  # not divided yet
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
    modules = {path: len([*path.glob("*.py")]) - 1 for path in (ROOT / "suite").iterdir() if path.is_dir()}
    assert {path.name for path, count in modules.items() if count > MOST_MODULES} <= LARGER
