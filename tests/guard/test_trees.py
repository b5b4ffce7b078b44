"""Two trees side by side: their code runs apart from this process and from its secrets, and leaves nothing."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from suite.cli.shared import end_by_signals
from suite.guard import confinement
from suite.guard.check import Selection, against_revision
from suite.guard.confinement import hides_environments
from suite.guard.regression import here
from suite.guard.trees import PASSED, RevisionError, TreeWorker, checked_out
from suite.measure.provenance import conditions_of, silent
from suite.process.child import ContenderFailed
from suite.process.scratch import prune
from suite.record.git import git as ask_git
from suite.record.job import Job, Setting
from suite.record.numerics import off_the_clock


def test_code_of_a_tree_sees_no_secret_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a tree can run first: its sitecustomize."""
    secrets = {"GITHUB_TOKEN": "secret", "AWS_SECRET_ACCESS_KEY": "secret", "HF_TOKEN": "secret", "SSH_AUTH_SOCK": "s"}
    for name, value in {**secrets, "OMP_NUM_THREADS": "1", "LEANTRAIN_CACHE": "cache"}.items():
        monkeypatch.setenv(name, value)
    seen = tmp_path / "seen.json"
    (tmp_path / "sitecustomize.py").write_text(
        f"import json, os; json.dump(dict(os.environ), open({str(seen)!r}, 'w'))"
    )
    with TreeWorker(tmp_path) as worker, pytest.raises(ContenderFailed):
        worker.ask("no such command")
    environment = json.loads(seen.read_text())
    assert not environment.keys() & secrets
    assert (environment["OMP_NUM_THREADS"], environment["LEANTRAIN_CACHE"]) == ("1", "cache")


PEEKS = """
import json, os
from pathlib import Path
seen, process = {}, os.getppid()
while process > 1:
    try: seen[process] = Path(f"/proc/{process}/environ").read_bytes().decode("utf-8", "replace")
    except OSError as error: seen[process] = str(error)
    process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
json.dump(seen, open(%r, "w"))
"""
STARTS = """
import sys
from pathlib import Path
from suite.guard.trees import TreeWorker
from suite.process.child import ContenderFailed
with TreeWorker(Path(sys.argv[1])) as worker:
    try: worker.ask("no such command")
    except ContenderFailed: pass
"""


@pytest.mark.skipif(not hides_environments(), reason="unavailable (Landlock hides no environments on this system)")
def test_code_of_a_tree_reads_no_token_from_the_processes_that_started_it(tmp_path: Path) -> None:
    """Neither from the command nor from what started that: a step of a CI job is a shell with the token in it."""
    seen = tmp_path / "seen.json"
    (tmp_path / "sitecustomize.py").write_text(PEEKS % str(seen))
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2]), "GITHUB_TOKEN": "a-token-of-the-job"}
    command = f'"{sys.executable}" -c "$SCRIPT" "{tmp_path}"; true'
    subprocess.run(["sh", "-c", command], env=environment | {"SCRIPT": STARTS}, check=True, timeout=120)
    environments = json.loads(seen.read_text())
    assert len(environments) >= 2, "the command and its shell"
    assert not [process for process, text in environments.items() if "a-token-of-the-job" in text]


def test_where_nothing_confines_a_tree_what_it_could_read_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_TOKEN", "secret")
    monkeypatch.setattr(confinement, "hides_environments", lambda: False)
    assert "GITHUB_TOKEN" in confinement.exposed(PASSED)
    assert "PATH" not in confinement.exposed(PASSED)
    monkeypatch.setattr(confinement, "hides_environments", lambda: True)
    assert confinement.exposed(PASSED) == []


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b")
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def repository(folder: Path, *parts: str) -> Path:
    """A git repository with one commit of these empty files."""
    for part in parts:
        path = folder / part
        path.parent.mkdir(exist_ok=True, parents=True)
        path.touch()
    git(folder, "init")
    git(folder, "add", ".")
    git(folder, "commit", "-m", "one")
    return folder


def holds_a_tree(top: Path, mark: Path) -> None:
    for each in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore Ctrl-C
    end_by_signals()
    with suppress(KeyboardInterrupt), checked_out("HEAD", top) as tree:
        mark.write_text(str(tree))
        time.sleep(3600)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_a_check_that_is_ended_leaves_no_work_tree(how: signal.Signals, tmp_path: Path) -> None:
    """At once, or where it was killed at the next check; a user's own work tree stays, though its folder is away."""
    top, mark = repository(tmp_path / "top", "a"), tmp_path / "mark"
    git(top, "worktree", "add", "--detach", str(tmp_path / "own"))
    (tmp_path / "own").rename(tmp_path / "away")
    own = git(top, "worktree", "list")
    process = multiprocessing.get_context("fork").Process(target=holds_a_tree, args=(top, mark), daemon=True)
    process.start()
    end_s = time.monotonic() + 60
    while not (mark.exists() and mark.read_text()):
        assert time.monotonic() < end_s
        time.sleep(0.02)
    tree = Path(mark.read_text())
    assert (tree / "a").exists() and str(tree) in git(top, "worktree", "list")
    os.kill(process.pid or 0, how)
    process.join(60)
    assert process.exitcode is not None, "it goes on"
    if how == signal.SIGKILL:
        assert tree.exists()
        prune()
        with checked_out("HEAD", top):
            assert str(tree) not in git(top, "worktree", "list")
    assert not tree.parents[1].exists()
    assert git(top, "worktree", "list") == own


def test_a_revision_of_an_older_layout_is_refused_in_one_sentence(tmp_path: Path) -> None:
    repository(tmp_path, "suite/__init__.py", "suite/record/job.py", "suite/measure/comparison.py")
    with pytest.raises(
        RevisionError,
        match=r"^revision HEAD: it is older than .* suite/entries/jobs\.py\); compare with a later revision$",
    ):
        against_revision("HEAD", tmp_path, Selection(), None, silent)


def test_workers_of_one_tree_count_alike_and_time_what_they_started() -> None:
    """Of a real tree: what the gate asks of a worker, and what the same process answers, are the same numbers."""
    setting = Setting(baseline="gpt", size="pico", steps=4)
    job = Job(setting=setting, stack="lion").model_dump()
    with TreeWorker(Path(__file__).parents[2]) as worker:
        counted = worker.ask("count", job=job, numerics=off_the_clock())
        assert worker.ask("start", job=job) == {"steps": 4}
        assert worker.ask("pace", steps=2) > 0
        worker.ask("close")
        with pytest.raises(ContenderFailed, match="no technique is called 'no_such'"):
            worker.ask("start", job=job | {"stack": "no_such"})
    assert counted == json.loads(json.dumps(here("count", job=job, numerics=off_the_clock())))
    assert len(counted["losses"]) == 4
    assert counted["data_sha256"] == conditions_of(setting).data_sha256
    assert counted["counters"]["optimizer_state_bytes"] > 0


@pytest.mark.parametrize("setting", ["core.fsmonitor", "filter.own.smudge", "filter.own.clean"])
def test_no_program_that_a_checkout_names_is_run(setting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Git would run it with a job's tokens; and what leads git to another repository is not passed on."""
    top, ran = tmp_path / "checkout", tmp_path / "ran"
    top.mkdir()
    program = tmp_path / "program.sh"
    program.write_text(f'#!/bin/sh\necho "$GITHUB_TOKEN" >>{ran}\ncat\n')
    program.chmod(0o755)
    (top / ".gitattributes").write_text("*.txt filter=own\n")
    (top / "a.txt").write_text("a\n")
    own = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-qm", "a"], ["config", setting, str(program)]):
        subprocess.run(["git", "-C", str(top), *own, *arguments], check=True)
    monkeypatch.setenv("GITHUB_TOKEN", "secret")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    for _ in range(2):
        (top / "a.txt").write_text("b\n")
        with checked_out("HEAD", top) as tree:
            assert (tree / "a.txt").read_text() == "a\n"
        assert ask_git(top, "status", "--porcelain") == " M a.txt\n"
    assert not ran.exists()


def test_what_a_tree_leaves_ends_with_its_worker(tmp_path: Path) -> None:
    """A daemon in a session of its own, whose parent has ended, and its temporary files."""
    told = tmp_path / "pid"
    (tmp_path / "sitecustomize.py").write_text(
        "import os, time\n"
        "if not os.fork():\n    os.setsid()\n    if os.fork(): os._exit(0)\n"
        "    import tempfile\n"
        f"    open({str(told)!r}, 'w').write(f'{{os.getpid()}} {{tempfile.mkstemp()[1]}}')\n"
        "    time.sleep(60)\n    os._exit(0)\n"
    )
    with TreeWorker(tmp_path) as worker:
        with pytest.raises(ContenderFailed):
            worker.ask("no such command")
        until = time.monotonic() + 60
        while not (told.exists() and told.read_text()) and time.monotonic() < until:
            time.sleep(0.05)  # it is its own process, and may be late
    pid, _, file = told.read_text().partition(" ")
    assert not Path(file).exists()
    stat = Path(f"/proc/{pid}/stat")
    assert not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"
