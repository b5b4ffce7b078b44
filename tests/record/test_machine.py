import json
import os
from pathlib import Path

import pytest
import torch

from suite.record import machine
from suite.record.machine import (
    differing,
    fingerprint,
    fitness,
    key_of,
    read_context,
    read_facts,
    slug,
    unread,
    unrecorded,
)

CPUINFO = """processor\t: 0
model name\t: AMD EPYC 9554 64-Core Processor
cpu MHz\t\t: {mhz}
flags\t\t: fpu vme hypervisor sse

processor\t: 1
model name\t: AMD EPYC 9554 64-Core Processor
cpu MHz\t\t: 3000.0
flags\t\t: fpu vme hypervisor sse
"""

# What two kinds of virtual machines say, both of which call themselves "AMD EPYC", with two cores and 24 GiB.
AVX512 = """processor\t: 0
vendor_id\t: AuthenticAMD
cpu family\t: 25
model\t\t: 17
model name\t: AMD EPYC
stepping\t: 1
cpu MHz\t\t: 2596.136
cache size\t: 1024 KB
flags\t\t: fpu sse4_2 avx fma avx2 avx512f avx512dq avx512bw avx512vl avx512_bf16 avx512_vnni hypervisor
bogomips\t: 5192.27
"""
AVX2 = """processor\t: 0
vendor_id\t: AuthenticAMD
cpu family\t: 25
model\t\t: 1
model name\t: AMD EPYC
stepping\t: 1
cpu MHz\t\t: 2445.406
cache size\t: 512 KB
flags\t\t: fpu sse4_2 avx fma avx2 hypervisor
bogomips\t: 4890.81
"""
ARM = """processor\t: 0
BogoMIPS\t: 2100.00
Features\t: fp asimd asimddp i8mm bf16 sve
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x1
CPU part\t: 0xd40
CPU revision\t: 1
"""
OF_CARDS = "--query-gpu=compute_cap,clocks.max.sm,clocks.max.memory,power.limit"


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
    """What this file's tests read is of their own environment, and is forgotten after them."""
    monkeypatch.setattr(os, "getloadavg", lambda: (0.1, 0.1, 0.1))
    monkeypatch.setattr(machine, "_nvidia_smi", lambda *arguments: None)
    for name in (*machine.THREAD_VARIABLES, *machine.LIMITS):  # the tests may run under the portable arithmetic
        monkeypatch.delenv(name, raising=False)
    fingerprint.cache_clear()
    yield
    fingerprint.cache_clear()


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


def test_two_cpus_of_one_name_have_two_keys_and_two_names(root):
    both = []
    for cpuinfo in (AVX512, AVX2):
        write(root, "proc/cpuinfo", cpuinfo)
        both.append(read_facts("cpu", 1, root))
    one, two = both
    assert one["cpu"] == two["cpu"] == "AMD EPYC" and one["cores"] == two["cores"]
    assert key_of(one) != key_of(two)
    assert (slug(one).split("-")[2], slug(two).split("-")[2]) == ("f25m17", "f25m1")
    assert [(each["cpu_vendor"], each["cpu_family"], each["cpu_model"], each["cpu_stepping"]) for each in both] == [
        ("AuthenticAMD", 25, 17, 1),
        ("AuthenticAMD", 25, 1, 1),
    ]
    assert two["instruction_sets"] == ["avx", "avx2", "fma"]
    assert one["instruction_sets"] == ["avx", "avx2", "avx512_bf16", "avx512_vnni", "avx512f", "fma"]
    assert [each["nominal_mhz"] for each in both] == [2600, 2450]
    assert one["nominal_mhz_from"] == "BogoMIPS / 2" and one["caches_kib"] == {"unnamed": 1024}
    assert [each["code_path"] for each in both] == ["avx512", "avx2"]
    assert unread(one, root).keys() <= {"blas"}


def test_a_counter_that_was_calibrated_a_little_differently_is_the_same_clock(root):
    write(root, "proc/cpuinfo", AVX512)
    before = read_facts("cpu", 1, root)
    write(root, "proc/cpuinfo", AVX512.replace("5192.27", "5199.92"))
    assert read_facts("cpu", 1, root) == before


def test_what_the_system_says_of_its_clock_comes_first(root):
    write(root, "proc/cpuinfo", AVX512)
    write(root, "sys/devices/system/cpu/cpu0/acpi_cppc/nominal_freq", "3100\n")
    assert read_facts("cpu", 1, root)["nominal_mhz"] == 3100
    write(root, "sys/devices/system/cpu/cpu0/cpufreq/base_frequency", "2200000\n")
    facts = read_facts("cpu", 1, root)
    assert (facts["nominal_mhz"], facts["nominal_mhz_from"]) == (2200, "cpufreq/base_frequency")


def test_caches_are_named_by_their_level(root):
    for index, (level, kind, size) in enumerate(
        [(1, "Data", "32K"), (1, "Instruction", "64K"), (2, "Unified", "1024K"), (3, "Unified", "32768K")]
    ):
        for name, text in (("level", level), ("type", kind), ("size", size)):
            write(root, f"sys/devices/system/cpu/cpu0/cache/index{index}/{name}", f"{text}\n")
    assert read_facts("cpu", 1, root)["caches_kib"] == {"L1d": 32, "L2": 1024, "L3": 32768}


def test_an_arm_cpu_is_told_by_its_part(root):
    write(root, "proc/cpuinfo", ARM)
    facts = read_facts("cpu", 1, root)
    assert (facts["cpu_vendor"], facts["cpu_family"], facts["cpu_model"]) == ("0x41", 8, "0xd40")
    assert facts["cpu_stepping"] == "r0x1p1" and facts["instance"] is None
    assert facts["instruction_sets"] == ["bf16", "dotprod", "i8mm", "neon", "sve"]
    assert facts["nominal_mhz"] is None, "an Arm's BogoMIPS are of a timer"
    assert "nominal_mhz" in unread(facts, root)
    other = ARM.replace("0xd40", "0xd4f")
    write(root, "proc/cpuinfo", other)
    assert key_of(read_facts("cpu", 1, root)) != key_of(facts)


def test_a_library_that_may_not_use_all_instructions_is_another_machine(root, monkeypatch):
    write(root, "proc/cpuinfo", AVX512)
    before = read_facts("cpu", 1, root)
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "avx2")
    after = read_facts("cpu", 1, root)
    assert (before["code_path"], after["code_path"]) == ("avx512", "avx2")
    assert after["instruction_limits"] == {"ATEN_CPU_CAPABILITY": "avx2"}
    assert key_of(after) != key_of(before)


@pytest.mark.parametrize("cpuinfo", [None, "", "processor\t: 0\n"])
def test_machines_whose_cpu_cannot_be_read_are_not_taken_for_each_other(tmp_path, cpuinfo):
    both = []
    for boot in ("one", "two"):
        root = tmp_path / boot
        write(root, "proc/sys/kernel/random/boot_id", f"{boot}\n")
        if cpuinfo is not None:
            write(root, "proc/cpuinfo", cpuinfo)
        both.append(read_facts("cpu", 1, root))
        assert read_facts("cpu", 1, root) == both[-1], "its processes agree on its key"
    assert key_of(both[0]) != key_of(both[1])
    assert both[0] | {"instance": ""} == both[1] | {"instance": ""}
    why = unread(both[0], tmp_path / "one")
    for name in ("cpu_family", "cpu_model", "instruction_sets", "caches_kib", "nominal_mhz"):
        assert both[0][name] is None and why[name]
    assert ("names no CPU" if cpuinfo else "is missing or empty") in why["cpu_family"]


def test_a_fact_that_was_not_recorded_is_no_difference_and_no_likeness():
    old = {"cpu": "AMD EPYC", "cores": 2, "gpu": {"names": ["H"], "count": 1}}
    new = {"cpu": "AMD EPYC", "cores": 4, "cpu_family": 25, "gpu": {"names": ["H"], "count": 2, "power_limit_w": [5.0]}}
    assert differing(old, new) == {"cores": (2, 4), "gpu count": (1, 2)}
    assert unrecorded(old, new) == ["cpu_family", "gpu power_limit_w"]
    assert differing(new, old | {"gpu": None})["gpu"][1] is None
    assert not unrecorded(new, old) and key_of(old) != key_of(old | {"cpu_family": None})


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
        (
            {"cpu": "x" * 99, "cpu_family": 8, "cpu_model": "0x" + "d" * 99, "cores": 2, "memory_gib": 1},
            f"{'x' * 40}-f8m0xddddddd-2c-1g",
        ),
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
    further = "9.0, 1980, 3201, 700.00\n9.0, 1980, 3201, 500.00\n"
    answers = {"-L": listed, "--query-gpu=driver_version": "550.54.15\n550.54.15\n", OF_CARDS: further}
    monkeypatch.setattr(machine, "_nvidia_smi", lambda *arguments: answers[arguments[0]])
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "init", lambda: pytest.fail("made a CUDA context"))
    gpu = read_facts("cuda", 2)["gpu"]
    assert (gpu["names"], gpu["count"], gpu["driver"]) == (names, 2, "550.54.15")
    assert (gpu["compute_capability"], gpu["most_sm_mhz"], gpu["most_memory_mhz"]) == ([9.0], [1980.0], [3201.0])
    assert gpu["power_limit_w"] == [500.0, 700.0]
    answers[OF_CARDS] = "9.0, [N/A], 3201, [Not Supported]\n"
    untold = read_facts("cuda", 2)["gpu"]
    assert (untold["compute_capability"], untold["most_sm_mhz"], untold["power_limit_w"]) == ([9.0], None, None)
    answers[OF_CARDS] = None
    assert read_facts("cuda", 2)["gpu"]["compute_capability"] is None


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
