"""Who may import whom among techniques: what two need is in their category's shared folder, or, of several categories,
in techniques/shared. Neither needs a technique."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FILES = sorted((ROOT / "techniques").rglob("*.py"))
EXECUTED = [path for path in FILES if path.name != "peer.py"]  # by a run


def imported_techniques(file: Path) -> set[str]:
    """The modules below ``techniques`` that the file imports, lazily or not; of ``from a import b`` a.b."""
    modules = set()
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {module for module in modules if module.startswith("techniques.")}


@pytest.mark.parametrize("file", EXECUTED, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_technique_imports_from_its_own_folder_and_from_what_is_shared(file: Path) -> None:
    folder = file.relative_to(ROOT).parent.parts
    own, category = ".".join(folder), ".".join(folder[:2])
    allowed = (f"{own}.", f"{category}.shared.", "techniques.shared.")
    assert all(each.startswith(allowed) for each in imported_techniques(file))


def test_every_shared_module_is_named_by_several_techniques_or_by_a_shared_one() -> None:
    users: dict[str, set[str]] = {}
    for file in FILES:
        for each in imported_techniques(file):
            if each.startswith("techniques.shared."):
                users.setdefault(each.split(".")[2], set()).add(str(file.parent.relative_to(ROOT)))
    modules = {path.stem for path in (ROOT / "techniques" / "shared").glob("*.py")} - {"__init__"}
    assert modules == users.keys()
    assert all(len(folders) > 1 or folders == {"techniques/shared"} for folders in users.values()), users
