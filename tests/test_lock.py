"""The lock has all that the tests and the documentation need, in the versions of constraints.txt, and no addresses."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "requirements.lock"


def pins(path: Path) -> dict[str, str]:
    found = re.findall(r"^([A-Za-z0-9._-]+)==([^ \n]+)", path.read_text("utf-8"), re.MULTILINE)
    return {canonicalize_name(name): version for name, version in found}


def needed(package: str, extras: frozenset[str]) -> Iterator[tuple[str, frozenset[str]]]:
    """Yields what a package of this environment requires here, with the extras of each."""
    for line in requires(package) or ():
        wanted = Requirement(line)
        if wanted.marker is None or any(wanted.marker.evaluate({"extra": extra}) for extra in {"", *extras}):
            yield canonicalize_name(wanted.name), frozenset(wanted.extras)


def test_every_package_that_is_needed_is_locked_by_hash() -> None:
    waiting, seen = [("leantrain", frozenset({"test", "docs"}))], set[tuple[str, frozenset[str]]]()
    while waiting:
        at = waiting.pop()
        if at not in seen:
            seen.add(at)
            try:
                waiting += needed(*at)
            except PackageNotFoundError:  # the line below says which
                continue
    text = LOCK.read_text("utf-8")
    assert {name for name, _ in seen} - {"leantrain"} <= pins(LOCK).keys(), "run make lock"
    blocks = re.split(r"\n(?=\S)", text)
    assert all("--hash=sha256:" in block for block in blocks if "==" in block)
    assert "://" not in text


def test_the_versions_are_those_of_the_constraints() -> None:
    assert pins(LOCK).items() <= pins(ROOT / "constraints.txt").items()


AT_CONDA_FORGE = {"torch": "pytorch", "matplotlib": "matplotlib-base"}


def test_the_conda_package_needs_what_the_wheel_needs() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    recipe = yaml.safe_load((ROOT / "distribution" / "recipe.yaml").read_text("utf-8"))
    needs = [Requirement(line) for line in project["project"]["dependencies"]]
    python = f"python {project['project']['requires-python']}"
    run = [f"{AT_CONDA_FORGE.get(each.name, each.name)} {each.specifier}".strip() for each in needs]
    assert recipe["requirements"]["run"] == [python, *run]
    build = [Requirement(line) for line in project["build-system"]["requires"]]
    assert recipe["requirements"]["host"] == [python, "pip", *(f"{each.name} {each.specifier}" for each in build)]
    known = project["project"]
    assert (recipe["about"]["summary"], recipe["about"]["license"]) == (known["description"], known["license"])
    command, _, at = recipe["build"]["python"]["entry_points"][0].partition(" = ")
    assert {command: at.removeprefix("leantrain.")} == known["scripts"]


def test_all_that_names_the_version_names_one() -> None:
    done = subprocess.run([sys.executable, ROOT / "distribution" / "version.py"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"{version('leantrain')}\n"), done.stderr
    other = subprocess.run(
        [sys.executable, ROOT / "distribution" / "version.py", "v9.9.9"], capture_output=True, text=True
    )
    assert other.returncode == 1 and "the tag has 9.9.9" in other.stderr
