"""``pytest --only ID`` keeps one entry's tests: no other's, and none of its own is lost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from suite.entries.catalogue import catalogue
from tests import only

FOLDER = Path(__file__).parent


def collected(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", "--collect-only", *arguments],
        cwd=FOLDER.parent,
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.parametrize(
    ("file", "entry"),
    [
        ("techniques/optimizers/test_lion.py", "lion"),
        ("techniques/sharpness/test_saf.py", "saf"),
        ("techniques/sharpness/test_saf_mesa.py", "saf_mesa"),  # not more of saf
        ("techniques/sharpness/test_saf_memory.py", "saf"),
        ("techniques/optimizers/test_adamw.py", "adamw"),  # not adam
        ("techniques/optimizers/test_rate_grid.py", None),
        ("techniques/test_conformance.py", None),
        ("measure/test_lion.py", None),
    ],
)
def test_a_file_is_the_entrys_with_the_longest_name_that_fits(file: str, entry: str | None) -> None:
    assert only.entry_of(FOLDER / file) == entry


@pytest.mark.parametrize(
    ("test", "kept"),
    [
        ("test_it[lion]", True),
        ("test_it[lion-gpt]", True),
        ("test_it[lion/float32-tail]", True),
        ("test_it[lionel-gpt]", False),
        ("test_it[gpt]", False),
        ("test_lion", False),
    ],
)
def test_a_case_is_the_entrys_that_it_is_named_by(test: str, kept: bool) -> None:
    assert only.is_of("lion", FOLDER / "techniques" / "test_conformance.py", test) == kept


@pytest.mark.parametrize(
    ("entry", "file", "kept"),
    [
        ("lamb", "techniques/large_batch/test_layer_moves.py", True),
        ("gact", "techniques/shared/test_packed.py", True),  # through what its category shares
        ("sam", "techniques/large_batch/test_layer_moves.py", False),
        ("adam", "techniques/optimizers/test_adamw.py", False),  # another's own
        ("lamb", "techniques/test_optimizer_contract.py", False),  # of all
        ("rotor", "chain/test_simulate.py", True),  # what it is made with
        ("lion", "chain/test_simulate.py", False),
        ("gpipe", "pipeline/test_schedule.py", True),
        ("lion", "kernels/test_multi_tensor.py", True),
        ("bitfit", "kernels/test_multi_tensor.py", False),
        ("onebit_sgd", "techniques/communication/test_exchange.py", True),
        ("rotor", "measure/test_timing.py", False),
    ],
)
def test_a_file_of_a_shared_module_is_of_each_entry_that_imports_it(entry: str, file: str, kept: bool) -> None:
    assert only.is_of(entry, FOLDER / file, "test_it") == kept


def test_every_entry_has_a_file_of_its_own() -> None:
    tested = {only.entry_of(file) for file in (FOLDER / "techniques").glob("*/test_*.py")}
    assert tested >= set(catalogue())


def test_an_entrys_whole_conformance_is_kept_and_no_other() -> None:
    files = "tests/techniques/test_conformance.py", "tests/techniques/optimizers"
    listed = collected("-m", "not slow", "--only", "lion", *files)
    assert listed.returncode == 0, listed.stdout + listed.stderr
    tests = [line for line in listed.stdout.splitlines() if "::" in line]
    conformance = {line.partition("[")[2] for line in tests if "::test_conformance[" in line}
    assert conformance == {f"lion-{baseline}]" for baseline in catalogue()["lion"].card.baselines}
    listed_files = {FOLDER.parent / line.partition("::")[0] for line in tests}
    assert {only.entry_of(file) for file in listed_files} == {"lion", None}
    assert {"test_lion.py", "test_momentum_kernels.py", "test_moves.py"} <= {file.name for file in listed_files}


def test_an_unknown_entry_is_refused_with_the_nearest_names() -> None:
    refused = collected("--only", "lino", "tests/techniques/test_conformance.py")
    assert refused.returncode == pytest.ExitCode.USAGE_ERROR
    assert "no technique is called 'lino'; did you mean lion" in refused.stderr
