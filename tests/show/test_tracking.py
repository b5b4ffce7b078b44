"""Sending records to wandb: against a stand-in that records calls, and against wandb itself where it is installed."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from suite.cli import Exit, app
from suite.judge.rows import pairs
from suite.measure import campaign
from suite.measure.plan import pairs_of
from suite.record.job import Setting
from suite.record.machine import fingerprint
from suite.record.schema import EqualTime
from suite.record.store import Store
from suite.show import tracking
from suite.show.tracking import Tracker, group, history, summary
from tests.factories import comparison, conditions, contender, failure, record


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


def test_every_contender_becomes_a_run_with_its_curves_its_ratios_and_the_record(wandb):
    module = wandb(login=True)
    sent, second = comparison("x", seeds=2)
    tracker = Tracker()
    tracker(sent)
    assert [run.values["job_type"] for run in module.runs] == ["baseline", "x"]
    assert {run.values["mode"] for run in module.runs} == {"online"}
    assert {run.values["group"] for run in module.runs} == {group(sent)} == {group(second)}
    assert len({run.values["id"] for run in module.runs}) == 2
    assert all("." not in name for run in module.runs for name in run.values["config"])
    (artifact,) = module.runs[0].artifacts
    assert json.loads(artifact.files["record.jsonl"]) == json.loads(sent.model_dump_json())
    row = pairs([sent])[0]
    assert module.runs[1].summary["ratio/step_time"] == row.metrics["step_time"].number
    assert tracker.sent == 2 and "sent to project leantrain" in tracker.where


def test_groups_keep_apart_what_may_not_be_ranked_together():
    one = comparison("x", seeds=1)[0]
    others = [
        one.model_copy(update={"conditions": conditions(recipe="classic")}),
        one.model_copy(update={"conditions": conditions(steps=100)}),
        one.model_copy(update={"contenders": [one.contenders[1], one.contenders[0]]}),
    ]
    assert len({group(each) for each in (one, *others)}) == 4


def test_nothing_of_wandb_is_alive_when_the_next_replicate_starts(wandb):
    module = wandb()
    tracker = Tracker()
    for each in comparison("x", seeds=2):
        tracker(each)
        assert module.events[-1] == "teardown"
    assert module.events.count("init") == module.events.count("finish") == 4


@pytest.mark.parametrize(("mode", "login", "used"), [
    ("online", False, "offline"), ("online", True, "online"),
    ("offline", True, "offline"), ("disabled", False, "disabled"),
])  # fmt: skip
def test_the_mode_is_what_the_user_set_and_offline_without_a_login(wandb, mode, login, used):
    module = wandb(mode=mode, login=login)
    Tracker()(comparison("x", seeds=1)[0])
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
    for each in comparison("x", seeds=2):
        tracker(each)
    assert [run.values["mode"] for run in module.runs] == ["offline"] * 4
    assert module.events[:3] == ["teardown", "init", "teardown"]  # a run's id is free again before it is used again
    assert len(told) == 1 and "no server; the record itself is kept" in told[0]
    assert tracker.sent == 4 and "local files" in tracker.where


def test_a_full_disk_is_a_warning(wandb):
    wandb(broken={"offline"})
    told = []
    tracker = Tracker(told.append)
    tracker(comparison("x", seeds=1)[0])
    assert len(told) == 1 and tracker.sent == 0
    assert "nothing was sent" in tracker.where


def test_a_failed_contender_ends_as_failed_and_an_unavailable_one_does_not(wandb):
    module = wandb()
    Tracker()(
        record([contender(), failure("x", "crashed", "exit code 7"), failure("y", "unavailable", "needs 8 GPUs")])
    )
    assert [run.exit_code for run in module.runs] == [0, 1, 0]
    assert module.runs[1].points == []
    assert module.runs[1].summary["reason"] == "exit code 7"


def test_a_history_holds_every_sample_once_in_order_of_steps():
    run = contender("x", steps=203, rounds=20, train_loss=[1 / (1 + step) for step in range(203)])
    points = history(run)
    steps = [point["step"] for point in points]
    assert steps == sorted(set(steps))  # wandb drops what goes back
    assert [point["train/loss"] for point in points if "train/loss" in point] == run.train_loss
    assert [point["test/loss"] for point in points if "test/loss" in point] == [each.loss for each in run.curve]
    timed = [point for point in points if "time/step_s" in point]
    assert len(timed) == 20
    assert timed[-1]["step"] == 203
    assert timed[-1]["time/trained_s"] == pytest.approx(sum(map(sum, run.block_s)))


def test_what_is_unknown_is_not_sent_but_its_reason_is():
    side = contender(
        "x", probes={"x.nan": math.nan, "x.known": 2.0}, counters=None, equal_time=EqualTime(steps=150, loss=2.1)
    )
    row = pairs([record([contender(), side])])[0]
    found = summary(side, row)
    assert all(value is not None and value == value for value in found.values())
    assert found["probe/x.known"] == 2.0 and "probe/x.nan" not in found
    assert not any(name.startswith("counted/") for name in found)
    assert "ratio/flops" not in found and found["ratio/flops_unavailable"] == "not counted"
    assert "energy/joules_per_step" not in found
    assert "ratio/step_time_high" in found
    assert found["equal_time/loss"] == 2.1


def test_missing_wandb_is_said_before_anything_is_measured(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "wandb", None)
    for arguments in (["run", "-b", "gpt"], ["compare", "lion"]):
        done = CliRunner().invoke(app, [*arguments, "--wandb", "--results", str(tmp_path / "results")])
        assert done.exit_code == Exit.USAGE
        assert "pip install 'leantrain[wandb]'" in done.stderr
    assert not (tmp_path / "results").exists()


def test_a_record_is_sent_when_it_is_in_the_store(monkeypatch, tmp_path):
    machine = fingerprint("cpu", 1)
    made = [each.model_copy(update={"machine": machine}) for each in comparison("lion", seeds=2)]
    waiting = iter(made)
    monkeypatch.setattr(campaign, "train_in_lock_step", lambda *_, **__: next(waiting))
    seen = []

    def stored(each):
        assert each in Store(tmp_path).read()[0]
        seen.append(each)

    pairs = pairs_of(["lion"], ["vit"], ["modern"], Setting(baseline="vit"))
    campaign.measure(pairs, tmp_path, seeds=2, minutes=1, stored=stored)
    assert seen == made


REAL = """
import sys
from pathlib import Path
from suite.record.store import Store
from suite.show.tracking import Tracker
tracker = Tracker(lambda text: sys.exit(text))
for record in Store(Path(sys.argv[1])).read()[0]:
    tracker(record)
print(tracker.where)
"""


def test_wandb_itself_writes_a_run_for_every_contender_without_prompt_login_or_server(tmp_path):
    pytest.importorskip("wandb", reason="wandb is not installed: pip install 'leantrain[wandb]'")
    store = Store(tmp_path / "results")
    sent = comparison("x", seeds=1)[0]
    store.append(sent)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WANDB")}
    environment |= {"HOME": str(tmp_path), "NETRC": str(tmp_path / "none"), "PYTHONPATH": os.pathsep.join(sys.path)}
    # no server could be reached, were it tried
    environment |= {"HTTPS_PROXY": "http://127.0.0.1:9", "HTTP_PROXY": "http://127.0.0.1:9"}
    done = subprocess.run(
        [sys.executable, "-c", REAL, str(store.folder)], cwd=tmp_path, env=environment, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == "wandb: 2 runs in local files; send them with: wandb sync --sync-all\n"
    written = b"".join(path.read_bytes() for path in (tmp_path / "wandb").glob("offline-run-*/run-*.wandb"))
    assert len(list((tmp_path / "wandb").glob("offline-run-*"))) == 2
    for text in (group(sent), "x seed 0", "test/loss", f"record-{sent.id}", "ratio/step_time", tracking.PROJECT):
        assert text.encode() in written
