"""The command line with real runs: planted faults end as rows, interruptions lose one replicate, typos get a sentence.

Faults come through a plug-in package, as a stranger's technique would (tests/plugin.py).
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock
from typer.testing import CliRunner

from suite.cli import Exit, app
from suite.judge.rows import Row, rows
from suite.process.processes import living
from suite.record.placed import CountPlace
from suite.record.schema import Ended, Learned, parse
from suite.record.store import Store
from suite.topics.modelled_time import gpu_times
from suite.topics.modelled_time.gpu_times import ModelledTime
from tests import factories, plugin
from tests.plugin import called

SHORT = ("-b", "gpt", "--size", "pico", "--steps", 16, "--seeds", 1, "--timings", 1)
HANG_LIMIT_S = 12  # a pico run answers in less than one, on a busy machine in a few

# what is planted -> status, and what its reason must say
FAULTS = {
    "raises_in_recipe": (
        "def recipe(self, recipe): raise RuntimeError('planted')",
        "failed",
        "^RuntimeError: planted$",
    ),
    "raises_in_setup": ("def model(self, model, run): raise KeyError('planted')", "failed", "^KeyError: 'planted'$"),
    "raises_at_step_3": (
        "def after_step(self, run):\n    if run.step == 3: raise RuntimeError('planted')",
        "failed",
        "^RuntimeError: planted$",
    ),
    "raises_in_probes": ("def probes(self, run): raise ZeroDivisionError('planted')", "failed", "ZeroDivision"),
    "exits": ("def after_step(self, run): os._exit(7)", "crashed", "exit code 7$"),
    "exits_well": ("def after_step(self, run): os._exit(0)", "crashed", "exit code 0$"),
    "segfaults": ("def after_step(self, run): os.kill(os.getpid(), signal.SIGSEGV)", "crashed", "SIGSEGV"),
    "is_killed": (
        "def after_step(self, run): os.kill(os.getpid(), signal.SIGKILL)",
        "crashed",
        r"killed \(SIGKILL\) by another process; the kernel counted no want of memory",
    ),
    "leaves": ("def after_step(self, run): sys.exit(3)", "failed", "^SystemExit: 3$"),
    "leaves_its_recipe": ("def recipe(self, recipe): sys.exit(3)", "failed", "^SystemExit: 3$"),
    "dies_after_a_fork": (
        """
        def after_step(self, run):
            for leave in (lambda: None, os.setsid):  # one in the session, one out of it
                if not os.fork():
                    leave()
                    time.sleep(3600)
            os._exit(7)
        """,
        "crashed",
        "exit code 7$",
    ),
    "says_surrogates": (
        "def after_step(self, run): raise RuntimeError('\\udce9')",
        "failed",
        r"RuntimeError: \\udce9$",
    ),
    "hangs": (
        "def after_step(self, run): time.sleep(3600)",
        "hung",
        rf"no answer to 'block' within {HANG_LIMIT_S}(\.\d)? s",  # a busy machine looks a moment later
    ),
    "turns_nan": ("def loss(self, loss, outputs, batch, run): return loss * math.nan", "diverged", "nan at step 1$"),
    "ends_nan": (
        """
        def after_step(self, run):
            if run.step == 16:
                for parameter in run.model.parameters():
                    parameter.data.fill_(math.nan)
        """,
        "diverged",
        "the validation loss became nan after step 16",
    ),
    "hoards": (
        """
        def data(self, data, run):
            resource.setrlimit(resource.RLIMIT_AS, (16 << 30, 16 << 30))
            torch.empty(64 << 30, dtype=torch.uint8)
        """,
        "out_of_memory",
        "can't allocate memory",
    ),
    "cannot": ("def data(self, data, run): raise Unavailable('needs 8 GPUs')", "unavailable", "^needs 8 GPUs$"),
}
HARMLESS = {
    "twin": "pass",
    "slow": "def after_step(self, run): time.sleep(0.05)",  # its reference's step takes ten milliseconds
    "sets_up_long": "def data(self, data, run): time.sleep(1.0); return data",
    "has_scalars": "def recipe(self, recipe): return replace(recipe, weight_decay=numpy.float32(0.01))",
    "probes_nan": "def probes(self, run): return {'x': math.nan}",
    "goes_on_in_a_fork": "def after_step(self, run):\n    if run.step == 3: os.fork()",
}


@pytest.fixture(scope="session")
def faults(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One `leantrain run` over all planted behaviours, for all of pytest's workers; its folder is ``results``."""
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    root = tmp_path_factory.getbasetemp().parent / "faults" if worker else tmp_path_factory.mktemp("faults")
    with FileLock(f"{root}.lock"):
        if not (root / "stderr").exists():
            bodies = {name: body for name, (body, _, _) in FAULTS.items()} | HARMLESS
            plugin.write(root, bodies)
            chosen = [word for name in bodies for word in ("-t", name)]
            done = plugin.leantrain(root, "run", *SHORT, *chosen, "--hang-limit", HANG_LIMIT_S, "--results", "results")
            assert done.returncode == Exit.RUN_FAILED, done.stderr
            (root / "stderr").write_text(done.stderr)
            (root / "stdout").write_text(done.stdout)
    return root


def ended(faults: Path, name: str) -> dict[str, Ended]:
    """How each measurement of a stack ended, by its kind."""
    records = plugin.records(faults / "results")
    sides = [("timed", side) for timed in records.timed for side in timed.contenders]
    alone = [(each.kind, each) for each in (*records.counted, *records.learned)]
    return {kind: each for kind, each in (*sides, *alone) if each.stack == name}


def learned(faults: Path, name: str) -> Learned:
    (one,) = (each for each in plugin.records(faults / "results").learned if each.stack == name)
    return one


def row_of(faults: Path, name: str) -> Row:
    (one,) = (each for each in rows(plugin.records(faults / "results")) if each.stack == name)
    return one


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_evidence_with_status_and_reason(faults: Path, name: str) -> None:
    _, status, reason = FAULTS[name]
    each = ended(faults, name)
    assert set(each) == {"counted", "learned", "timed"}
    assert each["learned"].status == status
    assert re.search(reason, each["learned"].reason)
    if name not in ("raises_in_probes", "ends_nan"):  # which only a whole run does
        assert {one.status for one in each.values()} == {status}
    if status == "failed":
        assert "technique.py" in each["learned"].details  # the traceback
    told = f"{name}: {status}: " in (faults / "stderr").read_text()
    assert told == (status != "unavailable")


@pytest.mark.parametrize("name", HARMLESS)
def test_the_others_go_on(faults: Path, name: str) -> None:
    each = ended(faults, name)
    assert {one.status for one in each.values()} == {"ok"}
    assert row_of(faults, name).known.timed


def test_run_ends_with_a_sentence(faults: Path) -> None:
    told = (faults / "stdout").read_text()
    stacks = len(FAULTS) + len(HARMLESS)
    assert told.endswith(
        f"made here: {stacks + 1} counts, {stacks + 1} learned runs, {stacks} timings; "
        "see all of it with: leantrain leaderboard --results results\n"
    )


def test_a_longer_step_shows_in_the_paired_samples(faults: Path) -> None:
    """It sleeps, which no other load on the machine can hide."""
    (pair,) = row_of(faults, "slow").known.timed
    assert pair.training_log_ratio > math.log(1.3)


def test_a_twin_is_the_reference_to_the_bit(faults: Path) -> None:
    twin, reference = learned(faults, "twin"), learned(faults, "baseline")
    assert twin.trajectory_sha256 == reference.trajectory_sha256
    assert (twin.train_loss, twin.curve, twin.final) == (reference.train_loss, reference.curve, reference.final)
    theirs, ours = row_of(faults, "twin").known.counted
    assert theirs and ours and theirs.points == ours.points


def test_set_up_is_on_the_clock(faults: Path) -> None:
    (pair,) = row_of(faults, "sets_up_long").known.timed
    assert pair.contender.setup_s is not None
    assert pair.contender.setup_s >= 1.0


def test_a_probe_that_is_no_number_is_kept_as_such(faults: Path) -> None:
    assert math.isnan(learned(faults, "probes_nan").probes["probes_nan.x"])


def test_what_is_measured_is_not_measured_again_until_its_code_changes(faults: Path) -> None:
    """Nor what failed, nor the reference."""
    arguments = ("run", *SHORT, "-t", "twin", "-t", "raises_in_setup", "--results", "results", "--json")
    plugin.write(faults, {"twin": "changed: int = 1\ndef after_step(self, run): print('beside the JSON')"})
    changed = plugin.leantrain(faults, *arguments)
    assert changed.returncode == Exit.FINE, changed.stderr
    made = [parse(json.dumps(each)) for each in json.loads(changed.stdout)]
    assert [each.kind for each in made] == ["counted", "timed", "renewal"], "the run is equal to the bit"
    assert "twin" in {getattr(each, "stack", "") for each in made} and "raises" not in changed.stdout


def test_a_machine_that_is_too_busy_is_not_timed_and_the_exit_code_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("suite.measure.campaign.busy_cores", lambda: 2.0)
    monkeypatch.setattr("suite.measure.campaign.PATIENCE_S", 0.0)
    code, told, error = called("run", *SHORT, "-t", "lion", "--no-tune", "--results", tmp_path)
    assert code == Exit.UNFIT
    assert "too busy to time: others use 2.0 cores" in error
    assert "\nmade here: 2 counts, 2 learned runs; left: 1 timing; the same command goes on; " in told
    records = plugin.records(tmp_path)
    assert (len(records.counted), len(records.learned), records.timed) == (2, 2, [])
    assert called("run", *SHORT, "-t", "lion", "--no-tune", "--results", tmp_path, "--no-time")[0] == Exit.FINE


# what does not attach ------------------------------------------------------------------------------------------------

IDLE = {
    "nowhere": "def sites(self, run): return {}",
    "idle": "def sites(self, run): return {'masks': Act()}",
    "late": "def sites(self, run): return {'grows': Act('run')}",
    "beside": """
        def model(self, model, run):
            self.added = torch.nn.Linear(2, 2)
            model.add_module('added', self.added)
            return model

        def sites(self, run): return {'added': self.added}
        """,
}
REFUSALS = {
    "nowhere": "nowhere names no site, so nothing shows that it does anything",
    "idle": "idle did nothing at 1 of its 1 sites in the first step: masks (never called)",
    "late": "late did nothing at 1 of its 1 sites in the whole run: grows (never called)",
    "beside": "beside did nothing at 1 of its 1 sites in the first step: added (never ran)",
}


def test_what_does_not_attach_ends_in_a_sentence_and_is_no_evidence(tmp_path: Path) -> None:
    plugin.write(tmp_path, {**IDLE, "twin": "pass"})
    chosen = [word for name in (*IDLE, "twin") for word in ("-t", name)]
    together = plugin.leantrain(tmp_path, "run", *SHORT, *chosen, "--no-time", "--results", "results")
    assert together.returncode == Exit.RUN_FAILED
    for name, sentence in REFUSALS.items():
        assert f"{name}: not attached: {sentence}" in together.stderr
    kept = plugin.records(tmp_path / "results")
    counted = {each.stack for each in kept.counted}
    assert counted == {"baseline", "twin", "late"}, (
        "what late does is due at the end, and its steps cost what they cost"
    )
    assert {each.stack for each in kept.learned} == {"baseline", "twin"}
    alone = plugin.leantrain(tmp_path, "compare", "late", *SHORT, "--no-time", "--results", "results")
    assert (alone.returncode, alone.stdout) == (Exit.RUN_FAILED, "")
    assert f"leantrain: {REFUSALS['late']}" in alone.stderr
    assert "Traceback" not in alone.stderr
    alone_kept = plugin.records(tmp_path / "results")
    assert not [each for each in (*alone_kept.learned, *alone_kept.timed) if "late" in str(each)]
    assert "late" in {row.stack for row in rows(alone_kept)}


# what is broken before it runs ----------------------------------------------------------------------------------------

BROKEN = {
    "imports_nothing": ("import no_such_library", "failed", "No module named 'no_such_library'; mend "),
    "leaves_at_once": ("sys.exit(3)", "failed", "^SystemExit: 3$"),
    "dies_at_once": ("signal.raise_signal(signal.SIGSEGV)", "crashed", "died of SIGSEGV"),
    "sleeps_at_once": ("time.sleep(3600)", "hung", f"no answer within {HANG_LIMIT_S} s"),
}


def test_a_broken_entry_is_a_row_and_the_others_go_on(tmp_path: Path) -> None:
    """A run of the whole catalogue on a baseline that only these name."""
    plugin.write(tmp_path, {name: body for name, (body, _, _) in BROKEN.items()} | {"twin": "pass", "no_card": "pass"})
    plugin.write_baseline(tmp_path)
    (tmp_path / "planted_faults" / "planted" / "no_card" / "card.toml").write_text("id = ")
    arguments = ("-b", "tiny", *SHORT[2:], "--no-time", "--hang-limit", HANG_LIMIT_S, "--results", "results")
    done = plugin.leantrain(tmp_path, "run", *arguments)
    assert (done.returncode, "Traceback" in done.stderr) == (Exit.RUN_FAILED, False), done.stderr
    assert re.search(r"left out: .*no_card/card\.toml: not valid TOML", done.stderr)
    for name, (_, status, reason) in BROKEN.items():
        each = ended(tmp_path, name)
        assert {kind: one.status for kind, one in each.items()} == {"counted": status, "learned": status}
        assert all(re.search(reason, one.reason) for one in each.values())
    assert {one.status for one in ended(tmp_path, "twin").values()} == {"ok"}
    listed = json.loads(plugin.leantrain(tmp_path, "list", "--json").stdout)
    assert [each["id"] for each in listed if "broken" in each] == ["no_card"]


# interruptions -------------------------------------------------------------------------------------------------------

SLEEPS_IN_SEED_1 = """
def recipe(self, recipe):  # equal to the reference it would need no second seed
    return replace(recipe, learning_rate=2 * recipe.learning_rate)

def after_step(self, run):
    mark = Path(os.environ["MARK"])
    if run.seed == 1 and not mark.exists():
        mark.write_text(str(os.getpid()))
        time.sleep(3600)
"""


def of_run(mark: Path) -> list[int]:
    """The live processes that were started with this mark in their environment, in whatever session they are."""
    return [each for each in living() if f"MARK={mark}".encode() in environ(each)]


def environ(process: int) -> bytes:
    try:
        return Path(f"/proc/{process}/environ").read_bytes()
    except OSError:
        return b""


def until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    end_s = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end_s, "waited too long"
        time.sleep(0.05)


def test_an_interrupted_run_loses_what_it_was_at_and_leaves_no_process(tmp_path: Path) -> None:
    """By Ctrl-C, then the same command by a kill; what goes on at last measures what is missing."""
    plugin.write(tmp_path, {"sleeper": SLEEPS_IN_SEED_1})
    arguments = ("run", *SHORT, "--seeds", 2, "-t", "sleeper", "--no-time", "--results", "results")
    mark = tmp_path / "mark"
    for how in (signal.SIGINT, signal.SIGKILL):
        mark.unlink(missing_ok=True)
        interrupt(tmp_path, arguments, mark, how)
        before = plugin.records(tmp_path / "results")
        assert {each.seed for each in before.learned if each.stack == "sleeper"} == {0}

    again = plugin.leantrain(tmp_path, *arguments, "--json", MARK=str(mark))
    assert again.returncode == Exit.FINE, again.stderr
    added = {each["id"] for each in json.loads(again.stdout)}
    after = plugin.records(tmp_path / "results")
    assert added == {each.id for each in after.lines} - {each.id for each in before.lines}
    assert sorted(each.seed for each in after.learned if each.stack == "sleeper") == [0, 1]
    assert sorted(each.seed for each in after.learned if each.stack == "baseline") == [0, 1]


def interrupt(folder: Path, arguments: Sequence[object], mark: Path, how: signal.Signals) -> None:
    """Starts the command, and ends it so when its second seed has begun."""
    run = subprocess.Popen(
        plugin.command(*arguments),
        env=plugin.environment(folder, MARK=str(mark)),
        cwd=folder,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore Ctrl-C
    )
    try:
        until(lambda: mark.exists() and mark.read_text(), 240)
        if how == signal.SIGINT:  # while it is there: a second run in the folder
            second = called("run", *SHORT, "-t", "lion", "--no-time", "--results", folder / "results")
            assert second[0] == Exit.RUN_FAILED
            assert "another run is writing to" in second[2]
            os.killpg(run.pid, how)  # as a terminal does
        else:
            run.kill()
        told = run.communicate(timeout=300)[1]
        until(lambda: not of_run(mark))
    finally:
        for process in of_run(mark):
            os.kill(process, signal.SIGKILL)
    assert run.returncode == (Exit.INTERRUPTED if how == signal.SIGINT else -signal.SIGKILL)
    assert "Traceback" not in told


WAITS = """
import time
import suite.cli
from suite.cli.shared import understandable

@suite.cli.app.command()
def waits():
    with understandable():
        try:
            print("ready", flush=True)
            time.sleep(3600)
        finally:
            time.sleep(0.2)
            print("put away", flush=True)

suite.cli.main()
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_every_signal_that_ends_a_command_lets_it_put_away_what_it_began(how: signal.Signals) -> None:
    command = subprocess.Popen(
        [sys.executable, "-c", WAITS, "waits"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: [signal.signal(each, signal.SIG_DFL) for each in (signal.SIGINT, signal.SIGHUP)],
    )
    assert command.stdout is not None
    assert command.stdout.readline() == "ready\n"
    command.send_signal(how)
    if how != signal.SIGINT:  # who is in a hurry sends it twice
        time.sleep(0.05)
        command.send_signal(how)
    told, error = command.communicate(timeout=60)
    assert (command.returncode, told) == (128 + how, "put away\n")
    assert error == "leantrain: interrupted; what was measured is kept, the same command continues\n"


# sentences -----------------------------------------------------------------------------------------------------------


TYPOS: list[tuple[Sequence[object], str]] = [
    (("run", "-t", "lionn"), "no technique is called 'lionn'; did you mean lion"),
    (("list", "ZeR0"), "did you mean zero2 or zero1"),
    (("run", "-t", "lion+adamx"), "no technique is called 'adamx'; did you mean adam"),
    (("run", "-b", "gtp"), "no baseline is called 'gtp'; did you mean gpt"),
    (("run", "--size", "nan"), "no size is called 'nan'; did you mean nano"),
    (("run", "--recipe", "moden"), "no recipe is called 'moden'; did you mean modern"),
    (("run", "--task", "pretain"), "no task is called 'pretain'; did you mean pretrain"),
    (("run", "--device", "cud"), "no device is called 'cud'; did you mean cuda"),
    (("run", "-t", "lion+adamw"), "lion and adamw cannot be stacked: each replaces the optimizer"),
    (("stack", "lion+adamw"), "lion and adamw cannot be stacked: each replaces the optimizer; keep one of them"),
    (("run", "-t", "lora:rank=-1"), "lora: "),
    (("run", "-t", "lora:rank=two"), "lora:rank=two: expected a whole number"),
    (("run", "-t", "lion:lr=abc"), "lion has no hyper-parameter 'lr'; it has: "),
    (("run", "-t", "lion:beta1"), "write hyper-parameters as lion:name=value"),
    (("run", "-t", "lion+lion"), "lion stands twice in the stack"),
    (("run", "--data", "nowhere"), "--data nowhere: no such file or folder"),
    (("run", "--data", "/no/such/folder", "-b", "gpt", "-t", "lion"), "/no/such/folder"),
    (("run", "--model", "/no/such/folder", "-b", "gpt", "-t", "lion"), "no config.json there"),
    (("compare", "lion", "--model", "resnet18", "-b", "vit"), "no Transformer blocks in ResNet"),
    (("compare", "lionn"), "no technique is called 'lionn'; did you mean lion"),
    (("compare", "lion", "adamx"), "no technique is called 'adamx'; did you mean adam"),
    (("compare", "lion", "-b", "gtp"), "no baseline is called 'gtp'; did you mean gpt"),
    (("compare", "progressive_patch", "-b", "gpt"), "progressive_patch is not for gpt: its card names vit"),
    (("compare", "lion", "sam+saf", "-b", "bert"), "saf is not for bert: its card names vit"),
    (("stack", "lion+progressive_patch", "-b", "gpt"), "progressive_patch is not for gpt: its card names vit"),
    (("history", "-t", "lionn", "--results", "tests/cli"), "no technique is called 'lionn'; did you mean lion"),
    (("list", "optimisers"), "no category or technique is called 'optimisers'; did you mean optimizers"),
    (("list", "lionn"), "no category or technique is called 'lionn'; did you mean lion"),
    (("claims", "lion."), "no claim of lion is called ''; there are: "),
    (
        ("claims", "lion", "--mutants", "--exact"),
        "leave out --exact and --size",
    ),
    (("claims", "lion", "--mutants", "--size", "nano"), "leave out --exact and --size"),
    (("doctor", "--device", "gpu"), "no device is called 'gpu'; did you mean cuda?"),
    (("count", "-t", "lion", "--device", "gpu"), "no device is called 'gpu'; did you mean cuda?"),
    (("run", "-t", "lion++"), "a + stands between two techniques, and one of them is missing"),
    (("study", "lawaa"), "no technique with a study is called 'lawaa'; did you mean lawa"),
    (("study", "lora"), "lora has no study; measure it with: leantrain run -t lora"),
    (("study", "sam", "-b", "gpt"), "the study of sam is not for gpt, but for: vit"),
    (("study", "vit_sam", "-b", "gpt"), "the study of vit_sam is not for gpt, but for: vit"),
    (("compare", "lion", "-b", "gpt", "-b", "vit"), "-b is given 2 times, and this command takes one: gpt or vit"),
    (("count", "-t", "lion", "--recipe", "classic", "--recipe", "modern"), "--recipe is given 2 times"),
    (("leaderboard", "--write", "board.txt"), "board.txt: a suffix says what to write: .md, .html, .svg, .csv,"),
    (("leaderboard", "--format", "csv", "--write", "a.csv", "--write", "b.csv"), "--format is of one file"),
    (("leaderboard", "--format", "cvs"), "no format is called 'cvs'; did you mean csv"),
    (("leaderboard", "--plot", "paretto", "--write", "a.svg"), "no plot is called 'paretto'; did you mean pareto"),
    (("leaderboard", "--plot", "pareto"), "--plot draws one file: name it with --write"),
    (("leaderboard", "--plot", "pareto", "--write", "a.md"), "a.md: a picture's suffix says its format: .svg, .pdf,"),
    (("compare", "lion", "--write", "a.gif"), "a.gif: a picture's suffix says its format: .svg, .pdf, .png"),
    (("check",), "name one of --against REF, --save FILE and --kernels"),
    (("check", "--against", "main", "--kernels"), "name one of --against REF"),
    (("check", "--save", "a.json", "--speed"), "--speed times code: name a git revision, --against REV"),
    (("check", "--against", "README.md", "--slower", "5%"), "--speed times code: name a git revision, --against REV"),
    (("models", "-m", "lama"), "no model is called 'lama'; did you mean llama"),
    (("models", "-t", "lionn"), "no technique is called 'lionn'; did you mean lion"),
    (("doctor", "--device", "cup"), "no device is called 'cup'; did you mean cpu"),
    (("new", "lion"), "there is a technique called lion already"),
    (("new", "My-Idea"), "cannot name a technique"),
    (("new", "my_idea", "--category", "optimisers"), "no category is called 'optimisers'; did you mean optimizers?"),
    (("run", "-t", "lion", "--data", "words.parqet"), "words.parqet: no such file or folder; a data set of the hub is"),
    (("run", "-t", "lion", "--data", "suite/lopo"), "no such file or folder; did you mean suite/loop?"),
    (("publish", "--to", "hf:/me/mine"), "is neither a folder nor a data set of the Hub: hf://datasets/OWNER/NAME"),
    (("new", "my_idea", "--root", "/no/such/checkout"), "is no folder; name one with --root"),
    *(
        ((*command, "--results", "/no/such/results"), "there is no folder /no/such/results; measure something with: ")
        for command in (
            ("list", "lion"),
            ("leaderboard",),
            ("claims",),
            ("history",),
            ("publish", "--to", "x"),
            ("repro",),
            ("doctor",),
            ("recommend", "--memory", "1GB"),
        )
    ),
    (("list", "--results", "."), "--results says where the studies of one technique are: name its id, or leave it out"),
    (("count", "-t", "lion", "--results", "."), "--results says where counts are kept: add --keep, or leave it out"),
]


@pytest.mark.parametrize(("arguments", "message"), TYPOS, ids=[" ".join(map(str, typo)) for typo, _ in TYPOS])
def test_a_typo_gets_one_clear_sentence(arguments: Sequence[object], message: str, tmp_path: Path) -> None:
    out = ("--results", tmp_path / "results") if arguments[0] in ("run", "compare", "stack") else ()
    code, told, error = called(*arguments, *out)
    assert (code, told) == (Exit.USAGE, "")
    assert message in error
    assert [line for line in error.splitlines() if " % " not in line] == [error.strip().splitlines()[-1]]
    assert not (tmp_path / "results").exists() or not plugin.records(tmp_path / "results").lines


@pytest.mark.parametrize("arguments", [("run", "--seeds", 0), ("run", "--steps", "x"), ("run", "--sead", 1), ("rum",)])
def test_a_malformed_call_is_a_usage_error(arguments: Sequence[object]) -> None:
    assert called(*arguments)[:2] == (Exit.USAGE, "")
    code, told, _ = called(*arguments, "--json")
    assert (code, json.loads(told)["exit_code"]) == (Exit.USAGE, Exit.USAGE)


RENAMED = [
    (("show", "lion"), "show is list now: leantrain list lion"),
    (("export", "--format", "csv"), "export is leaderboard now: leantrain leaderboard --write board.csv"),
    (("run", "--out", "results"), "--out is --results now"),
    (("leaderboard", "--html", "board.html"), "--html is --write now, once for each file"),
    (("compare", "lion", "--plot", "lion.svg"), "--plot is --write now: --write FILE.svg"),
    (("history", "--plot", "lion.svg"), "--plot is --write now: --write FILE.svg"),
]


@pytest.mark.parametrize(("arguments", "message"), RENAMED, ids=[" ".join(old) for old, _ in RENAMED])
def test_an_old_name_is_answered_with_the_new_one(arguments: Sequence[str], message: str) -> None:
    code, told, error = called(*arguments)
    assert (code, told) == (Exit.USAGE, "")
    assert error.startswith(f"leantrain: {message}") and error.count("\n") == 1
    code, told, _ = called(*arguments, "--json")
    assert (code, json.loads(told)["exit_code"]) == (Exit.USAGE, Exit.USAGE)
    assert json.loads(told)["error"].startswith(message)


def test_an_option_that_a_command_never_had_is_not_called_renamed() -> None:
    code, _, error = called("new", "--out", "results")
    assert code == Exit.USAGE
    assert "No such option" in error and "--results" not in error


@pytest.mark.parametrize("arguments", ["--help", "--version", "list", "list optimizers", "compare --help"])
def test_what_only_looks_starts_without_torch(arguments: str) -> None:
    code = (
        "import sys\nfrom suite.cli import app\n"
        f"try: app({arguments.split()!r})\nexcept SystemExit as end: assert not end.code, end.code\n"
        "assert not {'torch', 'numpy', 'scipy', 'pandas', 'transformers'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_check_examines_the_kernels_as_the_command_of_that_name_does(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr("suite.cli.guard.kernels", lambda **options: asked.append(options))
    assert called("check", "--kernels", "--json")[0] == Exit.FINE
    assert asked == [{"check": True, "device": "cpu", "as_json": True}]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("command", [("run",), ("compare", "lion")])
def test_a_missing_device_is_said_with_its_reason(command: Sequence[str], tmp_path: Path) -> None:
    code, told, error = called(*command, "--device", "cuda", "--results", tmp_path, "--json")
    assert code == Exit.UNFIT
    assert re.search(r"torch (sees no CUDA GPU|was built without CUDA)", error)
    assert json.loads(told)["exit_code"] == Exit.UNFIT


def test_what_cannot_be_written_is_said_as_json_too(tmp_path: Path) -> None:
    for each in factories.evidence("lion", seeds=1):
        Store(tmp_path).append(each, factories.MACHINE.name)
    (tmp_path / "file").touch()
    code, told, error = called(
        "leaderboard", "--results", tmp_path, "--write", tmp_path / "file" / "board.md", "--json"
    )
    assert code == Exit.USAGE
    assert "name another place" in error
    assert json.loads(told) == {"error": error.strip().removeprefix("leantrain: "), "exit_code": Exit.USAGE}


def test_a_fault_of_the_harness_is_no_usage_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("suite.entries.cards.lookup", lambda kind, name, among: among[name])
    assert isinstance(CliRunner().invoke(app, ["list", "lionn"]).exception, KeyError)


def test_nothing_selected(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    code, _, error = called("leaderboard", "--results", tmp_path / "empty")
    assert code == Exit.NOTHING
    assert "holds no records; measure some with: leantrain run" in error


def test_a_damaged_line_is_told_and_kept(faults: Path, tmp_path: Path) -> None:
    (folder,) = (each.parent for each in (faults / "results").glob("*/learned.jsonl"))
    machine = tmp_path / "machine"
    shutil.copytree(folder, machine)
    path = machine / "learned.jsonl"
    path.write_bytes(damaged := b'{"schema_version": 2, "id": "cut o\n' + path.read_bytes())
    board, page = tmp_path / "board.md", tmp_path / "board.html"
    code, told, error = called("leaderboard", "--results", tmp_path, "--write", board, "--write", page, "--json")
    assert code == Exit.FINE
    assert "learned.jsonl:1: " in error
    assert "it is damaged; the line is left out and left in place" in error
    assert path.read_bytes() == damaged
    assert {each["stack"] for each in json.loads(told)} >= FAULTS.keys()
    whole = (tmp_path / "boards" / "gpt.md").read_text()
    assert all(name in whole and name in page.read_text() for name in FAULTS)
    assert "needs 8 GPUs" in whole


def test_nothing_of_a_record_commands_the_terminal(tmp_path: Path) -> None:
    """In a terminal and in a pipe: a failure's reason, the file's own name in a warning, and a technique's name, which
    no record may have."""
    hostile = "\x1b[2J\x1b]0;owned\x07\u202e[link=http://evil.example]"
    store = Store(tmp_path)
    for seed in range(2):
        for stack, status in (("baseline", "ok"), ("evil", "failed")):
            line = factories.learned(stack, seed, status=status, reason=hostile)
            store.append(line, "m")
    path = tmp_path / "m" / "learned.jsonl"
    path.write_text(path.read_text() + path.read_text().replace('"evil"', json.dumps(f"evil{hostile}")))
    (tmp_path / "m" / f"{hostile.replace('/', '')}.jsonl").write_text("damaged\n")
    for arguments in (("leaderboard", "--write", tmp_path / "b.md"), ("history",), ("claims", "lion")):
        _, told, error = called(*arguments, "--results", tmp_path)
        assert all(each.isprintable() for each in re.sub(r"[\n\t]", "", told + error))
        assert "owned" in error


def test_a_full_disk_is_named_with_a_way_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(*_: Any) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("suite.topics.board.report.Report.read", full)
    code, _, error = called("leaderboard", "--results", tmp_path)
    assert code == Exit.USAGE
    assert "the disk is full: free some room" in error and "set LEANTRAIN_CACHE to a folder on another disk" in error


def test_rows_as_json_write_no_board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = Store(tmp_path / "results")
    for each in factories.evidence("lion"):
        store.append(each, "m")
    before = sorted(tmp_path.rglob("*"))
    code, told, _ = called("leaderboard", "--json")
    assert (code, [row["stack"] for row in json.loads(told)]) == (Exit.FINE, ["lion"])
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("reads_none", ["--exact", "--mutants"])
def test_what_reads_no_records_takes_no_folder_of_them(reads_none: str, tmp_path: Path) -> None:
    code, _, error = called("claims", "lion", reads_none, "--results", tmp_path)
    assert code == Exit.USAGE and "--results says where records are" in error


def test_a_baseline_that_is_named_leaves_a_claim_its_commands(tmp_path: Path) -> None:
    for each in factories.evidence("lion"):
        Store(tmp_path).append(each, "m")
    told = [called("claims", "lion.state_bytes", *on, "--results", tmp_path)[1] for on in ((), ("-b", "gpt"))]
    assert all("leantrain compare lion -b gpt" in said for said in told)


@pytest.mark.parametrize("arguments", [("list",), ("list", "optimizers"), ("list", "lion"), ("doctor",)])
def test_json_output_parses(arguments: Sequence[str]) -> None:
    assert json.loads(called(*arguments, "--json")[1])


def test_compare_prints_a_row_as_json_and_as_text_and_a_dry_run_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("suite.measure.campaign.busy_cores", lambda: 0.0)
    few = ("-b", "gpt", "--size", "pico", "--steps", 8, "--rounds", 2, "--seeds", 1, "--no-tune", "--results", tmp_path)
    code, told, _ = called("compare", "lion", *few, "--timings", 1, "--json")
    assert code == Exit.FINE
    assert json.loads(told)["stack"] == "lion"
    assert json.loads(told)["modelled_steps"] == []
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.jsonl")}
    assert len(plugin.records(tmp_path).lines) == 5
    place = CountPlace("gpt", "base", "modern", "cuda", "pretrain")
    known = {"place": place, "stack": "lion", "reference": "baseline"}
    times = [
        ModelledTime(**known, gpu="A100-80", step_s=0.1, ratio=0.95, half_width=0.1),
        ModelledTime(**known, gpu="H100", unavailable="a kernel has no declared cost"),
        ModelledTime(**known | {"stack": "sam"}, gpu="H100", step_s=9.0, ratio=9.0, half_width=0.1),
    ]
    gpu_times.write(gpu_times.GpuTimes(times=times), tmp_path)
    code, told, _ = called("compare", "lion", *few, "--timings", 1)  # from the records: nothing is measured again
    assert code == Exit.FINE
    assert "lion against baseline on gpt" in told
    of_step = f"({place.title}): a step of ≈100 ms, ≈0.95 of the reference's, [0.86, 1.04]"
    assert told.splitlines()[-2:] == [
        f"modelled, not measured, on A100-80 {of_step}",
        f"modelled, not measured, on H100 ({place.title}): unavailable: a kernel has no declared cost",
    ]
    code, told, _ = called("run", "-t", "lion", *few, "--timings", 1, "--dry-run")
    assert code == Exit.FINE and told.startswith("nothing is missing")
    _, told, _ = called("run", "-t", "lion", *few, "--timings", 3, "--dry-run")
    assert re.match(r"2 timings: about \d+ min on \d+ cores, \d+\.\d MB; of a budget of ", told), told
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.jsonl")} == before
