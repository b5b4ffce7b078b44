"""Who may import whom among techniques. What several need stands in the lowest folder that they have in common:
``techniques/<category>/shared`` or ``techniques/shared``. Neither needs a technique."""

from __future__ import annotations

import ast
from collections import Counter
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[3]
TECHNIQUES = ROOT / "techniques"
FILES = sorted(TECHNIQUES.rglob("*.py"))
EXECUTED = [path for path in FILES if path.name != "peer.py"]  # by a run
SHARED = [path for path in FILES if "shared" in path.parts and path.name != "__init__.py"]
MOST_MODULES = 25  # of a folder that is still looked through


@cache
def imported_techniques(file: Path) -> frozenset[str]:
    """The modules below ``techniques`` that the file imports, lazily or not; of ``from a import b`` a.b."""
    modules = set()
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules |= {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(module for module in modules if module.startswith("techniques."))


def module_of(file: Path) -> str:
    return ".".join(file.relative_to(ROOT).with_suffix("").parts)


@cache
def direct_users(file: Path) -> frozenset[Path]:
    name = f"{module_of(file)}."
    return frozenset(
        each for each in FILES if each != file and any(f"{one}.".startswith(name) for one in imported_techniques(each))
    )


def users(file: Path) -> set[Path]:
    """The files that import a module, and those that import one of these that is shared."""
    seen, waiting = set[Path](), [file]
    while waiting:
        new = direct_users(waiting.pop()) - seen
        seen |= new
        waiting += new & set(SHARED)
    return seen


def test_a_technique_imports_from_its_own_folder_and_from_what_is_shared() -> None:
    wrong = set()
    for file in EXECUTED:
        own = module_of(file.parent)
        category = ".".join(own.split(".")[:2])
        allowed = (f"{own}.", f"{category}.shared.", "techniques.shared.")
        wrong |= {f"{file}: {each}" for each in imported_techniques(file) if not each.startswith(allowed)}
    assert not wrong


def test_what_is_shared_stands_in_the_lowest_folder_of_its_users() -> None:
    for file in SHARED:
        folders = {each.parent for each in users(file) if each not in SHARED}
        categories = {each.relative_to(TECHNIQUES).parts[0] for each in folders}
        home = file.relative_to(TECHNIQUES).parts[0]
        assert len(folders) > 1, f"{folders} alone need {file}: move it there"
        assert (len(categories) > 1) == (home == "shared"), f"{categories} need {file}"


def test_a_shared_folder_can_be_looked_through() -> None:
    modules = Counter(each.parent for each in SHARED)
    assert max(modules.values()) <= MOST_MODULES, modules.most_common(1)
