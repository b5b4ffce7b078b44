"""leantrain plan: a table of every solver, JSON, and a sentence for what cannot be."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from suite.cli import app

runner = CliRunner()
SMALL = ["plan", "-b", "gpt", "--size", "nano", "--batch", "8", "-t", "rotor", "-t", "vdnn"]


def test_plans_are_told_with_their_times_and_peaks() -> None:
    done = runner.invoke(app, [*SMALL, "--memory", "12MB"])
    assert done.exit_code == 0, done.output
    assert "Peaks are counted; times are modelled: 400 TFLOP/s, 50 GB/s each way" in done.output
    assert "rotor" in done.output and "vdnn" in done.output


def test_plans_are_json() -> None:
    done = runner.invoke(app, [*SMALL, "--memory", "1GiB", "--json"])
    answers = json.loads(done.stdout)
    assert answers["memory_bytes"] == 2**30 and answers["provenance"] == "bytes counted, seconds modelled"
    assert {each["technique"] for each in answers["answers"]} == {"rotor", "vdnn"}
    assert all(each["time_s"] == answers["plain"]["time_s"] for each in answers["answers"])


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["--memory", "24XB"], 2, "write 24GB, 24GiB or 25GB/s"),
        (["--memory", "1GB", "--flops", "fast"], 2, "write 400T for 400 TFLOP/s"),
        (["--memory", "1GB", "-t", "lion"], 2, "lion plans no schedule; those that do: "),
        (["--memory", "1MB"], 2, "no schedule of activations helps"),
    ],
)
def test_what_cannot_be_planned_says_what_to_do(options: list[str], code: int, words: str) -> None:
    done = runner.invoke(app, [*SMALL, *options])
    assert (done.exit_code, words in " ".join((done.output + str(done.exception)).split())) == (code, True), done.output


def test_a_budget_below_the_least_says_that_nothing_fits_and_the_least_itself_fits() -> None:
    known = json.loads(runner.invoke(app, [*SMALL, "--memory", "1GiB", "--json"]).stdout)
    assert known["resident_bytes"] < known["least_bytes"] < known["plain"]["peak_bytes"]
    enough, tight = (
        runner.invoke(app, [*SMALL, "-t", "rotor", "--memory", f"{budget / 1e6}MB"])
        for budget in (known["least_bytes"], known["least_bytes"] - 1)
    )
    assert (enough.exit_code, "does not fit in" in enough.output) == (0, False), enough.output
    assert (tight.exit_code, "does not fit in" in tight.output) == (1, True), tight.output
