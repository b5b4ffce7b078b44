"""The hashes of code: they cover what a run really loads, all of it and nothing else, and change when it does."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from suite.contract import sources
from suite.contract.catalogue import UnknownId, catalogue
from suite.contract.sources import code_of, installed_code, loaded, roots_of
from suite.record.job import Setting
from suite.record.schema import Code
from tests.contract import loading

TREE = Path(__file__).parents[2]
GPT = Setting(baseline="gpt")


def test_the_hash_covers_what_is_really_loaded() -> None:
    """A short run of every technique in a process of its own, all its methods called, has loaded just the modules that
    are hashed for it."""
    script = [sys.executable, loading.__file__]
    done = subprocess.run(script, env=os.environ | {"PYTHONPATH": str(TREE)}, capture_output=True, text=True)
    assert not done.returncode, done.stderr[-2000:]
    runs: dict[str, dict[str, Any]] = json.loads(done.stdout)
    assert set(runs) == set(catalogue())
    for name, run in runs.items():
        setting = Setting(baseline=run["baseline"], task=run["task"])
        hashed = set(loaded(roots_of(setting, name), kernels=False))
        assert (name, sorted(set(run["modules"]) ^ hashed)) == (name, [])


# what changes a hash -------------------------------------------------------------------------------------------------

Edit = Callable[..., set[str]]
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
    monkeypatch.setattr(sources, "package_folder", lambda package: tmp_path / package)

    def forget() -> None:
        for cached in (sources._code, sources._module, sources._top):
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
    assert edit("suite/contract/run.py", '"""One training run', '"""A training run') == set()
    assert edit("baselines/gpt.py", "\n\n\n", "\n\n\n# a comment\n\n\n") == set()
    assert edit("suite/contract/run.py", "def train(self, steps: int)", "def train(self, steps: 'int')") == set()


def test_a_renamed_local_changes_the_hash(edit: Edit) -> None:
    old, new = "batch, indices = self.next_batch()", "batch, chosen = self.next_batch()"
    assert edit("suite/contract/run.py", old, new) == set(EVERYTHING)


def test_a_baseline_changes_its_own_runs_alone(edit: Edit) -> None:
    assert edit("baselines/vit.py", "version:", "edition:") == {"vit"}
    assert edit("baselines/gpt.py", "version:", "edition:") == set(EVERYTHING) - {"vit"}
    assert edit("suite/contract/pretrained.py", "SEED = ", "SEED = 1 + ") == {"adapt"}


def test_a_shared_module_changes_those_that_import_it(edit: Edit) -> None:
    assert edit("techniques/shared/sgd.py", "\nclass SGD", "\nx = 1\nclass SGD") == {"nesterov_agd", "sgd_momentum"}
    of_adam = {"adam", "adamw", "lion+adam", "cuda"}
    assert edit("techniques/shared/adam.py", "\nclass Adam", "\nx = 1\nclass Adam") == of_adam
    assert edit("techniques/optimizers/lion/technique.py", "\n@dataclass", "\nx = 1\n@dataclass") == {
        "lion", "lion+adam",
    }  # fmt: skip


def test_a_kernel_changes_what_runs_on_a_gpu(edit: Edit) -> None:
    assert edit("techniques/shared/adam_kernel.py", "\n@triton.jit", "\nx = 1\n@triton.jit") == {"cuda"}


def test_a_study_and_a_card_change_nothing(edit: Edit) -> None:
    assert edit("techniques/optimizers/adamw/study.py", "\nfrom", "\nx = 1\nfrom") == set()
    assert edit("techniques/optimizers/adamw/card.toml", "id = ", "# a note\nid = ") == set()


def test_a_meter_changes_counts_alone_and_a_record_neither(edit: Edit) -> None:
    edits = "suite/meters/flops.py", "\nclass FlopCounter", "\nx = 1\nclass FlopCounter"
    assert edit(*edits) == set()
    assert edit(*edits, layer="counts") == set(EVERYTHING)
    assert edit("suite/record/schema.py", "\nclass Counters", "\nx = 1\nclass Counters", layer="counts") == set()


def test_what_reads_recorded_steps_changes_counts_alone(edit: Edit) -> None:
    probe = "techniques/optimizers/lion/probes.py", "\ndef probes", "\nx = 1\ndef probes"
    assert edit(*probe) == set()
    edit(probe[0], "\nx = 1", "\nx = 2")
    assert edit(probe[0], "\nx = 2", "\nx = 3", layer="counts") == {"lion", "lion+adam"}
    assert "lion" in edit("suite/contract/trace.py", "\nclass Trace", "\nx = 1\nclass Trace", layer="counts")
    assert edit("suite/contract/recording.py", "\nclass Recording", "\nx = 1\nclass Recording") == set()


def test_what_is_not_installed_has_no_hash() -> None:
    for setting, stack in ((GPT, "lion+no_such"), (GPT.but(baseline="no_such"), "lion")):
        assert installed_code(setting, stack) is None
        with pytest.raises(UnknownId, match="is called 'no_such'"):
            code_of(setting, stack)
