"""The hashes of code: they cover what a run really loads, all of it and nothing else, and change when it does."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from suite.entries import module_files, sources
from suite.entries.catalogue import UnknownId, catalogue
from suite.entries.sources import OUTSIDE, Reach, code_of, installed_code, roots_of
from suite.record.job import Setting
from suite.record.schema import Code
from tests.entries import loading
from tests.entries.test_names import with_other_names
from tests.runs import IN_EVERY_RUN, unless

TREE = Path(__file__).parents[2]
IN_CLASS = "\n    def ", "\n    x = 1\n\n    def "
GPT = Setting(baseline="gpt")


OF_FEW, OF_ALL = (pytest.param(each, marks=unless(each == "few")) for each in ("few", "all"))


@pytest.mark.parametrize("techniques", [OF_FEW, OF_ALL])
def test_the_hash_covers_what_is_really_called(techniques: str) -> None:
    """A short run in a process of its own calls no function that is not hashed for it."""
    tried = [name for name in catalogue() if techniques == "all" or name in IN_EVERY_RUN]
    script = [sys.executable, loading.__file__, *tried]
    done = subprocess.run(script, env=os.environ | {"PYTHONPATH": str(TREE)}, capture_output=True, text=True)
    assert not done.returncode, done.stderr[-2000:]
    runs: dict[str, dict[str, Any]] = json.loads(done.stdout)
    assert list(runs) == tried
    reach = Reach(OUTSIDE)
    for name, run in runs.items():
        reached: dict[str, set[int]] = defaultdict(set)
        for module, number in reach.definitions(roots_of(Setting(baseline=run["baseline"], task=run["task"]), name)):
            reached[module].update(sources._code_in(module).statements[number].lines)
        called = [(module, line) for module, line in run["called"] if not reach.leaves_out(module)]
        assert len(called) > 100
        assert (name, [each for each in called if each[1] not in reached[each[0]]]) == (name, [])


# what changes a hash -------------------------------------------------------------------------------------------------

Edit = Callable[..., set[str]]
CACHED = [
    each
    for module in (sources, module_files)
    for each in vars(module).values()
    if hasattr(each, "cache_clear") and each.__module__ == module.__name__
]
EVERYTHING = {
    "gpt": (GPT, "baseline"),
    "vit": (GPT.but(baseline="vit"), "baseline"),
    "adapt": (GPT.but(task="adapt"), "baseline"),
    "cuda": (GPT.but(device="cuda"), "adam"),
    **{name: (GPT, name) for name in ("adam", "adamw", "lion", "nesterov_agd", "sgd_momentum", "lion+adam")},
}


@pytest.fixture
def edit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Edit]:
    """``edit(file, old, new)`` changes a copy of the tree: what of EVERYTHING has another trajectory, or with
    ``layer="counts"`` other counts."""
    for package in loading.PROJECT:
        shutil.copytree(TREE / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__", "published"))
    monkeypatch.setattr(module_files, "package_folder", lambda package: tmp_path / package)

    def forget() -> None:
        for cached in CACHED:
            cached.cache_clear()

    def hashes() -> dict[str, Code]:
        forget()
        return {name: code_of(*where) for name, where in EVERYTHING.items()}

    now = hashes()

    def change(file: str, old: str, new: str, layer: str = "trajectory") -> set[str]:
        nonlocal now
        path, before = tmp_path / file, now
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new, 1))
        now = hashes()
        return {name for name in EVERYTHING if getattr(before[name], layer) != getattr(now[name], layer)}

    yield change
    forget()


def test_what_does_not_run_changes_nothing(edit: Edit) -> None:
    assert edit("suite/loop/run.py", '"""Runs one training run', '"""A training run') == set()
    assert edit("baselines/gpt.py", "\n\n\n", "\n\n\n# a comment\n\n\n") == set()
    assert edit("suite/loop/run.py", "def train(self, steps: int)", "def train(self, steps: 'int')") == set()


def test_other_names_of_local_variables_change_nothing(edit: Edit, tmp_path: Path) -> None:
    """All those of the loop, of models' parts, and of what techniques share; swapped or merged ones are other code."""
    file, line = "suite/loop/run.py", "batch, {0} = self.next_batch()\n            self.train_step(batch, {0})"
    assert edit(file, line.format("indices"), line.format("chosen")) == set()
    assert edit(file, "batch, chosen = self", "chosen, batch = self") == set(EVERYTHING)
    assert edit(file, "chosen, batch = self", "batch, losses = self") == set(EVERYTHING)
    renamed = 0
    for folder in ("suite/loop", "suite/model", "techniques/shared"):
        for path in sorted((tmp_path / folder).rglob("*.py")):
            tree, names = with_other_names(path.read_bytes())
            path.write_text(ast.unparse(tree))
            renamed += names
    assert renamed > 2000
    assert edit("baselines/gpt.py", "", "") == set()


def test_a_baseline_changes_its_own_runs_alone(edit: Edit) -> None:
    assert edit("baselines/vit.py", "version:", "edition:") == {"vit"}
    assert edit("baselines/gpt.py", "version:", "edition:") == set(EVERYTHING) - {"vit"}
    assert edit("suite/entries/pretrained.py", "SEED = ", "SEED = 1 + ") == {"adapt"}


def test_a_shared_module_changes_those_that_import_it(edit: Edit) -> None:
    assert edit("techniques/shared/sgd.py", *IN_CLASS) == {"nesterov_agd", "sgd_momentum"}
    of_adam = {"adam", "adamw", "lion+adam", "cuda"}
    assert edit("techniques/shared/adam.py", *IN_CLASS) == of_adam
    assert edit("techniques/optimizers/lion/technique.py", *IN_CLASS) == {"lion", "lion+adam"}


def test_what_no_run_uses_changes_nothing(edit: Edit) -> None:
    assert edit("techniques/shared/adam.py", "\nclass ", "\ndef of_nobody(): return 1\n\nclass ") == set()
    assert edit("techniques/shared/adam.py", "def of_nobody(): return 1", "def of_nobody(): return 2") == set()


def test_a_module_that_acts_when_it_is_loaded_changes_those_that_use_it(edit: Edit) -> None:
    acts = "\nimport os\nos.environ['X'] = '1'\n\n\nclass "
    assert edit("techniques/shared/sgd.py", "\nclass ", acts) == {"nesterov_agd", "sgd_momentum"}
    assert edit("techniques/shared/sgd.py", "os.environ['X'] = '1'", "os.environ['X'] = '2'") == {
        "nesterov_agd",
        "sgd_momentum",
    }
    assert edit("suite/loop/__init__.py", "", "print('loaded')\n") == set(EVERYTHING)


def test_a_name_that_is_bound_to_something_else_changes_the_hash(edit: Edit) -> None:
    """The text that uses it stays: an import, of the project and of a library, and a constant."""
    path, old = "suite/loop/run.py", "from suite.loop.data import Batch, Data, HeldOut, generator, mixed_seed"
    assert edit(
        path, old, f"{old.removesuffix(', mixed_seed')}\nfrom suite.loop.data import generator as mixed_seed"
    ) == (set(EVERYTHING))
    assert edit(
        "suite/loop/run.py",
        "from torch import Tensor, nn",
        "from torch import Tensor\nimport torch.nn.functional as nn",
    ) == (set(EVERYTHING))
    assert edit("suite/loop/run.py", "SAMPLES = 6", "SAMPLES = 7") == set(EVERYTHING)


def test_a_changed_default_changes_the_hash(edit: Edit) -> None:
    assert edit("techniques/optimizers/lion/technique.py", "factor: float = ", "factor: float = 1 + ") == {
        "lion",
        "lion+adam",
    }


def test_a_move_changes_no_hash(edit: Edit, tmp_path: Path) -> None:
    """Every file of techniques/shared into another folder, under another name."""
    files = sorted((tmp_path / "techniques" / "shared").glob("*.py"))
    moved = {path.stem: f"moved_{path.stem}" for path in files if path.stem != "__init__"}
    assert len(moved) > 20
    (tmp_path / "techniques" / "elsewhere").mkdir()
    for path in files:
        path.rename(tmp_path / "techniques" / "elsewhere" / f"{moved.get(path.stem, path.stem)}.py")
    names = "|".join(sorted(moved, key=len, reverse=True))
    for path in tmp_path.rglob("*.py"):
        text = path.read_text()
        new = re.sub(rf"\btechniques\.shared\.({names})\b", lambda m: f"techniques.elsewhere.{moved[m[1]]}", text)
        new = re.sub(r"from techniques\.shared import ([\w, ]+)", _imported_from_elsewhere(moved), new)
        path.write_text(new)
    assert edit("techniques/elsewhere/__init__.py", "", "") == set()
    assert edit("techniques/elsewhere/moved_adam.py", *IN_CLASS) == {"adam", "adamw", "lion+adam", "cuda"}


def _imported_from_elsewhere(moved: dict[str, str]) -> Callable[[re.Match[str]], str]:
    def line(match: re.Match[str]) -> str:
        parts = [each.strip().partition(" as ") for each in match[1].split(",")]
        whole = [f"{moved[name]} as {alias or name}" for name, _, alias in parts]
        return f"from techniques.elsewhere import {', '.join(whole)} "

    return line


def test_a_kernel_changes_what_runs_on_a_gpu(edit: Edit) -> None:
    assert edit("techniques/shared/adam_kernel.py", "@triton.jit\ndef ", "@triton.jit(debug=True)\ndef ") == {"cuda"}


def test_a_study_and_a_card_change_nothing(edit: Edit) -> None:
    assert edit("techniques/optimizers/adamw/study.py", "\nfrom", "\nx = 1\nfrom") == set()
    assert edit("suite/entries/card.py", *IN_CLASS) == edit("suite/entries/catalogue.py", *IN_CLASS) == set()
    assert edit("techniques/optimizers/adamw/card.toml", "id = ", "# a note\nid = ") == set()


def test_a_meter_changes_counts_alone_and_a_record_neither(edit: Edit) -> None:
    edits = "suite/meters/flops.py", *IN_CLASS
    assert edit(*edits) == set()
    assert edit(*edits, layer="counts") == set(EVERYTHING)
    assert edit("suite/record/schema.py", *IN_CLASS, layer="counts") == set()


def test_what_reads_recorded_steps_changes_counts_alone(edit: Edit) -> None:
    probes = "techniques/optimizers/lion/probes.py"
    assert edit(probes, "\nTIMES = 64.0", "\nTIMES = 32.0") == set()
    assert edit(probes, "\nTIMES = 32.0", "\nTIMES = 16.0", layer="counts") == {"lion", "lion+adam"}
    assert edit(probes, "    at_most=4.0,", "    at_most=5.0,", layer="counts") == set()  # of verdicts alone
    assert "lion" in edit("suite/reading/trace.py", *IN_CLASS, layer="counts")
    assert edit("suite/reading/recording.py", *IN_CLASS) == set()


def test_what_is_not_installed_has_no_hash() -> None:
    for setting, stack in ((GPT, "lion+no_such"), (GPT.but(baseline="no_such"), "lion")):
        assert installed_code(setting, stack) is None
        with pytest.raises(UnknownId, match="is called 'no_such'"):
            code_of(setting, stack)
