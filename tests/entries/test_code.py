"""A hash changes if and only if what runs changes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from suite.entries import sources
from suite.entries.catalogue import catalogue
from suite.entries.code import Source, read_source
from suite.entries.sources import Reach

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


def texts(source: Source) -> list[str]:
    return [each.text for each in source.statements]


@pytest.fixture
def read(tmp_path: Path) -> Callable[[str], Source]:
    def read(text: str) -> Source:
        path = tmp_path / "module.py"
        path.write_text(text)
        return read_source(path)

    return read


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"""A module."""', ""),
        ('"""A class."""', '"""Another."""'),
        ('        """A method."""\n', ""),
        ("  # a comment", ""),
        ("x: Tensor) -> Tensor", "x)"),
        ("scaled: Tensor =", "scaled ="),
        ("scaled", "product"),
        ("    from torch import Tensor", "    from torch import Tensor, nn"),
        ("0.5", "5e-1"),
        ("self.factor * x", "(\n            self.factor\n            * x\n        )"),
        ('f"{', "f'''{"[:2] + "{"),
    ],
)
def test_what_does_not_run_does_not_count(old: str, new: str, read: Callable[[str], Source]) -> None:
    assert old in SOURCE
    changed = SOURCE.replace(old, new)
    if old == 'f"{':
        changed = changed.replace('BLOCK}}"', "BLOCK}}'")
    assert texts(read(changed)) == texts(read(SOURCE))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("0.5", "0.25"),
        ("self.factor * x", "x * self.factor"),
        ("factor: float", "factor: int"),
        ("BLOCK: tl.constexpr", "BLOCK"),
        ("@jit\n", ""),
        ("@dataclass\n", "@dataclass(frozen=True)\n"),
        ("return scaled", "return None"),
        ("return scaled", "pass"),
        ("!r", "!s"),
        ("if TYPE_CHECKING", "if True"),
    ],
)
def test_what_runs_counts(old: str, new: str, read: Callable[[str], Source]) -> None:
    assert old in SOURCE
    assert texts(read(SOURCE.replace(old, new))) != texts(read(SOURCE))


STATING = """
from suite.reading.judged import judged

@judged("against", "No coordinate moves against the sign.", at_most=4.0)
@cache
def probes(recording, own):
    return {"against": judged}
"""


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("at_most=4.0", "at_most=5.0", True),
        ('@judged("against", "No coordinate moves against the sign.", at_most=4.0)\n', "", True),
        ("suite.reading.judged", "leantrain.technique", True),
        ("import judged\n", "import judged as stated\n", False),  # then @judged is some other decorator
        ("suite.reading.judged", "suite.loop.judged", False),
        ("@cache\n", "", False),
    ],
)
def test_what_a_function_is_judged_by_does_not_count(
    old: str, new: str, same: bool, read: Callable[[str], Source]
) -> None:
    assert old in STATING
    assert (texts(read(STATING.replace(old, new))) == texts(read(STATING))) is same


def test_a_file_that_does_not_parse_counts_whole(read: Callable[[str], Source]) -> None:
    (first,), (second,) = (read(f"def f(:  # {word}").statements for word in ("one", "two"))
    assert first.text != second.text and first.effect


def test_another_layout_of_every_technique_changes_no_hash(tmp_path: Path) -> None:
    """Narrow lines, by the project's own formatter."""
    sources = {
        tmp_path / f"{entry.id}_{path.name}": path
        for entry in catalogue().values()
        for path in entry.folder.glob("*.py")
    }
    for copy, path in sources.items():
        copy.write_bytes(path.read_bytes())
    narrow = [sys.executable, "-m", "ruff", "format", "-q", "--line-length", "70", str(tmp_path)]
    subprocess.run(narrow, check=True)
    assert sum(copy.read_bytes() != path.read_bytes() for copy, path in sources.items()) > len(catalogue())
    for copy, path in sources.items():
        assert texts(read_source(copy)) == texts(read_source(path)), path


def test_an_edited_docstring_in_every_file_changes_no_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    roots = frozenset(entry.module for entry in catalogue().values())
    before = Reach((), kernels=True).sha256(roots)
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
    for forget in (True, False):
        for cached in (sources._source, sources._used, sources._at_loading):
            cached.cache_clear()
        if forget:
            assert Reach((), kernels=True).sha256(roots) == before
    assert edited > 100


READ = """
import a.b
import c.d as e
from f import g, h as i
from . import beside
if TYPE_CHECKING:
    import only_for_types

FIRST = g.x.y(i)
FIRST += later

def later(local):
    import k
    from m import n
    return lambda: __import__("o") + a.b.z(local)

class Inside:
    from p import q
    def method(self): from r import s

@later.register_fake
def _(x): ...
"""


def test_a_file_is_its_statements_with_the_names_that_they_use(read: Callable[[str], Source]) -> None:
    source = read(READ)
    first, _, later, inside, fake = source.statements
    assert dict(source.bindings) == {
        "a": ("a",),
        "e": ("c.d",),
        "g": ("f.g",),
        "i": ("f.h",),
        "FIRST": (0, 1),
        "later": (2,),
        "q": ("p.q",),
        "Inside": (3,),
        "_": (4,),
    }
    assert first.uses == {("g", "x", "y"), ("i",)}
    assert later.uses == {("__import__",), ("a", "b", "z")} and inside.uses == set()
    assert later.when_called == {("k", "k"), ("n", "m.n")} and inside.when_called == {("s", "r.s")}
    assert [each.effect for each in source.statements] == [False, True, False, False, True]
    lines = READ.splitlines()
    assert [lines[each.lines[0] - 1] for each in (later, fake)] == ["def later(local):", "@later.register_fake"]


def test_where_an_import_comes_from_is_no_part_of_a_text(read: Callable[[str], Source]) -> None:
    assert texts(read(READ.replace("from m import", "from elsewhere.m import"))) == texts(read(READ))
    assert texts(read(READ.replace("from m import n", "from m import o as n"))) == texts(read(READ))
    assert texts(read(READ.replace("from m import n", "from m import o"))) != texts(read(READ))


def test_a_file_read_before_is_as_it_was_read_first_and_a_damaged_copy_is_read_again(
    read: Callable[[str], Source], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEANTRAIN_CACHE", str(tmp_path / "cache"))
    first = read(SOURCE)
    (kept,) = (tmp_path / "cache").rglob("*.json")
    assert read(SOURCE) == first
    whole = kept.read_bytes()
    for damaged in (whole.replace(b"factor", b"faster"), whole[: len(whole) // 2], b""):
        kept.write_bytes(damaged)
        assert read(SOURCE) == first
        assert kept.read_bytes() == whole


def test_a_cache_that_cannot_be_written_is_none(
    read: Callable[[str], Source], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = read(SOURCE)
    (tmp_path / "file").touch()
    monkeypatch.setenv("LEANTRAIN_CACHE", str(tmp_path / "file"))
    assert read(SOURCE) == first
