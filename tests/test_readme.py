"""What the README says is so: numbers are the catalogue's, links lead somewhere, the example prints what is shown."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from suite.entries.catalogue import catalogue

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text("utf-8")


def test_the_numbers_are_the_catalogue_s() -> None:
    assert {int(number) for number in re.findall(r"(\d+) (?:in all|entries;)", README)} == {len(catalogue())}


def test_every_link_into_the_project_leads_somewhere() -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", README):
        assert (ROOT / target).exists(), target


@pytest.mark.slow
def test_the_example_prints_what_is_shown() -> None:
    command, output = re.search(r"^\$ leantrain (count -t .*)\n((?:.*\n)*?)```", README, re.MULTILINE).groups()  # type: ignore[union-attr]
    done = subprocess.run(
        [sys.executable, "-m", "suite.cli", *shlex.split(command)], capture_output=True, text=True, check=True, cwd=ROOT
    )
    printed = [re.split(r"\t", line) for line in done.stdout.splitlines()]
    shown = [re.split(r" {2,}", line.strip()) for line in output.splitlines() if line != "..."]
    assert [line for line in shown if line not in [[each for each in cells if each] for cells in printed]] == []
