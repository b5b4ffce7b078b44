"""A hash changes if and only if what runs changes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from suite.contract.catalogue import catalogue
from suite.contract.sources import current_sources
from suite.record.code import hash_files, running_code

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
    first = hash_files([path])
    path.write_text("def f(:  # two")
    assert hash_files([path]) != first


def test_another_layout_of_every_technique_changes_no_hash(tmp_path: Path) -> None:
    """Narrow lines, by the project's own formatter."""
    for entry in catalogue().values():
        for path in entry.folder.glob("*.py"):
            copy = tmp_path / path.name
            copy.write_bytes(path.read_bytes())
            before = hash_files([copy])
            narrow = [sys.executable, "-m", "ruff", "format", "-q", "--line-length", "70", str(copy)]
            subprocess.run(narrow, check=True)
            assert hash_files([copy]) == before, path


def test_an_edited_docstring_in_every_file_makes_nothing_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    before = current_sources()
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
    from suite.contract.baseline import baseline_hashes
    from suite.contract.sources import Sources, harness_sha256

    baseline_hashes.cache_clear()
    entries = {name: type(entry)(entry.id, entry.folder, entry.module) for name, entry in catalogue().items()}
    after = Sources(harness_sha256(), baseline_hashes(), {name: entry.source_sha256 for name, entry in entries.items()})
    baseline_hashes.cache_clear()
    assert edited > 100
    assert after == before
