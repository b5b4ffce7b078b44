"""An entry's own tests are left out where all that they depend on is as it was when they passed, and nowhere else."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.only import FOLDER
from tests.techniques import own_tests
from tests.techniques.own_tests import ROOT, is_as_passed, kept, module_of, roots_of, sha256_of_file, whole_modules

SAM = FOLDER / "sharpness" / "test_sam.py"


@pytest.fixture(autouse=True)
def asked_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LEANTRAIN_TESTS", raising=False)
    monkeypatch.setattr(own_tests, "kept", lambda: {own_tests.named(SAM): sha256_of_file(SAM)})
    is_as_passed.cache_clear()


def test_a_file_is_left_out_where_nothing_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_as_passed(SAM)
    assert not is_as_passed(SAM.with_name("test_nothing.py")), "it is not kept"
    is_as_passed.cache_clear()
    monkeypatch.setenv("LEANTRAIN_TESTS", "all")
    assert not is_as_passed(SAM)


def test_what_it_imports_is_followed() -> None:
    modules = whole_modules(SAM)
    assert {SAM, ROOT / "tests" / "runs.py"} <= {*modules}
    assert "suite.entries.jobs" in roots_of(modules), "by tests.runs"
    assert module_of("suite.loop.run.Run") == ROOT / "suite" / "loop" / "run.py"


@pytest.mark.parametrize("changed", ["tests/runs.py", "techniques/sharpness/sam/card.toml"])
def test_a_change_of_what_it_reaches_runs_it(changed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = sha256_of_file(SAM)
    text, content = Path.read_text, Path.read_bytes
    path = ROOT / changed
    assert path.is_file()
    monkeypatch.setattr(
        Path, "read_text", lambda self, *how, **more: text(self, *how, **more) + "\n# changed" * (self == path)
    )
    monkeypatch.setattr(Path, "read_bytes", lambda self: content(self) + b"\n# changed" * (self == path))
    own_tests.of_entry.cache_clear()
    assert sha256_of_file(SAM) != before
    own_tests.of_entry.cache_clear()


@pytest.mark.parametrize("name", ["torch", "python", "arithmetic", "cuda"])
def test_elsewhere_it_is_run(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before, here = sha256_of_file(SAM), own_tests.surroundings()
    assert name in here
    monkeypatch.setattr(own_tests, "surroundings", lambda: here | {name: "another"})
    assert sha256_of_file(SAM) != before


def test_the_definitions_that_it_reaches_are_in_its_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    before = sha256_of_file(SAM)
    monkeypatch.setattr(own_tests, "REACH", SimpleNamespace(sha256=lambda roots: "of others"))
    assert sha256_of_file(SAM) != before


def test_the_code_of_entries_that_it_names_is_in_its_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    before = sha256_of_file(SAM)
    monkeypatch.setattr(own_tests, "sha256_of", lambda entry: "of other code")
    own_tests.of_entry.cache_clear()
    assert sha256_of_file(SAM) != before
    own_tests.of_entry.cache_clear()


def test_what_is_kept_is_of_files_that_are_there() -> None:
    assert kept().keys() <= {*map(own_tests.named, own_tests.files())}
