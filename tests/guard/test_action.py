"""The GitHub Action: its steps as they stand, in bash, in a real clone of a repository with a planted regression."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from suite.guard.check import is_reference
from tests import plugin

ROOT = plugin.TREE
ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action" / "action.yml").read_text("utf-8"))
STEPS = {each["name"]: each for each in ACTION["runs"]["steps"] if "run" in each}
SCRIPT = ["bash", "--noprofile", "--norc", "-eo", "pipefail"]  # what GitHub's runner makes of "shell: bash"
LIGHT = """
def after_backward(self, run):
    torch.ones(8, 8) @ torch.ones(8, 8)
"""
HEAVY = LIGHT.replace("8, 8", "16, 16")


class Runner:
    """A job's folder and context, as GitHub's runner gives them to the steps of a composite action."""

    def __init__(self, folder: Path, checkout: Path, **inputs: str) -> None:
        self.folder, self.checkout = folder, checkout
        self.context = {f"inputs.{name}": each.get("default", "") for name, each in ACTION["inputs"].items()}
        self.context |= {f"inputs.{name.replace('_', '-')}": value for name, value in inputs.items()}
        self.folder.mkdir()
        self.summary.touch()
        self.leantrain(f'exec "{sys.executable}" -m suite.cli "$@"')

    @property
    def summary(self) -> Path:
        return self.folder / "step_summary.md"

    def leantrain(self, script: str) -> None:
        """What the command does."""
        command = self.folder / "bin" / "leantrain"
        command.parent.mkdir(exist_ok=True)
        command.write_text(f"#!/bin/sh\n{script}\n")
        command.chmod(0o755)

    def value(self, text: str) -> str:
        """The text with its expressions replaced: names of the context, perhaps with others after ``||``."""

        def first(match: re.Match[str]) -> str:
            return next(filter(None, (self.context.get(name.strip(), "") for name in match[1].split("||"))), "")

        return re.sub(r"\$\{\{(.*?)\}\}", first, text)

    def run(self, name: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Runs the step; its outputs join the context."""
        step, output = STEPS[name], self.folder / "output"
        output.write_text("")
        done = subprocess.run(
            [*SCRIPT, "-c", step["run"]],
            cwd=self.checkout,
            capture_output=True,
            text=True,
            timeout=300,
            env=os.environ
            | {
                "PATH": f"{self.folder / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}",
                "PYTHONPATH": str(ROOT),
                "GITHUB_ACTION_PATH": str(ROOT / "action"),
                "GITHUB_OUTPUT": str(output),
                "GITHUB_STEP_SUMMARY": str(self.summary),
                "RUNNER_TEMP": str(self.folder),
            }
            | {key: self.value(text) for key, text in step.get("env", {}).items()}
            | environment,
        )
        for line in output.read_text().splitlines():
            key, _, value = line.partition("=")
            self.context[f"steps.{step.get('id')}.outputs.{key}"] = value
        return done

    def outputs(self) -> Mapping[str, str]:
        return {name: self.value(each["value"]) for name, each in ACTION["outputs"].items()}


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main")
    return subprocess.run(
        ["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What actions/checkout leaves of a pull request: its last commit alone, without the base branch."""
    folder = tmp_path_factory.mktemp("repositories")
    origin = folder / "origin"
    origin.mkdir()
    git(origin, "init")
    for branch, body in (("main", LIGHT), ("heavier", HEAVY)):
        plugin.write(origin, {"planted": body})
        if branch != "main":
            git(origin, "checkout", "-b", branch)
        git(origin, "add", ".")
        git(origin, "commit", "-m", branch)
    git(folder, "clone", "--depth=1", "--branch=heavier", origin.as_uri(), "checkout")
    return folder / "checkout"


def test_a_regression_is_in_the_summary_and_ends_the_job(tmp_path: Path, checkout: Path) -> None:
    job = Runner(tmp_path / "job", checkout, techniques="planted", size="pico", speed="false")
    job.context["github.base_ref"] = "main"
    assert job.run("Find what to compare with").returncode == 0
    done = job.run("Check")
    assert done.returncode == 0, done.stderr
    rows = [line for line in job.summary.read_text().splitlines() if line.startswith("| planted on gpt (modern")]
    (flops,) = [row for row in rows if "FLOPs of a step" in row]
    _, before, after, ratio, verdict = [cell.strip() for cell in flops.split("|")][2:7]
    assert int(after.replace(",", "")) - int(before.replace(",", "")) == 2 * 16**3 - 2 * 8**3
    assert float(ratio) > 1 and verdict == "**regressed**"
    assert "exactly equal" in job.summary.read_text(), "the plain baseline did not change"
    findings = json.loads((job.folder / "leantrain" / "findings.json").read_text())
    assert {each["verdict"] for each in findings} == {"regressed", "equal", "not checked"}
    assert "speed: not checked" in job.summary.read_text().splitlines()[0], "nobody takes green for fast"

    assert job.run("Draw the board").returncode == 0
    assert "No board: results holds no records." in job.summary.read_text()
    written = {name: f"{job.folder}/leantrain/{name}" for name in ("summary.md", "badge.svg")}
    assert job.outputs() == {
        "verdict": "regressed",
        "summary": written["summary.md"],
        "board": "",
        "speed": "not checked",
        "badge": written["badge.svg"],
    }
    assert "regressed; speed: not checked" in Path(written["badge.svg"]).read_text()
    assert job.run("Pass or fail").returncode == 1


def test_a_base_that_is_nowhere_is_named(tmp_path: Path, checkout: Path) -> None:
    job = Runner(tmp_path / "job", checkout, against="no_such")
    done = job.run("Find what to compare with")
    assert done.returncode == 2
    assert "::error::the input 'against' must name a revision or a file: 'no_such'" in done.stdout


def test_what_is_here_is_not_fetched(tmp_path: Path, checkout: Path) -> None:
    (checkout / "reference.json").touch()
    for against, taken in (("HEAD", git(checkout, "rev-parse", "HEAD")), ("reference.json", "./reference.json")):
        job = Runner(tmp_path / against, checkout, against=against)
        assert job.run("Find what to compare with").returncode == 0
        assert job.context["steps.base.outputs.against"] == taken


def test_a_file_that_is_called_as_a_branch_chooses_nothing(tmp_path: Path, checkout: Path) -> None:
    """What a pull request adds: `main`, which is no revision in a shallow clone, and the commit of the base itself."""
    commit = git(checkout.parent / "origin", "rev-parse", "main")
    for name in ("main", commit):
        (checkout / name).write_text("{}")
    try:
        job = Runner(tmp_path / "job", checkout, against="main")
        assert job.run("Find what to compare with").returncode == 0
        assert job.context["steps.base.outputs.against"] == commit
        assert "--speed" in arguments(job, commit), "a revision's code is timed, whatever file is called so"
        assert not is_reference(commit, checkout) and not is_reference("main", checkout)
    finally:
        for name in ("main", commit, "arguments"):
            (checkout / name).unlink()


def test_actions_are_pinned_by_commit() -> None:
    """A tag can be moved to other code."""
    files = [
        ROOT / "action" / "action.yml",
        *(ROOT / ".github").rglob("*.yml"),
        ROOT / "README.md",
        *(ROOT / "docs").glob("*.md"),
    ]
    used = [name for path in files for name in re.findall(r"uses: (actions/\S+)", path.read_text("utf-8"))]
    assert len(used) >= 5
    assert [name for name in used if not re.fullmatch(r"actions/[a-z-]+@[0-9a-f]{40}", name)] == []


def test_the_board_of_records_is_drawn(tmp_path: Path, checkout: Path) -> None:
    job = Runner(tmp_path / "job", checkout, results="kept")
    (job.folder / "leantrain").mkdir()  # by the step before
    job.leantrain('[ "$2" = --results=kept ] && : > "${3#--write=}"')
    assert job.run("Draw the board").returncode == 0
    assert Path(job.outputs()["board"]).is_file()


EVIL = '$(touch pwned) ; touch pwned "quoted'


def test_inputs_are_words_and_never_code(tmp_path: Path, checkout: Path) -> None:
    """No step has an expression in its script, and what an input says arrives as an argument."""
    assert not [name for name, step in STEPS.items() if "${{" in step["run"]]
    job = Runner(
        tmp_path / "job",
        checkout,
        techniques=EVIL,
        baselines="*",
        size=EVIL,
        recipes="-x",
        slower=EVIL,
        minutes=EVIL,
    )
    job.leantrain('printf "%s\\n" "$@" > arguments; exit 4')
    job.context["steps.base.outputs.against"] = EVIL
    assert job.run("Check").returncode == 0
    assert job.outputs()["verdict"] == "unfit"
    assert (checkout / "arguments").read_text().splitlines() == [
        "check",
        f"--against={EVIL}",
        f"--size={EVIL}",
        f"--summary={job.folder}/leantrain/summary.md",
        f"--badge={job.folder}/leantrain/badge.svg",
        "--json",
        *(f"--technique={word}" for word in EVIL.split()),
        "--baseline=*",
        "--recipe=-x",
        "--speed",
        f"--slower={EVIL}",
        f"--minutes={EVIL}",
    ]
    assert "compared nothing" in job.summary.read_text()
    assert not list(checkout.glob("pwned"))


def arguments(job: Runner, against: str) -> list[str]:
    """What the step has the command do."""
    job.leantrain('printf "%s\\n" "$@" > arguments')
    job.context["steps.base.outputs.against"] = against
    assert job.run("Check").returncode == 0
    return (job.checkout / "arguments").read_text().splitlines()


def test_speed_is_checked_unless_it_is_switched_off(tmp_path: Path, checkout: Path) -> None:
    (checkout / "reference.json").touch()
    asked = arguments(Runner(tmp_path / "on", checkout), "main")
    assert asked[-3:] == ["--speed", "--slower=10%", "--minutes=10"]
    own = arguments(Runner(tmp_path / "own", checkout, slower="5%", minutes="30"), "main")
    assert own[-3:] == ["--speed", "--slower=5%", "--minutes=30"]
    off = Runner(tmp_path / "off", checkout, speed="false")
    assert arguments(off, "main")[-1] == "--recipe=modern"
    assert off.outputs()["speed"] == "not checked"
    file = Runner(tmp_path / "file", checkout)
    file.context["steps.base.outputs.kind"] = "file"
    assert arguments(file, "./reference.json")[-1] == "--recipe=modern", "a file has no code"


@pytest.mark.parametrize(("code", "verdict"), [(0, "passed"), (1, "regressed"), (3, "inconclusive")])
def test_what_is_known_of_speed_is_an_output_and_inconclusive_ends_the_job(
    tmp_path: Path, checkout: Path, code: int, verdict: str
) -> None:
    job = Runner(tmp_path / "job", checkout)
    said = "echo '## leantrain check against x: 1 item exactly equal; speed: 1 slower, 2 not slower'"
    job.leantrain(f'{said} > "${{4#--summary=}}"; : > "${{5#--badge=}}"; exit {code}')
    assert job.run("Check").returncode == 0
    outputs = job.outputs()
    assert (outputs["verdict"], outputs["speed"]) == (verdict, "1 slower, 2 not slower")
    assert outputs["badge"] == f"{job.folder}/leantrain/badge.svg"
    assert job.run("Pass or fail").returncode == code


def test_the_install_step_is_what_pip_takes(tmp_path: Path) -> None:
    """pip itself reads the command and both projects' metadata, and installs nothing."""
    action, project = tmp_path / "leantrain" / "action", tmp_path / "a project"
    action.mkdir(parents=True)
    project.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", "constraints.txt"):  # a build writes beside its sources
        shutil.copy(ROOT / name, action.parent)
    shutil.copytree(ROOT / "distribution", action.parent / "distribution")
    (project / "pyproject.toml").write_text('[project]\nname = "planted"\nversion = "1"\n')
    job = Runner(tmp_path / "job", project, torch_index="")
    dry = {"DRY_RUN": "1", "NO_DEPS": "1", "NO_INDEX": "1", "NO_BUILD_ISOLATION": "0", "DISABLE_PIP_VERSION_CHECK": "1"}
    options = {f"PIP_{name}": value for name, value in dry.items()}  # isolation is off where this one says 0
    done = job.run("Install leantrain", GITHUB_ACTION_PATH=str(action), **options)
    assert done.returncode == 0, done.stderr
    assert re.findall(r"Would install (\w+)", done.stdout) == ["leantrain", "planted"]
