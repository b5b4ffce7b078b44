"""A sweep's fields are the options of `run`: they arrive as those would, the command line wins, mistakes have lines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import typer

from suite.cli import Exit, app
from suite.measure.campaign import Effort, Measured
from suite.measure.missing import Pair
from tests.plugin import called

SWEEP = """\
# what to measure
technique = [
    "lion",
    "sam:rho=0.1+lawa",
]
baseline = "vit"
size = ["pico", "nano"]
recipe = ["classic", "modern"]

steps = 40
seeds = 5
timings = 2
ruler = 3
minutes = 7.5
tune = false
hang-limit = 30  # a whole number is a number
results = "there"
"""


class Asked:
    """What `run` asks a campaign for."""

    def __call__(self, pairs: Sequence[Pair], folder: Path, effort: Effort, **_: Any) -> Measured:
        self.pairs, self.folder, self.effort = pairs, folder, effort
        return Measured()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Asked:
    asked = Asked()
    monkeypatch.setattr("suite.measure.campaign.measure", asked)
    monkeypatch.chdir(tmp_path)
    return asked


def run(*arguments: object) -> tuple[int, str]:
    code, _, error = called("run", *arguments)
    return code, error


def test_a_sweep_asks_for_what_its_options_would(asked: Asked) -> None:
    Path("sweep.toml").write_text(SWEEP)
    assert run("sweep.toml") == (Exit.FINE, "")
    from_file = asked.pairs, asked.folder, asked.effort
    options = (
        "-t",
        "lion",
        "-t",
        "sam:rho=0.1+lawa",
        "-b",
        "vit",
        "--size",
        "pico",
        "--size",
        "nano",
        "--recipe",
        "classic",
        "--recipe",
        "modern",
        "--steps",
        40,
        "--seeds",
        5,
        "--timings",
        2,
        "--ruler",
        3,
        "--minutes",
        7.5,
        "--no-tune",
        "--hang-limit",
        30,
        "--results",
        "there",
    )
    assert run(*options) == (Exit.FINE, "")
    assert (asked.pairs, asked.folder, asked.effort) == from_file
    assert len(asked.pairs) == 2 * 2 * 2
    assert {(pair.setting.size, pair.setting.recipe) for pair in asked.pairs} == {
        (size, recipe) for size in ("pico", "nano") for recipe in ("classic", "modern")
    }


def test_the_command_line_wins(asked: Asked) -> None:
    Path("sweep.toml").write_text(SWEEP)
    assert run("sweep.toml", "--seeds", 2, "-t", "adam", "--size", "pico", "--tune") == (Exit.FINE, "")
    assert (asked.effort.wanted.seeds, asked.effort.wanted.tuned, asked.effort.wanted.timings) == (2, True, 2)
    assert {pair.stack for pair in asked.pairs} == {"adam"}
    assert {pair.setting.size for pair in asked.pairs} == {"pico"}


def test_every_option_of_run_is_a_field(asked: Asked) -> None:
    command = typer.main.get_command(app).commands["run"]  # type: ignore[attr-defined]
    fields = {max(each.opts, key=len).removeprefix("--") for each in command.params if each.param_type_name == "option"}
    assert {"technique", "baseline", "size", "recipe", "seeds", "timings", "ruler", "minutes", "tune"} <= fields
    for field in fields:
        Path("sweep.toml").write_text(f"{field} = [[1]]\n")
        code, error = run("sweep.toml")
        assert (code, error.split(" must be ")[0]) == (Exit.USAGE, f"leantrain: sweep.toml:1: {field}"), error


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("seeds = 5", "sead = 5", "11: no field is called 'sead'; did you mean seeds"),
        ("technique =", "techniques =", "2: no field is called 'techniques'; did you mean technique"),
        ("technique =", "stacks =", "2: no field is called 'stacks'; did you mean technique"),
        ("minutes = 7.5", "budget = 7.5", "14: no field is called 'budget'; did you mean minutes?"),
        ("seeds = 5", "seeds = 5.5", "11: seeds must be a whole number, not 5.5"),
        ("seeds = 5", 'seeds = "5"', "11: seeds must be a whole number, not '5'"),
        ("seeds = 5", "seeds = true", "11: seeds must be a whole number, not True"),
        ("seeds = 5", "seeds = 0", "11: seeds: "),
        ("tune = false", 'tune = "no"', "15: tune must be true or false, not 'no'"),
        ('baseline = "vit"', "baseline = 3", "6: baseline must be a text in quotes, or a list of such, not 3"),
        ('baseline = "vit"', 'baseline = "vti"', "6: no baseline is called 'vti'; did you mean vit"),
        ('    "lion"', '    "lionn"', "3: no technique is called 'lionn'; did you mean lion"),
        ('"sam:rho=0.1+lawa"', '"sam:rho=x"', "4: sam:rho=x: expected a number"),
        ('"pico", "nano"', '"pico", "nanno"', "7: no size is called 'nanno'; did you mean nano"),
        ('"classic", ', '"clasic", ', "8: no recipe is called 'clasic'; did you mean classic"),
        ("ruler = 3", 'device = "gpu"', "13: no device is called 'gpu'; did you mean cuda?"),
        ("ruler = 3", 'task = "adpat"', "13: no task is called 'adpat'; did you mean adapt"),
        ("seeds = 5", "seeds = ", "11: Invalid value"),
        ("seeds = 5", "steps = 5", "11: Cannot overwrite a value"),
    ],
)
def test_a_mistake_is_answered_with_its_line(asked: Asked, old: str, new: str, sentence: str) -> None:
    assert SWEEP.count(old) == 1
    Path("sweep.toml").write_text(SWEEP.replace(old, new))
    code, error = run("sweep.toml")
    assert code == Exit.USAGE
    assert error.startswith(f"leantrain: sweep.toml:{sentence}") and error.count("\n") == 1, error


def test_an_option_s_own_mistake_is_not_blamed_on_the_file(asked: Asked) -> None:
    Path("sweep.toml").write_text(SWEEP)
    code, error = run("sweep.toml", "-b", "vti")
    assert (code, error) == (Exit.USAGE, "leantrain: no baseline is called 'vti'; did you mean vit?\n")


def test_what_is_no_file_is_told_apart_from_a_technique(asked: Asked) -> None:
    assert run("none.toml") == (Exit.USAGE, "leantrain: none.toml: No such file or directory\n")
    code, error = run("lion")
    assert code == Exit.USAGE
    assert error.endswith("a technique is named with -t: leantrain run -t lion\n")
