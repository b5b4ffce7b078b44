"""The recipes of images are sound as far as that is seen without building one: no daemon runs where the tests do."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from suite.record.machine import IMAGE, read_context

ROOT = Path(__file__).parents[1]
DOCKER, APPTAINER = ROOT / "distribution" / "Dockerfile", ROOT / "distribution" / "leantrain.def"


def test_the_dockerfile_passes_its_linter() -> None:
    done = subprocess.run([Path(sys.prefix) / "bin" / "hadolint", "--format", "json", DOCKER], capture_output=True)
    assert json.loads(done.stdout) == []


def test_nothing_runs_as_root_and_all_that_is_copied_is_here() -> None:
    docker, apptainer = DOCKER.read_text("utf-8"), APPTAINER.read_text("utf-8")
    assert re.findall(r"^USER (\d+)", docker, re.MULTILINE)[-1] != "0"
    held = re.search(r"%files\n(.*?)\n\n", apptainer, re.DOTALL)
    assert held is not None
    names = [line.split()[0] for line in held[1].splitlines()]
    assert all((ROOT / name).exists() for name in [*names, "requirements.lock"])
    packages = {"leantrain", "suite", "baselines", "techniques", "distribution", "pyproject.toml", "README.md"}
    assert packages <= {*names}  # what a wheel is built from
    assert set(re.findall(r"python:\S+", docker)) == set(re.findall(r"python:\S+", apptainer))


def test_a_record_names_the_image_that_it_ran_in(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_context()["image"] is None
    monkeypatch.setenv(IMAGE, "sha256:0123")
    assert read_context()["image"] == "sha256:0123"
