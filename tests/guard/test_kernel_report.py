"""The report on kernels: faults in a kernel, its declaration and its code are named."""

import json
import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from suite.cli import Exit, app
from suite.entries.catalogue import Entry, UnknownId
from suite.guard import kernel_report
from suite.kernels.bench import BenchTiming, Examination
from suite.kernels.gates import MachineCode
from suite.measure.provenance import silent
from suite.process import programs

CODE = MachineCode(32, 0, 0, {128: 4}, {128: 2}, 64, 8.0, False)

KERNEL = """
from types import SimpleNamespace
from suite.kernels.manifest import Budget, Manifest
kernel = SimpleNamespace(arg_names=["x", "DROPPED"], pre_run_hooks=[])
def launch(x, dropped):
    for hook in kernel.pre_run_hooks:
        hook(x, DROPPED=dropped)
def _one(dropped):
    budget = Budget(registers=REGISTERS, instructions_per_element=10.0)
    return Manifest(kernel, {"x": "*fp32"}, {"DROPPED": dropped}, 1, budget=budget)
MANIFESTS = {"right": _one(False), "right:part": _one(False), "right:dropped": _one(True), "wrong": _one(False),
             "forgotten": _one(False)}
"""
PEER = """
import torch
from suite.process import programs
from suite.kernels.bench import Bench
from FOLDER import kernel
def make(sizes, device, generator):
    return {"x": [torch.randn(size, generator=generator) for size in sizes]}
def reference(inputs):
    return {"x": [2 * x.double() for x in inputs["x"]]}
def double(inputs):
    return lambda: [kernel.launch(x.mul_(2), False) for x in inputs["x"]]
def nothing(inputs):
    return lambda: None
BENCHES = {"right": Bench(make, double, reference, 0, 8), "wrong": Bench(make, nothing, reference, 0, 8),
           "ungated": Bench(make, double, reference, 0, 8)}
"""


@pytest.fixture
def entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Entry:
    """A technique whose kernels have every fault of a declaration; the machine code is stubbed."""
    name = f"reported_{request.node.name.split('[')[0]}"
    folder = tmp_path / name
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "kernel.py").write_text(KERNEL.replace("REGISTERS", "255"))
    (folder / "peer.py").write_text(PEER.replace("FOLDER", name))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    names = ("right", "right:part", "right:dropped", "wrong", "forgotten")
    monkeypatch.setattr(kernel_report.gates, "machine_code", lambda module: dict.fromkeys(names, CODE))
    return Entry(name, folder, f"{name}.technique")


def _violations(entry: Entry) -> dict[str, tuple[str, ...]]:
    return {row.kernel: row.violations for row in kernel_report.rows_of(entry, "cpu", timed=False)}


def test_each_fault_of_a_declaration_is_a_violation(entry: Entry) -> None:
    violations = _violations(entry)
    assert violations.pop("right") == violations.pop("right:part") == ()
    assert {name: len(each) for name, each in violations.items()} == dict.fromkeys(violations, 1)
    for name, words in (
        ("wrong", "rounding units"),
        ("forgotten", "no bench"),
        ("ungated", "no manifest"),
        ("right:dropped", "launches no kernel of this form"),
    ):
        assert words in violations.pop(name)[0]
    assert not violations


def test_what_cannot_be_examined_says_why(entry: Entry, monkeypatch: pytest.MonkeyPatch) -> None:
    (entry.folder / "peer.py").write_text("import no_such_module")
    assert "No module named 'no_such_module'" in _violations(entry)["right"][0]
    (entry.folder / "peer.py").unlink()
    assert "no peer.py" in _violations(entry)["right"][0]

    def broken(module: str) -> dict[str, MachineCode]:
        raise RuntimeError("does not compile for sm_90")

    monkeypatch.setattr(kernel_report.gates, "machine_code", broken)
    assert _violations(entry)["right"][1] == "does not compile for sm_90"


def test_a_gate_that_fails_is_a_violation(entry: Entry) -> None:
    (entry.folder / "kernel.py").write_text(KERNEL.replace("REGISTERS", "31"))
    (entry.folder / "peer.py").unlink()
    assert _violations(entry)["right"][1] == "32 registers, over 31"


def test_what_runs_ends_with_the_command(entry: Entry, tmp_path: Path) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # who runs the tests may ignore it
    begun, over = tmp_path / "begun", tmp_path / "over"
    wait = f"import pathlib, subprocess, sys, time\npathlib.Path({str(begun)!r}).touch()\n"
    lasting = f"import pathlib, time; time.sleep(5); pathlib.Path({str(over)!r}).touch()"
    (entry.folder / "peer.py").write_text(wait + f"subprocess.run([sys.executable, '-c', {lasting!r}])\n")

    def end() -> None:
        while not begun.exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=end, daemon=True)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        kernel_report.rows([entry], "cpu", timed=False, progress=silent)
    assert not over.exists() and not programs._running


def test_a_selection_names_techniques_that_have_kernels() -> None:
    assert [entry.id for entry in kernel_report.selected(["lion"])] == ["lion"]
    assert {"adamw", "lion", "sam"} <= {entry.id for entry in kernel_report.selected([])}
    with pytest.raises(UnknownId, match="no technique with a kernel is called 'lawa'"):
        kernel_report.selected(["lawa"])


def test_command_exits_by_the_violations_and_prints_json(entry: Entry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_report, "selected", lambda ids: [entry])
    result = CliRunner().invoke(app, ["kernels", "--check", "--json"])
    assert result.exit_code == Exit.REGRESSED
    rows = {row["kernel"]: row for row in json.loads(result.stdout)}
    assert rows["right"]["code"]["registers"] == 32 and rows["right"]["examined"]["error_units"] == 0
    assert kernel_report.line(kernel_report.rows_of(entry, "cpu", timed=False)[2], timed=False)[1] == "?"
    assert rows["ungated"]["code"] is None and rows["forgotten"]["examined"] is None
    (entry.folder / "peer.py").unlink()
    text = CliRunner().invoke(app, ["kernels"])
    assert "no peer.py" in text.stdout and "unavailable (they need --device cuda)" in text.stdout
    assert CliRunner().invoke(app, ["kernels", "--device", "cuda"]).exit_code in (Exit.UNFIT, Exit.REGRESSED)


def test_cells_of_a_timed_row() -> None:
    timing = BenchTiming(1e-3, 10, 4e12, 0.975, {"torch fused": 1.25, "apex": "unavailable (none)"}, {"333": 4e-5})
    examined = Examination(2, 28, 0.5, timing=timing)
    row = kernel_report.KernelRow("adamw", "float32", examined, CODE, (), 218.4)
    cells = kernel_report.line(row, timed=True)
    assert len(cells) == len(kernel_report.CHECK_COLUMNS + kernel_report.TIME_COLUMNS)
    assert cells[-4:] == ["1.000 ms", "97.5 %", "40 us for 333", "torch fused 1.25x; apex unavailable (none)"]
    assert kernel_report.line(replace(row, examined=None, code=None), timed=True)[1:] == ["?"] * 10
