"""Sending records to wandb, MLflow and trackio: to stand-ins that record calls, and to each where it is installed."""

from __future__ import annotations

import math
import os
import sqlite3
import subprocess
import sys
from contextlib import closing, contextmanager
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from suite.cli import Exit, app
from suite.judge.known import timed_pair
from suite.record.schema import Renewal
from suite.record.seal import opened
from suite.record.store import Store
from suite.topics.foreign_runs.log_formats import read
from suite.topics.publish import mlflow_tracker, tracking
from suite.topics.publish.mlflow_tracker import MlflowTracker
from suite.topics.publish.tracking import group, history, summary
from suite.topics.publish.trackio_tracker import TrackioTracker
from suite.topics.publish.wandb_tracker import WandbTracker
from tests.factories import MACHINE, conditions, counted, counters, learned, side, timed, timings


class Standin:
    """As much of wandb as is used; ``runs`` is what it was sent, ``events`` in which order."""

    def __init__(self, mode="online", login=False, broken=()):
        self.events, self.runs, self.logged_in, self.broken = [], [], login, set(broken)
        self.settings = SimpleNamespace(mode=mode, project=None)

    def setup(self, settings=None):
        return SimpleNamespace(settings=self.settings)

    def login(self, *, prompt=True, verify=True):
        assert not prompt and not verify
        return self.logged_in

    def teardown(self):
        self.events.append("teardown")

    def Settings(self, **values):
        return values

    def init(self, **values):
        self.events.append("init")
        if values["mode"] in self.broken:
            raise ConnectionError("no server")
        run = Run(self, values)
        self.runs.append(run)
        return run

    class Artifact:
        def __init__(self, name, type):
            self.name, self.type, self.files = name, type, {}

        @contextmanager
        def new_file(self, name, encoding):
            written = []
            yield SimpleNamespace(write=written.append)
            self.files[name] = "".join(written)


class Run:
    def __init__(self, wandb, values):
        self.wandb, self.values, self.points, self.summary, self.artifacts = wandb, values, [], {}, []

    def define_metric(self, name, step_metric):
        assert (name, step_metric) == ("*", "step")

    def log(self, point):
        self.points.append(point)

    def log_artifact(self, artifact):
        self.artifacts.append(artifact)

    def finish(self, exit_code):
        self.exit_code = exit_code
        self.wandb.events.append("finish")


@pytest.fixture
def wandb(monkeypatch):
    def installed(**options):
        module = Standin(**options)
        monkeypatch.setitem(sys.modules, "wandb", module)
        return module

    monkeypatch.delenv("WANDB_MODE", raising=False)
    return installed


@pytest.mark.parametrize(
    ("piece", "names"),
    [
        (counted("x"), ["x counted"]),
        (learned("x", 2), ["x learned, seed 2"]),
        (timings("x", 1)[0], ["baseline timed, set 0", "x timed, set 0"]),
    ],
)
def test_every_run_of_ours_becomes_a_run_there_with_the_line_as_stored(wandb, piece, names):
    module = wandb(login=True)
    tracker = WandbTracker()
    tracker(piece)
    assert [run.values["name"] for run in module.runs] == names
    assert [run.values["job_type"] for run in module.runs] == [f"{piece.kind} {name.split()[0]}" for name in names]
    assert {run.values["mode"] for run in module.runs} == {"online"}
    assert {run.values["group"] for run in module.runs} == {group(piece)}
    assert len({run.values["id"] for run in module.runs}) == len(names)
    assert all(run.values["config"]["record"] == piece.id for run in module.runs)
    assert all("." not in name for run in module.runs for name in run.values["config"])
    (artifact,) = module.runs[0].artifacts
    assert opened(artifact.files[f"{piece.kind}.jsonl"].strip().encode()) == piece.model_dump_json().encode()
    assert tracker.sent == len(names) and "sent to project leantrain" in tracker.where


def test_a_timing_sends_its_ratios_and_not_what_it_knows_nothing_of(wandb):
    module = wandb()
    (piece,) = timings("x", 1, pace_s=0.03)
    WandbTracker()(piece)
    reference, contender = (run.summary for run in module.runs)
    assert contender["ratio/training_time"] == pytest.approx(math.exp(timed_pair(piece, 1).training_log_ratio))
    assert contender["ratio/energy_unavailable"] == "not measured"
    assert not any("loss" in name or "quality" in name or "flops" in name for name in contender)
    assert not any(name.startswith("ratio/") for name in reference)


def test_a_renewal_measures_nothing_and_is_not_sent(wandb):
    module = wandb()
    tracker = WandbTracker()
    tracker(Renewal.model_construct(id="r"))
    assert module.runs == [] and tracker.sent == 0


def test_groups_keep_apart_what_may_not_be_ranked_together():
    one = learned("x")
    other = MACHINE.model_copy(update={"name": "other"})
    others = [
        one.model_copy(update={"conditions": conditions(recipe="classic")}),
        one.model_copy(update={"conditions": conditions(steps=100)}),
        one.model_copy(update={"machine": other}),
    ]
    assert len({group(each) for each in (one, *others)}) == 4
    assert group(one) == group(learned(seed=1)) == group(counted("y")) == group(timings("x", 1)[0])


def test_nothing_of_wandb_is_alive_when_the_next_run_starts(wandb):
    module = wandb()
    tracker = WandbTracker()
    for each in (counted("x"), learned("x"), *timings("x", 2)):
        tracker(each)
        assert module.events[-1] == "teardown"
    assert module.events.count("init") == module.events.count("finish") == 6


@pytest.mark.parametrize(
    ("mode", "login", "used"),
    [
        ("online", False, "offline"),
        ("online", True, "online"),
        ("offline", True, "offline"),
        ("disabled", False, "disabled"),
    ],
)
def test_the_mode_is_what_the_user_set_and_offline_without_a_login(wandb, mode, login, used):
    module = wandb(mode=mode, login=login)
    WandbTracker()(learned("x"))
    assert {run.values["mode"] for run in module.runs} == {used}


def test_online_without_a_login_is_refused_instead_of_prompting(wandb, monkeypatch):
    wandb()
    monkeypatch.setenv("WANDB_MODE", "online")
    with pytest.raises(ValueError, match="run: wandb login"):
        WandbTracker()


def test_a_server_that_fails_sends_the_rest_to_local_files(wandb):
    module = wandb(login=True, broken={"online"})
    told = []
    tracker = WandbTracker(told.append)
    for each in timings("x", 2):
        tracker(each)
    assert [run.values["mode"] for run in module.runs] == ["offline"] * 4
    assert module.events[:3] == ["teardown", "init", "teardown"]  # a run's id is free again before it is used again
    assert len(told) == 1 and "no server; the record itself is kept" in told[0]
    assert tracker.sent == 4 and "local files" in tracker.where


def test_a_full_disk_is_a_warning(wandb):
    wandb(broken={"offline"})
    told = []
    tracker = WandbTracker(told.append)
    tracker(learned("x"))
    assert len(told) == 1 and tracker.sent == 0
    assert "nothing was sent" in tracker.where


def test_a_failed_run_ends_as_failed_and_an_unavailable_one_does_not(wandb):
    module = wandb()
    WandbTracker()(
        timed(
            [
                side(),
                side("x", status="crashed", reason="exit code 7", windows=1, setup_s=None),
                side("y", status="unavailable", reason="needs 8 GPUs"),
            ]
        )
    )
    assert [run.exit_code for run in module.runs] == [0, 1, 0]
    assert module.runs[1].summary["reason"] == "exit code 7"
    assert "ratio_unavailable" in module.runs[1].summary


def test_a_history_holds_every_sample_once_in_order_of_steps():
    run = learned("x", steps=203, train_loss=[1 / (1 + part) for part in range(50)])
    (timing,) = timings("x", 1, windows=5)
    count = counted("x", points=[counters(flops=flops) for flops in (1, 2, 3)])
    for each in (run, timing.contenders[1], count):
        steps = [point["step"] for point in history(each)]
        assert steps == sorted(set(steps))  # wandb drops what goes back
    points = history(run)
    assert [point["train/loss"] for point in points if "train/loss" in point] == run.train_loss
    assert [point["validation/loss"] for point in points if "validation/loss" in point] == [x.loss for x in run.curve]
    assert points[-1]["step"] == 203
    paces = [point["time/step_s"] for point in history(timing.contenders[1])]
    assert len(paces) == 20 and sum(paces) / 20 == pytest.approx(0.02, rel=0.2)
    assert [point["counted/flops"] for point in history(count)] == [1, 2, 3]


def test_what_is_unknown_is_not_sent_but_what_is_known_is():
    run = learned("x", probes={"x.nan": math.nan, "x.known": 2.0}, final=1.5)
    found = summary(run, 0)
    assert all(value is not None and value == value for value in found.values())
    assert found["probe/x.known"] == 2.0 and "probe/x.nan" not in found
    assert found["test/loss"] == 1.5 and found["test/accuracy"] == 1 / 1.5
    assert not any(name.startswith(("counted/", "ratio/")) for name in found)
    bare = learned("x").model_copy(update={"final": None, "cpu_s": None})
    assert not {"test/loss", "cpu_s"} & set(summary(bare, 0))
    assert summary(counted("x"), 0)["counted/flops"] == 10**9
    assert not any(name.startswith("counted/") for name in summary(counted("x").model_copy(update={"points": []}), 0))
    (timing,) = timings("x", 1)
    assert "energy/joules_per_step" not in summary(timing, 1)
    assert summary(timing, 1)["memory/process_peak_bytes"] == 500 * 2**20


@pytest.mark.parametrize("sink", ["wandb", "mlflow", "trackio"])
def test_a_missing_library_is_said_before_anything_is_measured(sink, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, sink, None)
    for arguments in (["run", "-b", "gpt"], ["compare", "lion"]):
        done = CliRunner().invoke(app, [*arguments, f"--{sink}", "--results", str(tmp_path / "results")])
        assert done.exit_code == Exit.USAGE
        assert f"pip install 'leantrain[{sink}]'" in done.stderr
    assert not (tmp_path / "results").exists()


# MLflow ---------------------------------------------------------------------------------------------------------------


class Mlflow:
    """As much of MLflow as is used; ``calls`` are what its client was asked."""

    def __init__(self, broken=""):
        self.calls, self.broken = [], broken
        self.entities = SimpleNamespace(Param=lambda *values: values, Metric=lambda *values: values)

    def get_tracking_uri(self):
        return "http://tracking"

    def MlflowClient(self):
        return self

    def __getattr__(self, name):
        def call(*values, **named):
            if name == self.broken:
                raise ConnectionError("no server")
            self.calls.append((name, values, named))
            return SimpleNamespace(experiment_id="7", info=SimpleNamespace(run_id=f"run{len(self.calls)}"))

        return call


@pytest.fixture
def mlflow(monkeypatch):
    def installed(**options):
        module = Mlflow(**options)
        monkeypatch.setitem(sys.modules, "mlflow", module)
        monkeypatch.setitem(sys.modules, "mlflow.entities", module.entities)
        return module

    for name in mlflow_tracker.UNLESS_SAID:
        monkeypatch.setenv(name, "1")
    return installed


def test_mlflow_gets_a_run_a_contender_with_parameters_curves_and_the_line_as_stored(mlflow):
    module = mlflow()
    tracker = MlflowTracker()
    (piece,) = timings("x", 1)
    tracker(piece)
    runs = [values for name, values, _ in module.calls if name == "create_run"]
    assert [values[3] for values in runs] == ["baseline timed, set 0", "x timed, set 0"]
    assert {values[0] for values in runs} == {"7"} and {values[2]["group"] for values in runs} == {group(piece)}
    batches = [named for name, _, named in module.calls if name == "log_batch"]
    assert all(len(named.get("params", [])) <= 100 and len(named.get("metrics", [])) <= 1000 for named in batches)
    parameters = dict(pair for named in batches for pair in named.get("params", []))
    assert parameters["record"] == piece.id and parameters["machine"] == MACHINE.name
    metrics = {(key, step): value for named in batches for key, value, _, step in named.get("metrics", [])}
    assert metrics["ratio/training_time", 200] == pytest.approx(math.exp(timed_pair(piece, 1).training_log_ratio))
    (stored,) = [values for name, values, _ in module.calls if name == "log_text"]
    assert opened(stored[1].strip().encode()) == piece.model_dump_json().encode() and stored[2] == "timed.jsonl"
    assert [values[1] for name, values, _ in module.calls if name == "set_terminated"] == ["FINISHED"] * 2
    assert (
        tracker.where
        == "mlflow: 2 runs in http://tracking; look at them with: mlflow ui --backend-store-uri http://tracking"
    )


def test_an_mlflow_server_that_is_not_there_is_said_before_anything_is_measured(mlflow):
    mlflow(broken="get_experiment_by_name")
    with pytest.raises(ValueError, match="http://tracking cannot be used, ConnectionError: no server; start it"):
        MlflowTracker()


def test_an_mlflow_server_that_goes_away_costs_a_warning_and_no_more_waiting(mlflow):
    module = mlflow(broken="log_text")
    told = []
    tracker = MlflowTracker(told.append)
    tracker(learned("x", 0))
    asked = len(module.calls)
    tracker(learned("x", 1))
    assert len(module.calls) == asked and tracker.sent == 0
    assert told == [
        "mlflow: ConnectionError: no server; the record itself is kept",
        "mlflow: nothing more is sent in this run",
    ]


# trackio --------------------------------------------------------------------------------------------------------------


def test_trackio_gets_each_sample_once_and_prints_nothing(monkeypatch, capsys):
    logged, begun, artifacts = [], [], []

    def init(**values):
        print("* View dashboard")
        begun.append(values)
        return SimpleNamespace(
            log=lambda point, step: logged.append((step, point)),
            log_artifact=lambda path, name, type: artifacts.append((name, type, path.read_text())),
        )

    ended = []
    monkeypatch.setitem(sys.modules, "trackio", SimpleNamespace(init=init, finish=lambda: ended.append(1)))
    tracker = TrackioTracker()
    piece = learned("x", 2, steps=203)
    tracker(piece)
    assert capsys.readouterr().out == "" and ended == [1]
    assert begun[0]["name"].startswith("x learned, seed 2 [") and begun[0]["group"] == group(piece)
    assert begun[0]["config"]["record"] == piece.id and not begun[0]["auto_log_cpu"]
    steps = [step for step, _ in logged]
    assert steps == sorted(steps) and logged[-1][0] == 203
    losses = [point["train/loss"] for _, point in logged if "train/loss" in point]
    assert losses == piece.train_loss and logged[-1][1]["test/loss"] == piece.final.loss
    ((name, kind, text),) = artifacts
    assert (name, kind) == (f"learned-{piece.id}", "record")
    assert opened(text.strip().encode()) == piece.model_dump_json().encode()


# each itself ----------------------------------------------------------------------------------------------------------


REAL = """
import sys, threading
from importlib import import_module
from pathlib import Path
from suite.record.store import Store
module, name = sys.argv[2:]
tracker = getattr(import_module("suite.topics.publish." + module), name)(lambda text: sys.exit(text))
for line in Store(Path(sys.argv[1])).read()[0].lines:
    tracker(line)
    assert [thread.name for thread in threading.enumerate() if "batch" in thread.name] == []
print(tracker.where)
"""


def sent_for_real(folder, pieces, tracker, **environment):
    """What a tracker said of pieces that it sent to its own library, without prompt, login or server."""
    store = Store(folder / "results")
    for each in pieces:
        store.append(each, MACHINE.name)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("WANDB", "MLFLOW", "TRACKIO"))}
    kept |= {"HOME": str(folder), "NETRC": str(folder / "none"), "PYTHONPATH": os.pathsep.join(sys.path)}
    # no server could be reached, were it tried
    kept |= {"HTTPS_PROXY": "http://127.0.0.1:9", "HTTP_PROXY": "http://127.0.0.1:9"} | environment
    done = subprocess.run(
        [sys.executable, "-c", REAL, str(store.folder), tracker.__module__.rpartition(".")[2], tracker.__name__],
        cwd=folder,
        env=kept,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_wandb_itself_writes_a_run_for_every_contender_without_prompt_login_or_server(tmp_path):
    pytest.importorskip("wandb", reason="wandb is not installed: pip install 'leantrain[wandb]'")
    run, timing = learned("x"), timings("x", 1)[0]
    said = sent_for_real(tmp_path, (run, timing), WandbTracker)
    assert said == "wandb: 3 runs in local files; send them with: wandb sync --sync-all\n"
    written = b"".join(path.read_bytes() for path in (tmp_path / "wandb").glob("offline-run-*/run-*.wandb"))
    assert len(list((tmp_path / "wandb").glob("offline-run-*"))) == 3
    for text in (
        group(run),
        "x learned, seed 0",
        "validation/loss",
        f"timed-{timing.id}",
        "ratio/step_time",
        tracking.PROJECT,
    ):
        assert text.encode() in written


def test_mlflow_itself_keeps_every_contender_in_its_database(tmp_path):
    pytest.importorskip("mlflow", reason="MLflow is not installed: pip install 'leantrain[mlflow]'")
    run, timing = learned("x"), timings("x", 1)[0]
    said = sent_for_real(tmp_path, (run, timing), MlflowTracker)
    assert said.startswith("mlflow: 3 runs in sqlite:///") and (tmp_path / "mlflow.db").is_file()
    with closing(sqlite3.connect(tmp_path / "mlflow.db")) as database:
        runs = dict(database.execute("select run_uuid, name from runs").fetchall())
        parameters = database.execute("select value from params where key = 'record'").fetchall()
        curve = database.execute(
            "select value from metrics where key = 'train/loss' order by step, timestamp"
        ).fetchall()
        status = {row[0] for row in database.execute("select status from runs")}
    assert sorted(runs.values()) == ["baseline timed, set 0", "x learned, seed 0", "x timed, set 0"]
    assert {row[0] for row in parameters} == {run.id, timing.id} and status == {"FINISHED"}
    assert [row[0] for row in curve] == run.train_loss
    (stored,) = (tmp_path / "mlruns").rglob("learned.jsonl")
    assert opened(stored.read_bytes().strip()) == run.model_dump_json().encode()


def test_trackio_itself_keeps_every_contender_in_its_database_which_judge_reads(tmp_path):
    pytest.importorskip("trackio", reason="trackio is not installed: pip install 'leantrain[trackio]'")
    run, timing = learned("x"), timings("x", 1)[0]
    said = sent_for_real(tmp_path, (run, timing), TrackioTracker, TRACKIO_DIR=str(tmp_path / "kept"))
    assert said == "trackio: 3 runs in project leantrain; look at them with: trackio show --project leantrain\n"
    tables = read(tmp_path / "kept" / "leantrain.db")
    losses = [
        [float(cell) for cell in table.columns["train/loss"] if cell not in ("", None)]
        for table in tables
        if "train/loss" in table.columns
    ]
    assert run.train_loss in losses
