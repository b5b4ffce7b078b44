"""What others' own readers make of our rows as evaluation results, and of the benchmark that these refer to."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml
from huggingface_hub import parse_eval_result_entries
from typer.testing import CliRunner

from suite.cli import Exit, app
from suite.judge.metrics import METRICS
from suite.record.store import Store
from suite.topics.publish.data_set_metadata import benchmark
from suite.topics.publish.eval_records import SCHEMA_OF_EVERY_EVAL_EVER, eval_results, every_eval_ever
from tests.factories import MACHINE, evidence, learned, records
from tests.show.samples import shown

NOW = datetime(2026, 3, 1, tzinfo=UTC)


def test_the_hub_s_own_parser_reads_savings_of_tasks_that_the_benchmark_has() -> None:
    pieces = evidence("x", pace_s=0.01)
    (row,) = shown(pieces)
    entries = parse_eval_result_entries(yaml.safe_load(eval_results([row], "alice/records")))
    by_metric = {entry.task_id.rpartition("-")[2]: entry for entry in entries}
    step_time = by_metric["step_time"]
    assert step_time.value == pytest.approx(1 / row.metrics["step_time"].number) and step_time.value > 1
    assert (step_time.dataset_id, step_time.date) == ("alice/records", row.newest[:10])
    saved = row.metrics["step_time"].speedup
    assert saved and f"baseline over x, above 1 is better [{saved.low:.4g}, {saved.high:.4g}]; measured" in str(
        step_time.notes
    )
    tasks = yaml.safe_load(benchmark("alice/records", records(pieces).lines))["tasks"]
    assert {entry.task_id for entry in entries} <= {task["id"] for task in tasks}
    assert {task["config"] for task in tasks} == {"counted", "learned", "timed"}
    assert all(task.keys() == {"id", "config", "split"} for task in tasks)


def test_what_is_unknown_or_a_bound_has_no_entry() -> None:
    (row,) = shown(evidence("y", seeds=2, final=1.3))
    assert row.metrics["time_to_quality"].kind == "bound"
    metrics = {each["dataset"]["task_id"].rpartition("-")[2] for each in yaml.safe_load(eval_results([row], "a/b"))}
    assert "time_to_quality" not in metrics and "energy" not in metrics and "step_time" in metrics


def test_a_reservation_is_said_with_the_number() -> None:
    (row,) = shown(evidence("x"), changed=["x"])
    (first, *_) = yaml.safe_load(eval_results([row], "a/b"))
    assert "unverified, by changed code: " in first["notes"]
    result = json.loads(every_eval_ever([row], NOW))["evaluation_results"][0]
    assert result["score_details"]["details"]["reservations"].startswith("unverified, by changed code: ")


def test_every_eval_ever_has_cost_ratios_with_their_intervals() -> None:
    (row,) = shown(evidence("x", pace_s=0.01))
    log = json.loads(every_eval_ever([row], NOW))
    assert log["retrieved_timestamp"] == str(round(NOW.timestamp()))
    assert log["model_info"]["id"] == "leantrain/gpt-x"
    by_metric = {each["evaluation_name"].rpartition("-")[2]: each for each in log["evaluation_results"]}
    step_time = by_metric["step_time"]
    value = row.metrics["step_time"]
    assert value.interval and step_time["score_details"]["score"] == value.number < 1
    interval = step_time["score_details"]["uncertainty"]["confidence_interval"]
    assert (interval["lower"], interval["upper"]) == (value.interval.low, value.interval.high)
    assert "uncertainty" not in by_metric["peak_tensor_bytes"]["score_details"]  # exact
    assert step_time["metric_config"]["lower_is_better"] and METRICS["step_time"].title in str(step_time)


def test_every_eval_ever_s_own_schema_and_types_accept_it() -> None:
    theirs = pytest.importorskip(
        "every_eval_ever.schema", reason="it needs Python 3.12 or newer: pip install every-eval-ever"
    )
    jsonschema = pytest.importorskip("jsonschema", reason="it comes with every-eval-ever")
    assert theirs.get_schema_version() == SCHEMA_OF_EVERY_EVAL_EVER
    bad = [learned(seed=3), learned("x", 3, status="crashed", reason="exit code 7")]
    for row in shown(evidence("x", pace_s=0.01), bad, evidence("y", seeds=2, final=1.3), changed=["x"]):
        jsonschema.Draft7Validator(theirs.schema_json()).validate(json.loads(every_eval_ever([row], NOW)))


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    folder = tmp_path / "results"
    for each in records(evidence("lion", seeds=2), evidence("sam", seeds=2)).lines:
        Store(folder).append(each, MACHINE.name)
    return folder


def test_the_command_writes_both(stored: Path, tmp_path: Path) -> None:
    results = tmp_path / "lion.yaml"
    arguments = ["leaderboard", "--results", str(stored), "-t", "lion", "-b", "gpt"]
    named = ["--format", "eval-results", "--benchmark", "alice/records", "--write", str(results)]
    assert CliRunner().invoke(app, arguments + named).exit_code == Exit.FINE
    assert {entry.dataset_id for entry in parse_eval_result_entries(yaml.safe_load(results.read_text()))} == {
        "alice/records"
    }
    printed = CliRunner().invoke(app, [*arguments, "--format", "every-eval-ever"])
    assert json.loads(printed.stdout)["schema_version"] == SCHEMA_OF_EVERY_EVAL_EVER


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--format", "eval-results", "-t", "lion"), "name it, --benchmark OWNER/NAME"),
        (("--format", "eval-results", "-t", "lion", "--benchmark", "a/b/c"), "name it, --benchmark OWNER/NAME"),
        (("--format", "eval-results", "--benchmark", "a/b"), "choose with -t and -b among lion on gpt, sam on gpt"),
        (("--format", "every-eval-ever"), "choose with -t and -b among lion on gpt, sam on gpt"),
    ],
)
def test_what_cannot_be_written_gets_one_sentence(stored: Path, arguments: tuple[str, ...], message: str) -> None:
    done = CliRunner().invoke(app, ["leaderboard", "--results", str(stored), *arguments])
    assert done.exit_code == Exit.USAGE and message in done.stderr and done.stdout == ""
