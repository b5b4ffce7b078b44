"""What is installed: a wheel of this tree, in an empty folder, used from elsewhere."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TREE = Path(__file__).parents[2]
PARTS = ("leantrain", "suite", "baselines", "techniques", "pyproject.toml", "README.md", "LICENSE")
USED = """
import importlib.metadata, json, sys
from pathlib import Path
import leantrain, suite, techniques, baselines
here = Path(sys.argv[1])
assert all(here in Path(each.__file__).parents for each in (leantrain, suite, techniques, baselines))
(found,) = importlib.metadata.distributions(name="leantrain", path=[str(here)])
assert {point.group for point in found.entry_points} == {
    "console_scripts", "leantrain.baselines", "leantrain.techniques"
}
from suite.entries.catalogue import catalogue
entries = catalogue()
assert all(here in entry.folder.parents for entry in entries.values())
assert entries["lion"].card.claim
counted = leantrain.count("lion", baseline="gpt", size="pico")
print(json.dumps({"techniques": sorted(entries), "state": counted.to_frame().ratio["optimizer_state_bytes"]}))
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty folder with the wheel of this tree in it. Built from a copy, since a build writes beside its sources."""
    pytest.importorskip("setuptools", minversion="77")
    folder = tmp_path_factory.mktemp("wheel")
    source, target = folder / "source", folder / "target"
    source.mkdir()
    for part in PARTS:
        if (TREE / part).is_dir():
            shutil.copytree(TREE / part, source / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(TREE / part, source)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input"]
    build = [*pip, "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", str(folder), str(source)]
    subprocess.run(build, check=True, capture_output=True, timeout=300)
    (wheel,) = folder.glob("leantrain-*.whl")
    subprocess.run(
        [*pip, "install", "--no-deps", "--no-index", "--target", str(target), str(wheel)],
        check=True, capture_output=True, timeout=300,
    )  # fmt: skip
    return target


def test_everything_that_is_read_at_run_time_is_in_the_wheel(installed: Path) -> None:
    needed = [
        path.relative_to(TREE)
        for part in PARTS[:4]
        for path in (TREE / part).rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    ]
    assert {path.suffix for path in needed} >= {".py", ".toml", ".json", ".html", ".css", ".js", ".typed"}
    missing = [str(path) for path in needed if not (installed / path).is_file()]
    assert not missing


def test_the_installed_package_works_from_anywhere(installed: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", USED, str(installed)],
        env=os.environ | {"PYTHONPATH": str(installed)}, cwd=tmp_path, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert '"lion"' in done.stdout and '"state": 0.5' in done.stdout
    listed = subprocess.run(
        [sys.executable, "-m", "leantrain", "list", "lion"],
        env=os.environ | {"PYTHONPATH": str(installed)}, cwd=tmp_path, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert listed.stdout.startswith("Lion"), listed.stderr
