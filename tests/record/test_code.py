"""A hash changes if and only if what runs changes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from suite.contract import sources
from suite.contract.catalogue import catalogue
from suite.contract.sources import loaded
from suite.record.code import hash_file, imports, running_code

SOURCE = '''
"""A module."""
from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class Decay:
    """A class."""

    factor: float = 0.5

    def apply(self, x: Tensor) -> Tensor:
        """A method."""
        scaled: Tensor = self.factor * x  # a comment
        return scaled


@jit
def kernel(pointer, BLOCK: tl.constexpr):
    return f"{pointer!r:>{BLOCK}}"
'''


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"""A module."""', ""), ('"""A class."""', '"""Another."""'), ('        """A method."""\n', ""),
        ("  # a comment", ""), ("x: Tensor) -> Tensor", "x)"), ("scaled: Tensor =", "scaled ="),
        ("    from torch import Tensor", "    from torch import Tensor, nn"), ("0.5", "5e-1"),
        ("self.factor * x", "(\n            self.factor\n            * x\n        )"), ('f"{', "f'''{"[:2] + "{"),
    ],
)  # fmt: skip
def test_what_does_not_run_does_not_count(old: str, new: str) -> None:
    assert old in SOURCE
    changed = SOURCE.replace(old, new)
    if old == 'f"{':
        changed = changed.replace('BLOCK}}"', "BLOCK}}'")
    assert running_code(changed.encode()) == running_code(SOURCE.encode())


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("0.5", "0.25"), ("scaled", "product"), ("self.factor * x", "x * self.factor"),
        ("factor: float", "factor: int"), ("BLOCK: tl.constexpr", "BLOCK"), ("@jit\n", ""),
        ("@dataclass\n", "@dataclass(frozen=True)\n"), ("return scaled", "return None"), ("return scaled", "pass"),
        ("!r", "!s"), ("if TYPE_CHECKING", "if True"),
    ],
)  # fmt: skip
def test_what_runs_counts(old: str, new: str) -> None:
    assert old in SOURCE
    assert running_code(SOURCE.replace(old, new).encode()) != running_code(SOURCE.encode())


def test_a_file_that_does_not_parse_counts_whole(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text("def f(:  # one")
    first = hash_file(path)
    path.write_text("def f(:  # two")
    assert hash_file(path) != first


def test_another_layout_of_every_technique_changes_no_hash(tmp_path: Path) -> None:
    """Narrow lines, by the project's own formatter."""
    for entry in catalogue().values():
        for path in entry.folder.glob("*.py"):
            copy = tmp_path / path.name
            copy.write_bytes(path.read_bytes())
            before = hash_file(copy)
            narrow = [sys.executable, "-m", "ruff", "format", "-q", "--line-length", "70", str(copy)]
            subprocess.run(narrow, check=True)
            assert hash_file(copy) == before, path


def test_an_edited_docstring_in_every_file_changes_no_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    roots = [entry.module for entry in catalogue().values()]
    before = loaded(roots, kernels=True)
    read = Path.read_bytes
    edited = 0

    def with_another_docstring(path: Path) -> bytes:
        nonlocal edited
        content = read(path)
        if path.suffix == ".py" and content.startswith(b'"""'):
            edited += 1
            return b'"""Edited. ' + content[3:] + b"\n# and a comment\n"
        return content

    monkeypatch.setattr(Path, "read_bytes", with_another_docstring)
    sources._module.cache_clear()
    after = loaded(roots, kernels=True)
    sources._module.cache_clear()
    assert edited > 100
    assert after == before


IMPORTING = """
import a.b
from c import d
from . import beside
if TYPE_CHECKING:
    import only_for_types

def later():
    import e
    return lambda: __import__("f")

class Inside:
    from g import h
"""


@pytest.mark.parametrize(("inside_functions", "more"), [(False, set()), (True, {"e"})])
def test_imports_are_those_of_loading_and_of_functions_where_asked(
    tmp_path: Path, inside_functions: bool, more: set[str]
) -> None:
    path = tmp_path / "module.py"
    path.write_text(IMPORTING)
    assert set(imports(path, inside_functions)) == {"a.b", "c", "c.d", "g", "g.h"} | more
    path.write_text("def")
    assert list(imports(path, inside_functions)) == []
