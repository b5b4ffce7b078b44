"""leantrain plan: a table of every solver, JSON, and a sentence for what cannot be."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import CliRunner

import leantrain
from suite.cli import app
from suite.loop.run import Run
from suite.topics.modelled_time.devices import by_any_name
from suite.topics.modelled_time.modelled import believed
from tests.runs import new_run

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


def test_a_gpu_says_what_it_holds_and_reaches() -> None:
    answers = json.loads(runner.invoke(app, [*SMALL, "--gpu", "A100-80", "--json"]).stdout)
    a100 = believed().calibrated(by_any_name()["A100-80"])
    assert answers["memory_bytes"] == 80e9 and answers["link_bytes_per_s"] == 1e9 * a100.link_gb_s
    assert answers["flops_per_s"] == a100.product_flops_per_s("bfloat16")


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["--memory", "24XB"], 2, "write 24GB, 24GiB or 25GB/s"),
        (["--memory", "1GB", "--flops", "fast"], 2, "write 400T for 400 TFLOP/s"),
        (["--memory", "1GB", "-t", "lion"], 2, "lion plans no schedule; those that do: "),
        (["--memory", "1MB"], 2, "no schedule of activations helps"),
        ([], 2, "name the device's memory"),
        (["--gpu", "A1000"], 2, "A1000"),
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


def test_the_line_installs_the_schedule_that_was_planned() -> None:
    """In a loop of one's own, with the batch that it was planned for, on the operators that it was planned for."""
    known = json.loads(runner.invoke(app, [*SMALL, "--memory", "1GiB", "--json", "--device", "cpu"]).stdout)
    middle = (known["least_bytes"] + known["plain"]["peak_bytes"]) / 2e6
    options = [*SMALL, "--recipe", "classic", "--device", "cpu", "--memory", f"{middle}MB"]
    planned = json.loads(runner.invoke(app, [*options, "--json"]).stdout)
    answer = next(each for each in planned["answers"] if each["technique"] == "rotor")
    run = new_run("gpt", size="nano", recipe="classic")
    batch, _ = run.data.batch(0, 0, 8)
    scope = {"leantrain": leantrain, "model": run.plain_model(), "batch": batch}
    applied = eval(answer["line"].replace("batch=batch", "batch=batch, loss=loss"), scope | {"loss": loss_of(run)})
    (technique,) = applied.context.run.technique.techniques.values()
    assert [str(each) for each in technique.plan(applied.context.run).schedules] == answer["schedules"]
    assert answer["line"] in runner.invoke(app, options).output or "vdnn" in runner.invoke(app, options).output


def loss_of(run: Run) -> Callable[[Any, Any], Any]:
    return lambda model, batch: run.baseline.losses(run.baseline.forward(model, batch), batch)


def test_a_batch_of_auto_is_the_most_that_fits() -> None:
    options = [*SMALL, "-t", "rotor", "--memory", "12MB", "--json"]
    most = json.loads(runner.invoke(app, [*options, "--batch", "auto"]).stdout)["batch"]["input_ids"][0]
    assert most > 8
    fits, exceeds = (runner.invoke(app, [*options, "--batch", str(count)]).exit_code for count in (most, most + 1))
    assert (fits, exceeds) == (0, 1)
    refused = runner.invoke(app, [*SMALL, "--memory", "12MB", "--batch", "many"])
    assert refused.exit_code == 2 and "or auto for the most that fit" in refused.output
