import sys
from dataclasses import dataclass, field

import pytest
import torch

from suite.meters import energy
from suite.meters.energy import EnergyMeter


@dataclass
class Measurement:
    time: float = 25.0
    gpu_energy: dict = field(default_factory=dict)
    cpu_energy: dict | None = None
    dram_energy: dict | None = None


class Monitor:
    """As much of a zeus monitor as is used."""

    def __init__(self, measurement):
        self.measurement, self.calls = measurement, []

    def begin_window(self, key):
        self.calls.append(("begin", key))

    def end_window(self, key):
        self.calls.append(("end", key))
        return self.measurement


def read(device, **measured):
    monitor = Monitor(Measurement(**measured))
    with EnergyMeter(device, monitor) as meter:
        pass
    assert monitor.calls == [("begin", energy.WINDOW), ("end", energy.WINDOW)]
    return meter.reading


def test_a_gpu_s_window():
    reading = read("cuda:1", gpu_energy={0: 1.0, 1: 5000.0}, cpu_energy={0: 7.0})
    assert (reading.joules, reading.kind, reading.method, reading.scope) == (
        5000.0,
        "measured_counter",
        "nvml_total_energy",
        "gpu_board",
    )
    assert reading.relative_error_bound == pytest.approx(0.008)
    assert reading.reason == ""


def test_a_cpu_s_window_with_and_without_memory():
    package = read("cpu", cpu_energy={0: 100.0, 1: 50.0})
    assert (package.joules, package.scope) == (150.0, "cpu_package")
    with_memory = read("cpu", cpu_energy={0: 100.0}, dram_energy={0: 10.0})
    assert (with_memory.joules, with_memory.scope) == (110.0, "cpu_package_dram")


def test_a_short_window_carries_its_bound():
    assert read("cuda:0", time=2.0, gpu_energy={0: 600.0}).relative_error_bound == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("device", "measured", "reason"),
    [
        ("cuda:0", {"gpu_energy": {0: 0.0}}, "too short"),  # the counter did not tick: unknown, not nothing
        ("cuda:0", {"gpu_energy": {0: 30.0}, "time": 0.15}, "too short"),
        ("cuda:0", {"gpu_energy": {1: 30.0}}, "GPU 0"),
        ("cpu", {"gpu_energy": {0: 30.0}}, "RAPL"),
    ],
)
def test_unknown_is_not_zero(device, measured, reason):
    reading = read(device, **measured)
    assert (reading.joules, reading.kind, reading.relative_error_bound) == (None, "unavailable", None)
    assert reason in reading.reason


@pytest.fixture
def counters(monkeypatch, tmp_path):
    """A machine whose kernel offers RAPL."""
    (tmp_path / "intel-rapl:0").mkdir()
    monkeypatch.setattr("suite.meters.energy.POWERCAP", tmp_path)


def test_without_counters_the_reason_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr("suite.meters.energy.POWERCAP", tmp_path)
    assert "no RAPL" in EnergyMeter("cpu").reading.reason
    assert not EnergyMeter("cpu").available


def test_with_an_unreadable_counter_training_goes_on_and_the_reason_is_exact(monkeypatch, counters):
    pytest.importorskip("zeus")
    import zeus.device
    from zeus.device.cpu.common import ZeusCPUInitError

    def get_cpus():
        raise ZeusCPUInitError("no RAPL here")

    monkeypatch.setattr(zeus.device, "get_cpus", get_cpus)
    with EnergyMeter("cpu") as meter:
        pass
    assert meter.reading.joules is None
    assert meter.reading.reason == "ZeusCPUInitError: no RAPL here"


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_no_gpu_here():
    assert EnergyMeter("cuda:0").reading.kind == "unavailable"
    assert EnergyMeter("cuda:0").reading.reason


def test_without_zeus(monkeypatch, counters):
    monkeypatch.setitem(sys.modules, "zeus", None)
    assert "leantrain[energy]" in EnergyMeter("cpu").reading.reason
