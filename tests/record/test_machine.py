import json
import os
from pathlib import Path

import pytest
import torch

from suite.record import machine
from suite.record.machine import fingerprint, fitness, read_context, read_facts, slug

CPUINFO = """processor\t: 0
model name\t: AMD EPYC 9554 64-Core Processor
cpu MHz\t\t: {mhz}
flags\t\t: fpu vme hypervisor sse

processor\t: 1
model name\t: AMD EPYC 9554 64-Core Processor
cpu MHz\t\t: 3000.0
flags\t\t: fpu vme hypervisor sse
"""


@pytest.fixture
def root(tmp_path):
    """A machine's /proc and /sys, fit and idle."""
    write(tmp_path, "proc/cpuinfo", CPUINFO.format(mhz=2000.0))
    write(tmp_path, "proc/meminfo", "MemTotal: 25165824 kB\nSwapTotal: 8388608 kB\nSwapFree: 8388608 kB\n")
    write(tmp_path, "proc/stat", "cpu  100 0 100 800 0 0 0 0 0 0\nbtime 1700000000\n")
    return tmp_path


def write(root: Path, name: str, text: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    monkeypatch.setattr(os, "getloadavg", lambda: (0.1, 0.1, 0.1))
    monkeypatch.setattr(machine, "_nvidia_smi", lambda *arguments: None)
    for name in machine.THREAD_VARIABLES:
        monkeypatch.delenv(name, raising=False)


def test_this_machine_has_a_stable_fingerprint_that_is_json():
    here = fingerprint("cpu", 1)
    assert here is fingerprint("cpu", 1)
    assert here.key != fingerprint("cpu", 2).key
    assert here.name.endswith(here.key[:6])
    assert (here.facts["threads"], here.facts["gpu"]) == (1, None)
    json.dumps([here.facts, here.context], allow_nan=False)
    fingerprint.cache_clear()
    assert fingerprint("cpu", 1).key == here.key


def test_the_host_is_not_named():
    text = json.dumps(read_context())
    assert os.uname().nodename not in json.loads(text).values()
    assert len(json.loads(text)["hostname_sha256"]) == 16


def test_facts_come_from_the_kernel(root):
    facts = read_facts("cpu", 2, root)
    assert facts["cpu"] == "AMD EPYC 9554 64-Core Processor"
    assert facts["memory_gib"] == 24
    assert facts["hypervisor"] == "unnamed"
    assert facts["cpu_quota"] is None


def test_what_changes_by_itself_is_no_fact(root):
    before = read_facts("cpu", 2, root)
    write(root, "proc/cpuinfo", CPUINFO.format(mhz=3700.0))
    write(root, "proc/meminfo", "MemTotal: 25165700 kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\n")
    write(root, "proc/stat", "cpu  900 0 100 800 0 0 0 9 0 0\nbtime 1800000000\n")
    assert read_facts("cpu", 2, root) == before


def test_a_container_s_limits_are_facts(root):
    write(root, "sys/fs/cgroup/cpu.max", "150000 100000\n")
    write(root, "sys/fs/cgroup/memory.max", str(8 * 2**30))
    facts = read_facts("cpu", 2, root)
    assert (facts["cpu_quota"], facts["memory_gib"]) == (1.5, 8)


def test_bare_metal_and_a_named_hypervisor(root):
    write(root, "sys/class/dmi/id/product_name", "KVM\n")
    assert read_facts("cpu", 2, root)["hypervisor"] == "KVM"
    write(root, "proc/cpuinfo", CPUINFO.format(mhz=1).replace("hypervisor ", ""))
    assert read_facts("cpu", 2, root)["hypervisor"] is None


def test_a_machine_that_shows_nothing_has_unknown_facts_and_no_zeros(tmp_path):
    facts, context = read_facts("cpu", 2, tmp_path), read_context(tmp_path)
    assert facts["memory_gib"] is None
    assert context["steal_share_since_boot"] is None
    assert context["cpu_mhz"] is None
    assert fitness("cpu", tmp_path, window_s=0) == []
    assert slug(facts)


@pytest.mark.parametrize(
    ("facts", "name"),
    [
        ({"cpu": "AMD EPYC", "cores": 2, "memory_gib": 24}, "amd-epyc-2c-24g"),
        ({"cpu": "AMD EPYC 9554 64-Core Processor", "cores": 64, "memory_gib": 512}, "amd-epyc-9554-64c-512g"),
        ({"cpu": "Intel(R) Xeon(R) Gold 6338 CPU @ 2GHz", "cores": 8, "memory_gib": None}, "intel-xeon-gold-6338-8c"),
        ({"cpu": "x", "gpu": {"names": ["NVIDIA H200"], "count": 1}}, "nvidia-h200"),
        ({"cpu": "x", "gpu": {"names": ["NVIDIA H200 MIG 1g.18gb"], "count": 2}}, "nvidia-h200-mig-1g-18gb-x2"),
        ({"cpu": "../../etc/passwd <b>", "cores": 1, "memory_gib": 1}, "etc-passwd-b-1c-1g"),
    ],
)
def test_names_are_readable_and_safe_as_folders(facts, name):
    assert slug(facts) == name


@pytest.mark.parametrize(
    ("listed", "names"),
    [
        ("GPU 0: NVIDIA H200 (UUID: GPU-1)\nGPU 1: NVIDIA H200 (UUID: GPU-2)\n", ["NVIDIA H200"]),
        ("GPU 0: NVIDIA H200 (UUID: GPU-1)\n  MIG 1g.18gb     Device  0: (UUID: MIG-1)\n", ["NVIDIA H200 MIG 1g.18gb"]),
    ],
)
def test_gpus_are_facts_without_a_cuda_context(monkeypatch, listed, names):
    answers = {"-L": listed, "--query-gpu=driver_version": "550.54.15\n550.54.15\n"}
    monkeypatch.setattr(machine, "_nvidia_smi", lambda *arguments: answers[arguments[0]])
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "init", lambda: pytest.fail("made a CUDA context"))
    gpu = read_facts("cuda", 2)["gpu"]
    assert (gpu["names"], gpu["count"], gpu["driver"]) == (names, 2, "550.54.15")


def test_a_fit_machine_gets_no_warning(root):
    assert fitness("cpu", root, window_s=0) == []


@pytest.mark.parametrize(
    ("name", "text", "warning"),
    [
        ("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n", "governor is powersave"),
        ("proc/meminfo", "MemTotal: 100 kB\nSwapTotal: 100 kB\nSwapFree: 80 kB\n", "swapped out"),
        ("sys/class/power_supply/BAT0/status", "Discharging\n", "battery"),
        ("sys/fs/cgroup/cpu.stat", "nr_periods 100\nnr_throttled 7\n", "throttled in 7%"),
    ],
)
def test_what_disturbs_is_named(root, name, text, warning):
    write(root, name, text)
    (found,) = fitness("cpu", root, window_s=0)
    assert warning in found


def test_load_and_environment_are_named(root, monkeypatch):
    monkeypatch.setattr(os, "getloadavg", lambda: (1000.0, 0.0, 0.0))
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    load, threads = fitness("cpu", root, window_s=0)
    assert "the load is 1000" in load
    assert "OMP_NUM_THREADS=7" in threads


def test_time_stolen_during_the_window_is_named(root, monkeypatch):
    later = "cpu  150 0 100 840 0 0 0 10 0 0\n"
    monkeypatch.setattr(machine.time, "sleep", lambda seconds: write(root, "proc/stat", later))
    (found,) = fitness("cpu", root)
    assert "10%" in found


def test_other_users_of_the_gpu_and_slowed_clocks_are_named(root, monkeypatch):
    answers = {"--query-compute-apps=pid": f"{os.getpid()}\n4242\n"}
    monkeypatch.setattr(machine, "_nvidia_smi", lambda *arguments: answers.get(arguments[0], "Not Active, Active\n"))
    users, clocks = fitness("cuda", root, window_s=0)
    assert "1 other processes use the GPU" in users
    assert "sw_thermal_slowdown" in clocks
    assert "hw_slowdown" not in clocks
