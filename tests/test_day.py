"""A day in the life of a contributor, as CONTRIBUTING has it: its own blocks, written into a copy of the project.

Every addition must show up where it should, though no file was touched but the one that its block names.
"""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests import factories
from tests.plugin import called

ROOT = Path(__file__).parents[1]
PACKAGES = ("leantrain", "suite", "baselines", "techniques")
TITLED = re.compile(r'^```(\w+) title="([^"]+)"\n(.*?)^```$', re.MULTILINE | re.DOTALL)
NEW = re.compile(r"^\$ leantrain (new .+)$", re.MULTILINE)

TRAINED = """
import json
from typer.testing import CliRunner
from suite.cli import app
from suite.entries.catalogue import catalogue
from suite.entries.jobs import run_of
from suite.loop.technique import CHAINED, overrides
from suite.record.job import Job, Setting

def said(*arguments):
    done = CliRunner().invoke(app, [*arguments, "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)

def trained(stack, baseline="gpt", size="pico", steps=2):
    run = run_of(Job(setting=Setting(baseline=baseline, size=size, recipe="classic", steps=steps), stack=stack))
    return run, run.train(2)

run, losses = trained("centralized")
gradients = [p.grad for p in run.model.parameters() if p.grad is not None and p.ndim > 1]
both, _ = trained("centralized+lion+decayed")
llama, _ = trained("baseline", "llama")
nano, _ = trained("baseline", "llama", "nano")
print(json.dumps({
    "hyper-parameters": said("list", "decayed")["hyper_parameters"],
    "overrides": [name for name in CHAINED if overrides(catalogue()["centralized"].technique, name)],
    "losses": [losses, trained("baseline")[1]],
    "furthest mean": max(g.mean(tuple(range(1, g.ndim))).abs().max().item() / g.abs().max().item() for g in gradients),
    "wrapped": type(both.optimizer.optimizer).__name__,
    "claims": said("claims", "centralized", "--exact", "-b", "gpt", "--size", "pico"),
    "models": [type(each.model).__name__ for each in (llama, nano)],
    "widths": [each.anatomy.width for each in (llama, nano)],
}))
"""


@dataclass(frozen=True)
class Copy:
    """A copy of the project at ``root``, whose folder Python puts first."""

    root: Path

    def write(self, kind: str, name: str, block: str) -> None:
        """Writes a block: a change of a file (diff), the end of a file (TOML), or a whole one (Python), which is what
        ``leantrain new`` has written where it is there already."""
        path = self.root / name
        if kind == "diff":
            lines = block.splitlines(keepends=True)
            old, new = ("".join(line[1:] for line in lines if line[0] in signs) for signs in (" -", " +"))
            text = path.read_text("utf-8")
            assert text.count(old) == 1, f"{name} has these lines once:\n{old}"
            path.write_text(text.replace(old, new), "utf-8")
        elif kind == "toml":
            path.write_text(path.read_text("utf-8") + block, "utf-8")
        elif path.exists():
            assert path.read_text("utf-8") == block
        else:
            path.parent.mkdir(exist_ok=True)
            path.write_text(block, "utf-8")

    def install(self) -> None:
        """What ``pip install -e .`` makes of pyproject.toml: the distribution's entry points."""
        groups = tomllib.loads((self.root / "pyproject.toml").read_text("utf-8"))["project"]["entry-points"]
        info = self.root / "leantrain-0.1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: leantrain\nVersion: 0.1.0\n")
        lines = [
            line
            for name, points in groups.items()
            for line in (f"[{name}]", *(f"{key} = {value}" for key, value in points.items()))
        ]
        (info / "entry_points.txt").write_text("\n".join(lines) + "\n")

    def python(self, *arguments: object) -> str:
        """What Python prints in the copy; the process must end well."""
        done = subprocess.run(
            [sys.executable, *map(str, arguments)],
            cwd=self.root,
            capture_output=True,
            text=True,
            env=os.environ | {"PYTHONPATH": str(self.root)},
            timeout=600,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


def day() -> Iterator[tuple[str, ...]]:
    """The steps of CONTRIBUTING in their order: ``("new", arguments)`` or ``(kind, file, block)``."""
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    text = text[text.index("## A day in the life\n") : text.index("## A technique\n")]
    steps = {each.start(): each.groups() for each in TITLED.finditer(text)}
    steps |= {each.start(): ("new", *each[1].split()[1:]) for each in NEW.finditer(text)}
    return (steps[at] for at in sorted(steps))


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    """A copy in which the whole day was done."""
    root = tmp_path / "copy"
    for name in PACKAGES:
        shutil.copytree(ROOT / name, root / name)  # with what Python has compiled
    shutil.copy(ROOT / "pyproject.toml", root)
    made = Copy(root)
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    for step in day():
        if step[0] == "new":
            code, _, error = called("new", *step[1:], "--root", root)
            assert code == 0, error
        else:
            made.write(*step)
    changed = {path.relative_to(root).as_posix() for path, content in before.items() if path.read_bytes() != content}
    assert changed == {"suite/judge/metrics.py", "pyproject.toml"}
    made.install()
    return made


def test_a_day(copy: Copy, tmp_path: Path) -> None:
    seen: dict[str, Any] = json.loads(copy.python("-c", TRAINED))
    # the technique, the wrapper
    assert seen["hyper-parameters"] == {"factor": 0.1}
    assert seen["overrides"] == ["wrap_optimizer"] and seen["wrapped"] == "Lion"
    own, plain = seen["losses"]
    assert own[0] == plain[0] and own[1] != plain[1] and seen["furthest mean"] < 1e-6
    # the claim, and what the example's folder holds besides
    assert {each["claim"]: each["outcome"] for each in seen["claims"]} == dict.fromkeys(
        ("same_state", "same_flops", "less_its_means", "before_the_step"), "holds"
    )
    # the baseline, its size
    assert seen["models"] == ["LlamaForCausalLM"] * 2 and seen["widths"] == [32, 48]
    # the metric, the column, the section
    results = factories.put(tmp_path / "results", factories.evidence("x", ruler=False, seeds=1))
    board, table = tmp_path / "board.md", tmp_path / "board.csv"
    copy.python("-m", "suite.cli", "leaderboard", "--results", results, "--write", board, "--write", table)
    with table.open(encoding="utf-8", newline="") as file:
        values = {row["metric"]: row["value"] for row in csv.DictReader(file)}
    assert float(values["setup_time"]) == 1 and float(values["processor_time"]) > 0
    page = (results / "boards" / "gpt.md").read_text("utf-8")
    assert "## Categories" in page and "| optimizers | " in page
    heads = [line for line in page.splitlines() if "step time" in line]
    assert "training time ↓ | processor time ↓ |" in heads[0]
