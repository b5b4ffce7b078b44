"""Sending records to wandb: against a stand-in that records calls, and against wandb itself where it is installed."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from suite.cli import Exit, app
from suite.judge.known import timed_pair
from suite.record.schema import Renewal
from suite.record.seal import opened
from suite.record.store import Store
from suite.topics.publish import tracking
from suite.topics.publish.tracking import Tracker, group, history, summary
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
    tracker = Tracker()
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
    Tracker()(piece)
    reference, contender = (run.summary for run in module.runs)
    assert contender["ratio/training_time"] == pytest.approx(math.exp(timed_pair(piece, 1).training_log_ratio))
    assert contender["ratio/energy_unavailable"] == "not measured"
    assert not any("loss" in name or "quality" in name or "flops" in name for name in contender)
    assert not any(name.startswith("ratio/") for name in reference)


def test_a_renewal_measures_nothing_and_is_not_sent(wandb):
    module = wandb()
    tracker = Tracker()
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
    tracker = Tracker()
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
    Tracker()(learned("x"))
    assert {run.values["mode"] for run in module.runs} == {used}


def test_online_without_a_login_is_refused_instead_of_prompting(wandb, monkeypatch):
    wandb()
    monkeypatch.setenv("WANDB_MODE", "online")
    with pytest.raises(ValueError, match="run: wandb login"):
        Tracker()


def test_a_server_that_fails_sends_the_rest_to_local_files(wandb):
    module = wandb(login=True, broken={"online"})
    told = []
    tracker = Tracker(told.append)
    for each in timings("x", 2):
        tracker(each)
    assert [run.values["mode"] for run in module.runs] == ["offline"] * 4
    assert module.events[:3] == ["teardown", "init", "teardown"]  # a run's id is free again before it is used again
    assert len(told) == 1 and "no server; the record itself is kept" in told[0]
    assert tracker.sent == 4 and "local files" in tracker.where


def test_a_full_disk_is_a_warning(wandb):
    wandb(broken={"offline"})
    told = []
    tracker = Tracker(told.append)
    tracker(learned("x"))
    assert len(told) == 1 and tracker.sent == 0
    assert "nothing was sent" in tracker.where


def test_a_failed_run_ends_as_failed_and_an_unavailable_one_does_not(wandb):
    module = wandb()
    Tracker()(
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


def test_missing_wandb_is_said_before_anything_is_measured(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "wandb", None)
    for arguments in (["run", "-b", "gpt"], ["compare", "lion"]):
        done = CliRunner().invoke(app, [*arguments, "--wandb", "--results", str(tmp_path / "results")])
        assert done.exit_code == Exit.USAGE
        assert "pip install 'leantrain[wandb]'" in done.stderr
    assert not (tmp_path / "results").exists()


REAL = """
import sys
from pathlib import Path
from suite.record.store import Store
from suite.topics.publish.tracking import Tracker
tracker = Tracker(lambda text: sys.exit(text))
for line in Store(Path(sys.argv[1])).read()[0].lines:
    tracker(line)
print(tracker.where)
"""


def test_wandb_itself_writes_a_run_for_every_contender_without_prompt_login_or_server(tmp_path):
    pytest.importorskip("wandb", reason="wandb is not installed: pip install 'leantrain[wandb]'")
    store = Store(tmp_path / "results")
    run, timing = learned("x"), timings("x", 1)[0]
    for each in (run, timing):
        store.append(each, MACHINE.name)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WANDB")}
    environment |= {"HOME": str(tmp_path), "NETRC": str(tmp_path / "none"), "PYTHONPATH": os.pathsep.join(sys.path)}
    # no server could be reached, were it tried
    environment |= {"HTTPS_PROXY": "http://127.0.0.1:9", "HTTP_PROXY": "http://127.0.0.1:9"}
    done = subprocess.run(
        [sys.executable, "-c", REAL, str(store.folder)],
        cwd=tmp_path,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "wandb: 3 runs in local files; send them with: wandb sync --sync-all\n"
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
