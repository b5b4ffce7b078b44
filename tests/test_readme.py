"""What the README says is so: numbers are the catalogue's, links lead somewhere, the example prints what is shown."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import typer

from leantrain.applying import refusals
from suite.cli import app
from suite.cli.shared import Exit
from suite.entries.catalogue import catalogue
from suite.entries.installed import baselines
from suite.judge.ruler import BUDGETS

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text("utf-8")
BOARD, COMMANDS = ((ROOT / "docs" / name).read_text("utf-8") for name in ("reading.md", "commands.md"))
PAGES = sorted(path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md"))
METADATA = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]


def counts() -> dict[str, int]:
    """How many there are, by what README and pages call them. Who adds an entry of no survey changes none."""
    surveyed = sum(bool(entry.card.surveys) for entry in catalogue().values())
    return {
        "entries": surveyed,
        "in all": surveyed,
        "techniques": surveyed,
        "apply": surveyed - len(refusals()),
        "baselines": len(baselines()),
        "commands": len(typer.main.get_command(app).commands),  # type: ignore[attr-defined]
        "budgets": len(BUDGETS),
    }


FINDINGS = re.compile(
    "<!-- findings.*<!-- end of findings -->", re.DOTALL
)  # what the records say, with tests of its own
COUNTED = re.compile(
    r"\b(?P<part>\d+ of the )?(?P<number>\d+) (?:\w+ )?(?P<what>entries|in all|techniques|baselines|commands)\b"
)
"""``88 of the 123 entries apply``, ``123 in all``; an adjective may stand between."""


@pytest.mark.parametrize("page", ["README.md", *(f"docs/{path}" for path in PAGES)])
def test_the_numbers_of_things_are_as_many_as_there_are(page: str) -> None:
    text = " ".join(FINDINGS.sub("", (ROOT / page).read_text("utf-8")).split())
    for each in COUNTED.finditer(text):
        assert int(each["number"]) == counts()[each["what"]], each[0]
        if each["part"]:
            assert text[each.end() :].startswith(" apply") and int(each["part"].split()[0]) == counts()["apply"], each[
                0
            ]
    assert page != "README.md" or len(COUNTED.findall(text)) == 1


def test_other_numbers_of_the_readme_are_the_code_s() -> None:
    text = " ".join(BOARD.split())
    number, low, high = re.search(r"trained at (\w+) budgets, ([\d.]+) to ([\d.]+) times", text).groups()  # type: ignore[union-attr]
    assert (WORDS.index(number), float(low), float(high)) == (counts()["budgets"], BUDGETS[0], BUDGETS[-1])
    commands, text = " ".join(COMMANDS.split()), " ".join(README.split())
    codes = re.search(r"Exit codes: (0 fine.*?)\.", commands)[1]  # type: ignore[index]
    assert [int(each) for each in re.findall(r"\d", codes)] == [each for each in Exit if each < 100]
    assert f"Python {METADATA['requires-python'].removeprefix('>=')} or newer" in text
    families = {name for baseline in baselines().values() for name in baseline.families()}
    assert "more than sixty tiny ones" in commands and 60 < len(families) < 70


def test_it_is_short_and_has_three_doors() -> None:
    assert len(README.splitlines()) <= 150
    doors = ("Which technique for my model?", "Is my change really faster?", "Did it regress?")
    assert [each for each in re.findall(r"^## (.*)$", README, re.MULTILINE) if each in doors] == list(doors)


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
