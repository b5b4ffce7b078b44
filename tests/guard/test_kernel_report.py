"""The report on kernels: faults planted in a kernel, its declaration, its code and its peers are seen and named."""

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from suite.cli import Exit, app
from suite.contract.catalogue import Entry, UnknownId
from suite.guard import kernel_report
from suite.guard.kernel_report import Bench, Inputs, Timing, error_units, examine, measured
from suite.kernels.gates import MachineCode

CPU = torch.device("cpu")
CODE = MachineCode(32, 0, 0, {128: 4}, {128: 2}, 64, 8.0, False)
EPS = torch.finfo(torch.float32).eps


def _make(sizes: Sequence[int], device: torch.device, generator: torch.Generator) -> Inputs:
    return kernel_report.random_lists(sizes, device, generator, x=torch.float32, y=torch.float32)


def _reference(inputs: Inputs) -> Inputs:
    return {"x": [x.double() + y.double() for x, y in zip(inputs["x"], inputs["y"])]}


def _add(inputs: Inputs) -> object:
    return lambda: [x.add_(y) for x, y in zip(inputs["x"], inputs["y"])]


BENCH = Bench(_make, _add, _reference, tolerance=1, bytes_per_element=12)


def test_a_right_kernel_is_off_by_its_rounding() -> None:
    found = examine(BENCH, CPU, timed=False)
    assert found.trouble == ""
    assert found.error_units is not None and 0.1 < found.error_units <= 0.5


def _at_odd_addresses(inputs: Inputs) -> object:
    """Right where wide accesses are allowed, wrong elsewhere."""
    aligned = all(x.data_ptr() % 16 == 0 for x in inputs["x"] if x.numel())
    return lambda: [x.add_(y) for x, y in zip(inputs["x"], inputs["y"])] if aligned else None


def _spoil(number: int, value: float) -> object:
    def prepare(inputs: Inputs) -> object:
        def step() -> None:
            for x, y in zip(inputs["x"], inputs["y"]):
                x.add_(y)
            inputs["x"][number][-1] = value

        return step

    return prepare


def _raises(inputs: Inputs) -> object:
    raise RuntimeError("no such thing")


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (lambda inputs: lambda: None, "rounding units, over 1"),
        (_at_odd_addresses, "rounding units, over 1"),
        (_spoil(-1, 1e9), "rounding units, over 1"),
        (_spoil(-2, float("nan")), "NaN or infinity"),
        (_spoil(-2, float("inf")), "NaN or infinity"),
        (_raises, "RuntimeError: no such thing"),
    ],
)
def test_a_wrong_kernel_is_seen(fault: kernel_report.Prepare, words: str) -> None:
    assert words in examine(replace(BENCH, kernel=fault), CPU, timed=False).trouble


def test_rounding_units() -> None:
    one = torch.ones(4, dtype=torch.float64)
    assert error_units({"x": [one.float() + EPS]}, {"x": [one]}) == pytest.approx(1)
    assert error_units({"x": [one.bfloat16() * 1.5]}, {"x": [one]}) == pytest.approx(0.5 * 2**7)
    small = torch.tensor([1.0, 0.0], dtype=torch.float64)  # beside it, a zero is measured by the list
    assert error_units({"x": [small.float() + torch.tensor([0, EPS])]}, {"x": [small]}) == pytest.approx(2**0.5)
    special = torch.tensor([float("nan"), float("inf"), -float("inf"), 1])
    assert error_units({"x": [special], "y": []}, {"x": [special.double()], "y": []}) == 0


def test_odd_copies_are_equal_and_nowhere_aligned() -> None:
    inputs = {"x": [torch.randn(5), torch.randn(0), torch.randn(64)]}
    copies = kernel_report.odd(inputs)
    assert all(map(torch.equal, copies["x"], inputs["x"]))
    assert all(copy.data_ptr() % 16 for copy in copies["x"] if copy.numel())


def test_the_sizes_timed_are_gpt_2s() -> None:
    sizes = kernel_report.transformer_sizes()
    assert (len(sizes), sum(sizes)) == (148, 124_439_808)


def test_share_of_the_floor_and_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clock that says 2 ms for the kernel and 1 ms for what copies or competes."""

    def missing(inputs: Inputs) -> kernel_report.Prepare:
        raise ImportError("No module named 'apex'")

    times_s = {"kernel": 2e-3, "peer": 1e-3}
    monkeypatch.setattr(kernel_report, "transformer_sizes", lambda: [100, 900])
    monkeypatch.setattr(kernel_report, "device_time_s", lambda step, device: times_s[step()])
    monkeypatch.setattr(kernel_report, "copy_bytes_per_s", lambda device: 12e6)
    monkeypatch.setattr(kernel_report, "host_time_s", lambda step, device: 5e-5)
    peers = {"quick": lambda inputs: lambda: "peer", "apex": missing}
    found = measured(replace(BENCH, kernel=lambda inputs: lambda: "kernel", peers=peers), CPU)
    assert found == Timing(
        time_s=2e-3,
        elements=1000,
        copy_bytes_per_s=12e6,
        floor_share=0.5,
        peers={"quick": 0.5, "apex": "unavailable (No module named 'apex')"},
        launch_s={"333": 5e-5, "1000": 5e-5},
    )


KERNEL = """
from types import SimpleNamespace
from suite.kernels.manifest import Budget, Manifest
_one = Manifest(None, {}, {}, 1, budget=Budget(registers=REGISTERS, instructions_per_element=10.0))
MANIFESTS = {"right": _one, "right:part": _one, "wrong": _one, "forgotten": _one}
"""
PEER = """
import torch
from suite.guard.kernel_report import Bench
def make(sizes, device, generator):
    return {"x": [torch.randn(size, generator=generator) for size in sizes]}
def reference(inputs):
    return {"x": [2 * x.double() for x in inputs["x"]]}
def double(inputs):
    return lambda: [x.mul_(2) for x in inputs["x"]]
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
    (folder / "peer.py").write_text(PEER)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    names = ("right", "right:part", "wrong", "forgotten")
    monkeypatch.setattr(kernel_report.gates, "machine_code", lambda module: dict.fromkeys(names, CODE))
    return Entry(name, folder, f"{name}.technique")


def _violations(entry: Entry) -> dict[str, tuple[str, ...]]:
    return {row.kernel: row.violations for row in kernel_report.rows(entry, "cpu", timed=False)}


def test_each_fault_of_a_declaration_is_a_violation(entry: Entry) -> None:
    found = _violations(entry)
    assert found.pop("right") == found.pop("right:part") == ()
    assert {name: len(violations) for name, violations in found.items()} == dict.fromkeys(found, 1)
    for name, words in (("wrong", "rounding units"), ("forgotten", "no bench"), ("ungated", "no manifest")):
        assert words in found.pop(name)[0]
    assert not found


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
    assert rows["ungated"]["code"] is None and rows["forgotten"]["examined"] is None
    (entry.folder / "peer.py").unlink()
    text = CliRunner().invoke(app, ["kernels"])
    assert "no peer.py" in text.stdout and "unavailable (they need --device cuda)" in text.stdout
    assert CliRunner().invoke(app, ["kernels", "--device", "cuda"]).exit_code in (Exit.UNFIT, Exit.REGRESSED)


def test_cells_of_a_timed_row() -> None:
    timing = Timing(1e-3, 10, 4e12, 0.975, {"torch fused": 1.25, "apex": "unavailable (none)"}, {"333": 4e-5})
    examined = kernel_report.Examined(2, 28, 0.5, timing=timing)
    row = kernel_report.Row("adamw", "float32", examined, CODE, (), 218.4)
    cells = kernel_report.line(row, timed=True)
    assert len(cells) == len(kernel_report.CHECK_COLUMNS + kernel_report.TIME_COLUMNS)
    assert cells[-4:] == ["1.000 ms", "97.5 %", "40 us for 333", "torch fused 1.25x; apex unavailable (none)"]
    assert kernel_report.line(replace(row, examined=None, code=None), timed=True)[1:] == ["?"] * 10


def test_a_peers_gradients_are_the_kernels() -> None:
    inputs: Inputs = {"parameters": [torch.ones(2)], "gradients": [torch.full((2,), 3.0)]}
    (parameter,) = kernel_report.with_gradients(inputs)
    grad: Tensor | None = parameter.grad
    assert grad is not None and grad.data_ptr() == inputs["gradients"][0].data_ptr()
    assert parameter.data_ptr() == inputs["parameters"][0].data_ptr()
