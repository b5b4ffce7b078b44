"""The cases for pytest-benchmark: every technique has one, a machine stays the same, and a real run says it all."""

from __future__ import annotations

import copy
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from suite.entries.catalogue import catalogue

pytest.importorskip("pytest_benchmark", reason="pytest-benchmark is not installed: pip install 'leantrain[bench]'")
FOLDER = Path(__file__).parents[1] / "benchmarks"


def module(name):
    spec = importlib.util.spec_from_file_location(f"benchmarks_{name}", FOLDER / f"{name}.py")
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def test_every_technique_has_a_case_beside_its_reference():
    cases = list(module("test_techniques").cases())
    assert {stack for stack, _, _ in cases} == {"baseline", *catalogue()}
    assert {case[1:] for case in cases} == {case[1:] for case in cases if case[0] == "baseline"}
    assert len(cases) == len(set(cases))


def test_every_bench_of_a_kernel_has_a_case():
    benched = {entry.id for entry in catalogue().values() if (entry.folder / "peer.py").is_file()}
    names = [case.id for case in module("test_kernels").cases()]
    kernels = [name for name in names if name.endswith("-kernel")]
    assert benched
    assert all(any(name.startswith(f"{id}-") for name in kernels) for id in benched)
    assert len(names) == len(set(names))


def test_a_machine_is_the_same_an_hour_later():
    update = module("conftest").pytest_benchmark_update_machine_info
    now = {"node": "a", "system": "Linux", "cpu": {"brand_raw": "x", "hz_actual": [1, 0], "hz_actual_friendly": "1 Hz"}}
    later = copy.deepcopy(now) | {"node": "b"}
    later["cpu"] |= {"hz_actual": [2, 0], "hz_actual_friendly": "2 Hz"}
    other = copy.deepcopy(now)
    other["cpu"]["brand_raw"] = "y"
    for each in (now, later, other):
        update(None, each)
    assert now == later
    assert now != other
    assert now["leantrain"]["key"]
    assert "context" not in now["leantrain"]


def test_a_real_run_carries_counts_floor_and_fingerprint(tmp_path):
    report = tmp_path / "report.json"
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "benchmarks/test_optimizers.py",
            "--benchmark-only",
            "-q",
            "-k",
            "torch",
            "-p",
            "no:cacheprovider",
            f"--benchmark-json={report}",
        ],
        cwd=FOLDER.parent,
        capture_output=True,
        text=True,
        timeout=300,
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")},  # it is no worker
    )
    assert done.returncode == 0, done.stdout + done.stderr
    written = json.loads(report.read_text())
    (case,) = [each for each in written["benchmarks"] if each["extra_info"]["device"] == "cpu"]
    extra = case["extra_info"]
    parameters = extra["peak_by_kind"]["parameters"]
    assert extra["optimizer_state_bytes"] == 2 * parameters  # AdamW's two moments; its step counters are no state
    assert extra["floor_bytes"] == 7 * parameters  # 28 bytes a float32 parameter
    assert extra["peak_tensor_bytes"] >= 4 * parameters
    assert extra["floor_s"] == pytest.approx(extra["floor_bytes"] / extra["bandwidth_bytes_per_s"])
    assert extra["floor_share"] == pytest.approx(extra["floor_s"] / case["stats"]["median"])
    assert case["stats"]["rounds"] == 20
    assert written["machine_info"]["leantrain"]["facts"]
    assert "node" not in written["machine_info"]
