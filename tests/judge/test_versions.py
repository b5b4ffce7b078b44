"""The version of a baseline is read from its class, without running any of it."""

from __future__ import annotations

import importlib
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from suite.entries.installed import baselines
from suite.judge import versions
from suite.judge.versions import installed_quality, installed_version, stated


def test_it_and_what_the_loss_is_are_those_of_every_installed_baseline():
    for name, baseline in baselines().items():
        assert (installed_version(name), installed_quality(name)) == (baseline.version, baseline.quality)
    assert (installed_version("nobody_s"), installed_quality("nobody_s")) == (None, "")


@pytest.mark.parametrize(
    ("source", "version"),
    [
        ("class Mine:\n    version: ClassVar[int] = 7\n", 7),
        ("class Other:\n    version = 1\nclass Mine:\n    size = 2\n    version = 3\n", 3),
        ("class Mine(Base):\n    pass\n", None),
        ("class Mine:\n    version = compute()\n", None),
        ("class Mine:\n    version = 'three'\n", None),
        ("class Mine:\n  version = = 3\n", None),
        ("raise SystemExit\n\nclass Mine:\n    version = 5\n", 5),
    ],
)
def test_a_stranger_s_class_is_read_and_never_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, version: int | None
):
    (tmp_path / "strange_baseline.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    point = EntryPoint("mine", "strange_baseline:Mine", versions.GROUP)
    monkeypatch.setattr(versions, "entry_points", lambda group, name: [point] if name == "mine" else [])
    stated.cache_clear()
    try:
        assert installed_version("mine") == version and "strange_baseline" not in sys.modules
    finally:
        stated.cache_clear()
