"""Reads the machine as a fingerprint, and tells whether it is fit to measure on.

*Facts* are what decides speed and stays put; equal facts make equal keys, and only results of one key are ranked
together. *Context* is volatile or informational, and never compared. What cannot be read is None, never 0, and
``context["unread"]`` says why. Records of older versions have fewer facts: a fact that they lack is *not recorded*,
which equals nothing, so their timings never count as those of a machine of which it is known.

Everything is read from Linux's ``/proc`` and ``/sys`` and from ``nvidia-smi``: no CUDA context is made in this process,
since it would show up as memory and as a GPU user in the very measurements that it describes. Elsewhere fewer
facts are known.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from suite.record.git import GitFailed, git
from suite.record.numerics import VARIABLES
from suite.record.schema import Machine

ROOT = Path("/")
ENVIRONMENT = (  # what changes speed without showing in any fact
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "OMP_PROC_BIND",
    "OMP_PLACES",
    "OMP_WAIT_POLICY",
    "GOMP_CPU_AFFINITY",
    "KMP_AFFINITY",
    "KMP_BLOCKTIME",
    "MALLOC_ARENA_MAX",
    "CUDA_LAUNCH_BLOCKING",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_ALLOC_CONF",
    "CUBLAS_WORKSPACE_CONFIG",
    "NVIDIA_TF32_OVERRIDE",
)
IMAGE = "LEANTRAIN_IMAGE"  # the digest of the container's image, which nothing inside can know
LIMITS = (*VARIABLES, "OPENBLAS_CORETYPE")
"""What keeps a library from instructions that the CPU has: another code path, another speed."""

INSTRUCTION_SETS = {  # by the kernel's name of the flag; those that kernels of this decade choose between
    "avx": "avx",
    "avx2": "avx2",
    "fma": "fma",
    "avx_vnni": "avx_vnni",
    "avx512f": "avx512f",
    "avx512_vnni": "avx512_vnni",
    "avx512_bf16": "avx512_bf16",
    "avx512_fp16": "avx512_fp16",
    "amx_tile": "amx",
    "amx_bf16": "amx_bf16",
    "asimd": "neon",
    "asimddp": "dotprod",
    "i8mm": "i8mm",
    "bf16": "bf16",
    "sve": "sve",
    "sve2": "sve2",
    "sme": "sme",
}
ATEN_AVX512 = frozenset(("avx512f", "avx512dq", "avx512bw", "avx512vl", "fma"))
CLOCK_STEP_MHZ = 50  # makers name clocks in such steps, and a counter's calibration is a few MHz beside them
LIBRARIES = ("torch", "transformers", "timm")
"""The libraries whose models are trained: they decide which operators a step issues, and what attaches to a model."""
PACKAGES = ("transformers", "timm", "triton", "bitsandbytes", "lion_pytorch", "peft", "torchao")
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
STEAL_SHARE = 0.01
THROTTLED_SHARE = 0.01
SWAPPED_SHARE = 0.05
WINDOW_S = 0.5  # /proc/stat counts in hundredths of a second: enough to see 1 % on two cores


@cache
def fingerprint(device: str, threads: int) -> Machine:
    """Returns the machine, to a run on ``device`` ("cpu", "cuda") with ``threads`` torch threads; read once a
    process."""
    facts = read_facts(device, threads)
    key = key_of(facts)
    context = read_context() | {"unread": unread(facts)}
    return Machine(name=f"{slug(facts)}-{key[:6]}", key=key, facts=facts, context=context)


def key_of(facts: Mapping[str, Any]) -> str:
    """Returns the hash of the facts."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def slug(facts: Mapping[str, Any]) -> str:
    """Returns a readable name from the facts: ``amd-epyc-f25m17-2c-24g`` (family and model, where they are recorded),
    or the GPU's name with its count where one is used."""
    if gpu := facts.get("gpu"):
        count = f"-x{gpu['count']}" if gpu["count"] > 1 else ""
        return _words(" and ".join(gpu["names"])) + count
    family, model = (facts.get(name) for name in ("cpu_family", "cpu_model"))
    which = [_words(f"f{family}m{model}")[:12]] if family is not None and model is not None else []
    size = [f"{facts['cores']}c"] + ([f"{facts['memory_gib']}g"] if facts["memory_gib"] else [])
    return "-".join([_words(facts["cpu"] or "cpu"), *which, *size])


def _words(name: str) -> str:
    """Turns ``"Intel(R) Xeon(R) Gold 6338 CPU @ 2.00GHz"`` -> ``"intel-xeon-gold-6338"``; at most 40 characters."""
    bare = re.sub(r"\((R|TM|tm|r)\)|@.*|\b(CPU|Processor|\d+-Core|GPU)\b", " ", name)
    return "-".join(re.findall(r"[a-z0-9]+", bare.lower()))[:40].strip("-") or "unknown"


# facts ---------------------------------------------------------------------------------------------------------------


def read_facts(device: str, threads: int, root: Path = ROOT) -> dict[str, Any]:
    """Returns what must be equal for results to be ranked together; JSON values."""
    return _cpu(root) | {
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "cpu_quota": _cpu_quota(root),
        "memory_gib": _memory_gib(root),
        "hypervisor": _hypervisor(root),
        "system": f"{platform.system()} {'.'.join(platform.release().split('.')[:2])}",
        "python": ".".join(platform.python_version_tuple()[:2]),
        "torch": torch_version(),
        "blas": _blas(),
        "code_path": _code_path(root),
        "instruction_limits": {name: os.environ[name] for name in LIMITS if name in os.environ},
        "threads": threads,
        "gpu": _gpu() if device.startswith("cuda") else None,
    }


def torch_version() -> str | None:
    """Returns ``torch.__version__``, with the build that the package's metadata leave out, and without importing
    torch."""
    package = find_spec("torch")
    source = _text(Path(package.origin).with_name("version.py")) if package and package.origin else None
    stated = re.search(r"^__version__ = '([^']+)'", source or "", re.MULTILINE)
    return stated[1] if stated else _version("torch")


def _cpu(root: Path) -> dict[str, Any]:
    """Tells which CPU it is. Its name alone does not say: a virtual machine's may be "AMD EPYC" on any generation of
    them.

    ``instance`` tells machines apart of whose CPU nothing is known: this one, since it was started; else None.
    """
    said = _cpuinfo(root)
    arm = "CPU part" in said
    family, model = (said.get(key) for key in (("CPU architecture", "CPU part") if arm else ("cpu family", "model")))
    stepping = f"r{said.get('CPU variant')}p{said.get('CPU revision')}" if arm else _whole(said.get("stepping"))
    mhz, source = _nominal_clock(root)
    return {
        "cpu": said.get("model name") or platform.processor() or platform.machine() or None,
        "cpu_vendor": said.get("CPU implementer" if arm else "vendor_id"),
        "cpu_family": _whole(family),
        "cpu_model": model if arm else _whole(model),
        "cpu_stepping": stepping,
        "instruction_sets": sorted({INSTRUCTION_SETS[flag] for flag in _flags(root) & INSTRUCTION_SETS.keys()}) or None,
        "caches_kib": _caches_kib(root),
        "nominal_mhz": mhz,
        "nominal_mhz_from": source,
        "instance": _instance(root) if family is None or model is None else None,
    }


def _whole(text: str | None) -> int | None:
    return int(text) if text and text.isdigit() else None


def _flags(root: Path) -> set[str]:
    """Returns the instruction sets by the kernel's names."""
    said = _cpuinfo(root)
    return set((said.get("flags") or said.get("Features") or "").split())


def _caches_kib(root: Path) -> dict[str, int] | None:
    """Returns the data caches of the first core by level, each in KiB; where the kernel does not list them the one that
    ``/proc/cpuinfo`` has, which does not say its level."""
    caches_kib = {}
    for index in sorted((root / "sys/devices/system/cpu/cpu0/cache").glob("index[0-9]*")):
        level, kind, size = ((_text(index / name) or "").strip() for name in ("level", "type", "size"))
        if kind in ("Data", "Unified") and (kib := _whole(size.removesuffix("K"))):
            caches_kib[f"L{level}{'d' if kind == 'Data' else ''}"] = kib
    stated = _whole((_cpuinfo(root).get("cache size") or "").removesuffix(" KB"))
    return caches_kib or ({"unnamed": stated} if stated else None)


def _nominal_clock(root: Path) -> tuple[int | None, str | None]:
    """Returns the clock in MHz that the CPU is sold with, to the nearest CLOCK_STEP_MHZ, and what says so. A virtual
    machine sees only the time-stamp counter, which on x86 runs at that clock: BogoMIPS are twice its MHz."""
    of_first = root / "sys/devices/system/cpu/cpu0"
    stated = (
        ("cpufreq/base_frequency", _whole((_text(of_first / "cpufreq/base_frequency") or "").strip()), 1000),
        ("acpi_cppc/nominal_freq", _whole((_text(of_first / "acpi_cppc/nominal_freq") or "").strip()), 1),
    )
    for name, number, per_mhz in stated:
        if number:
            return CLOCK_STEP_MHZ * round(number / per_mhz / CLOCK_STEP_MHZ), name
    bogomips = _cpuinfo(root).get("bogomips", "")  # spelled BogoMIPS where it is another counter's
    if not re.fullmatch(r"\d+(\.\d+)?", bogomips):
        return None, None
    return CLOCK_STEP_MHZ * round(float(bogomips) / 2 / CLOCK_STEP_MHZ), "BogoMIPS / 2"


def _instance(root: Path) -> str:
    """Tells this machine from every other one, until it is started again."""
    parts = [_text(root / name) for name in ("etc/machine-id", "proc/sys/kernel/random/boot_id")]
    return hashlib.sha256(repr((*parts, socket.gethostname())).encode()).hexdigest()[:16]


def _blas() -> str | None:
    """Names the library of torch's matrix products, as far as its files tell; its version is that of torch's build."""
    package = find_spec("torch")
    if not package or not package.origin:
        return None
    folder = Path(package.origin).parent
    if "caffe2::mkl" in (_text(folder / "share/cmake/Caffe2/Caffe2Targets.cmake") or ""):
        return "mkl"
    files = [path.name for place in (folder / "lib", folder.with_name("torch.libs")) for path in place.glob("lib*")]
    known = ("mkl", "openblas", "armpl", "nvpl_blas", "blis")
    return next((name for name in known if any(file.startswith(f"lib{name}") for file in files)), None)


def _code_path(root: Path) -> str | None:
    """Tells which of its kernels torch takes: its own rule, or what the environment says. None where no flags are
    known, and with SVE, where the vectors' length decides, too."""
    flags = _flags(root)
    if stated := os.environ.get("ATEN_CPU_CAPABILITY"):
        return stated.lower()
    if not flags or "sve" in flags:
        return None
    return "avx512" if flags >= ATEN_AVX512 else "avx2" if flags >= {"avx2", "fma"} else "default"


def _cpuinfo(root: Path) -> dict[str, str]:
    """Returns the first processor's entry."""
    first = (_text(root / "proc/cpuinfo") or "").split("\n\n")[0]
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _cpu_quota(root: Path) -> float | None:
    """Returns the cores' worth of time that the control group allows, where it sets a limit (cgroup v2 ``cpu.max``)."""
    fields = (_text(root / "sys/fs/cgroup/cpu.max") or "max").split()
    return None if fields[0] == "max" else round(int(fields[0]) / int(fields[1]), 2)


def _memory_gib(root: Path) -> int | None:
    """Returns the physical memory, or the control group's limit where that is lower, in GiB rounded to whole ones."""
    total = _meminfo(root).get("MemTotal")
    limit = (_text(root / "sys/fs/cgroup/memory.max") or "max").strip()
    known = [size for size in (total, int(limit) if limit.isdigit() else None) if size is not None]
    return round(min(known) / 2**30) if known else None


def _meminfo(root: Path) -> dict[str, int]:
    """Returns bytes by name."""
    rows = re.findall(r"^(\w+):\s+(\d+) kB", _text(root / "proc/meminfo") or "", re.MULTILINE)
    return {name: int(kib) * 1024 for name, kib in rows}


def _hypervisor(root: Path) -> str | None:
    """Tells who virtualises this machine: a product name, ``"unnamed"`` where only the CPU flag tells, None on bare
    metal."""
    product = _text(root / "sys/hypervisor/type") or _text(root / "sys/class/dmi/id/product_name")
    virtual = "hypervisor" in _cpuinfo(root).get("flags", "").split()
    return ((product or "").strip() or "unnamed") if virtual else None


def _gpu() -> dict[str, Any] | None:
    """Reads names (of whole cards or of MIG slices), count of those that torch may use, driver, torch's CUDA version,
    and of the cards each different compute capability, most MHz and limit in W."""
    import torch  # takes seconds, and only a GPU needs it

    if not torch.cuda.device_count():
        return None
    listed = _nvidia_smi("-L") or ""
    cards = re.findall(r"^GPU \d+: (.*?) \(", listed, re.MULTILINE)
    slices = re.findall(r"^\s+(MIG \S+)", listed, re.MULTILINE)
    names = [f"{cards[0]} {mig_slice}" for mig_slice in slices] if cards and slices else cards
    driver = _nvidia_smi("--query-gpu=driver_version", "--format=csv,noheader")
    asked = ("compute_cap", "clocks.max.sm", "clocks.max.memory", "power.limit")
    said = _nvidia_smi(f"--query-gpu={','.join(asked)}", "--format=csv,noheader,nounits") or ""
    lines = [[part.strip() for part in line.split(",")] for line in said.splitlines()]
    columns = zip(*(line for line in lines if len(line) == len(asked)), strict=True)
    capability, sm, memory, power = [_numbers(column) for column in columns] or [None] * len(asked)
    return {
        "names": sorted(set(names)) or [torch.cuda.get_device_name()],
        "count": torch.cuda.device_count(),
        "driver": driver.splitlines()[0].strip() if driver else None,
        "cuda": torch.version.cuda,
        "compute_capability": capability,
        "most_sm_mhz": sm,
        "most_memory_mhz": memory,
        "power_limit_w": power,
    }


def _numbers(values: Iterable[str]) -> list[float] | None:
    """Returns the different numbers, from the least on; None where there is none, as of what a card does not tell."""
    return sorted({float(value) for value in values if re.fullmatch(r"\d+(\.\d+)?", value)}) or None


def _nvidia_smi(*arguments: str) -> str | None:
    return _output("nvidia-smi", *arguments)


def unread(facts: Mapping[str, Any], root: Path = ROOT) -> dict[str, str]:
    """Tells why facts about the CPU are None, by their names; of what may rightly be None nothing is said."""
    if "model name" in _cpuinfo(root) or "CPU part" in _cpuinfo(root):
        cpuinfo = "/proc/cpuinfo does not say it"
    else:
        cpuinfo = f"/proc/cpuinfo {'names no CPU' if _text(root / 'proc/cpuinfo') else 'is missing or empty'}"
    reasons = dict.fromkeys(("cpu_vendor", "cpu_family", "cpu_model", "cpu_stepping", "instruction_sets"), cpuinfo) | {
        "caches_kib": "neither /sys/devices/system/cpu nor /proc/cpuinfo has it",
        "nominal_mhz": "neither cpufreq nor acpi_cppc nor BogoMIPS of an x86 says it",
        "nominal_mhz_from": "there is no such clock",
        "blas": "torch's files do not name it",
        "code_path": "torch's rule for these instruction sets is not known here",
    }
    return {name: why for name, why in reasons.items() if facts.get(name) is None}


def unrecorded(facts: Mapping[str, Any], beside: Mapping[str, Any]) -> list[str]:
    """Lists the names of the facts that only ``beside`` has: an older version did not record them."""
    return [name for name in _flat(beside) if name not in _flat(facts)]


def differing(facts: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Finds the facts that both have and in which they differ, as (of the first, of the other), by name."""
    one, two = _flat(facts), _flat(other)
    return {name: (one[name], two[name]) for name in one if name in two and one[name] != two[name]}


def _flat(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Lists the facts with the GPU's one by one."""
    gpu = facts.get("gpu")
    return {**facts, **{f"gpu {name}": value for name, value in gpu.items()}, "gpu": True} if gpu else dict(facts)


# context -------------------------------------------------------------------------------------------------------------


def read_context(root: Path = ROOT) -> dict[str, Any]:
    """Reads what may explain a result but does not decide whether it is comparable; JSON values."""
    boot = re.search(r"^btime (\d+)", _text(root / "proc/stat") or "", re.MULTILINE)
    ticks = _cpu_ticks(root)
    mhz = re.findall(r"^cpu MHz\s*: ([\d.]+)", _text(root / "proc/cpuinfo") or "", re.MULTILINE)
    return {
        "load_1m": _load(),
        "cpu_mhz": round(sum(map(float, mhz)) / len(mhz)) if mhz else None,
        "steal_share_since_boot": round(ticks["steal"] / max(1, sum(ticks.values())), 5) if ticks else None,
        "boot_time_unix_s": int(boot[1]) if boot else None,
        "timer_resolution_s": time.get_clock_info("perf_counter").resolution,
        "hostname_sha256": hashlib.sha256(socket.gethostname().encode()).hexdigest()[:16],
        "environment": {name: os.environ[name] for name in ENVIRONMENT if name in os.environ},
        "packages": {name: _version(name) for name in PACKAGES},
        "image": os.environ.get(IMAGE, "")[:200] or None,
        **_git(Path(__file__).parent),
    }


def _git(folder: Path) -> dict[str, Any]:
    """Reads the commit of the checkout that leantrain runs from, and whether its tracked files differ from it."""
    try:
        commit = git(folder, "rev-parse", "HEAD").strip()
        return {"git_commit": commit, "git_dirty": bool(git(folder, "status", "--porcelain", "--untracked-files=no"))}
    except (OSError, GitFailed):  # no git, or no checkout
        return {"git_commit": None, "git_dirty": None}


def versions() -> dict[str, str]:
    """Returns the versions of :data:`LIBRARIES`, without the build."""
    return {name: version(name).split("+")[0] for name in LIBRARIES}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _load() -> float | None:
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def _cpu_ticks(root: Path) -> dict[str, int]:
    """Counts hundredths of a second since boot, of all processors; empty where unknown."""
    names = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
    row = re.search(r"^cpu +([\d ]+)", _text(root / "proc/stat") or "", re.MULTILINE)
    return dict(zip(names, map(int, row[1].split()))) if row else {}


# fitness -------------------------------------------------------------------------------------------------------------


def fitness(device: str, root: Path = ROOT, window_s: float = WINDOW_S) -> list[str]:
    """Writes one sentence for each thing that will make timings on this machine worse; empty when it is fit.

    Watches steal time and throttling for ``window_s`` seconds.
    """
    before = _cpu_ticks(root), _throttled(root)
    time.sleep(window_s)
    after = _cpu_ticks(root), _throttled(root)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    warnings = [
        _load_warning(_load(), cores),
        _steal_warning(before[0], after[0]),
        _throttling_warning(before[1], after[1]),
        _governor_warning(root),
        _swap_warning(root),
        _battery_warning(root),
        _threads_warning(os.environ),
    ]
    if device.startswith("cuda"):
        warnings += [_gpu_users_warning(), _gpu_clocks_warning()]
    return [warning for warning in warnings if warning]


def busy_cores(root: Path = ROOT, window_s: float = WINDOW_S) -> float:
    """Measures how many cores all processes together used during ``window_s`` seconds; 0 where that cannot be read."""
    before = _cpu_ticks(root)
    time.sleep(window_s)
    after = _cpu_ticks(root)
    idle = sum(after.get(name, 0) - before.get(name, 0) for name in ("idle", "iowait"))
    total = sum(after.values()) - sum(before.values())
    return (total - idle) / total * (os.cpu_count() or 1) if total else 0.0


def _load_warning(load: float | None, cores: int) -> str | None:
    if load is None or load <= cores / 2:
        return None
    return f"the load is {load:g} on {cores} cores; stop what else is running, or expect wide intervals"


def _steal_warning(before: Mapping[str, int], after: Mapping[str, int]) -> str | None:
    total = sum(after.values()) - sum(before.values())
    stolen = after.get("steal", 0) - before.get("steal", 0)
    if total <= 0 or stolen / total <= STEAL_SHARE:
        return None
    return f"the host takes away {stolen / total:.0%} of this virtual machine's processor time; use a dedicated machine"


def _throttled(root: Path) -> tuple[int, int] | None:
    """Reads (periods, throttled periods) of the control group since its start."""
    rows = dict(line.split() for line in (_text(root / "sys/fs/cgroup/cpu.stat") or "").splitlines())
    return (int(rows["nr_periods"]), int(rows["nr_throttled"])) if "nr_throttled" in rows else None


def _throttling_warning(before: tuple[int, int] | None, after: tuple[int, int] | None) -> str | None:
    """Warns of throttling within the window, or, since throttling needs load and the window is idle, of the group's
    whole life."""
    if before is None or after is None or after[0] == 0:
        return None
    share = max(after[1] / after[0], (after[1] - before[1]) / max(1, after[0] - before[0]))
    if share <= THROTTLED_SHARE:
        return None
    return f"the container was throttled in {share:.0%} of its periods; raise its CPU limit or use fewer --threads"


def _governor_warning(root: Path) -> str | None:
    paths = (root / "sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_governor")
    slow = sorted({(_text(path) or "").strip() for path in paths} - {"performance", ""})
    if not slow:
        return None
    return f"the CPU frequency governor is {', '.join(slow)}; set it: cpupower frequency-set -g performance"


def _swap_warning(root: Path) -> str | None:
    memory = _meminfo(root)
    used, total = memory.get("SwapTotal", 0) - memory.get("SwapFree", 0), memory.get("MemTotal", 0)
    if not total or used / total <= SWAPPED_SHARE:
        return None
    return f"{used / 2**30:.1f} GiB are swapped out; free memory, or timings will include the disk"


def _battery_warning(root: Path) -> str | None:
    for status in (root / "sys/class/power_supply").glob("*/status"):
        if (_text(status) or "").strip() == "Discharging":
            return "the machine runs on its battery; plug it in"
    return None


def _threads_warning(environment: Mapping[str, str]) -> str | None:
    variables = ", ".join(f"{name}={environment[name]}" for name in THREAD_VARIABLES if name in environment)
    return f"{variables} set in the environment; unset: leantrain sets threads with --threads" if variables else None


def _gpu_users_warning() -> str | None:
    listed = _nvidia_smi("--query-compute-apps=pid", "--format=csv,noheader")
    others = {int(line) for line in (listed or "").split() if line.isdigit()} - {os.getpid()}
    return f"{len(others)} other processes use the GPU; stop them" if others else None


def _gpu_clocks_warning() -> str | None:
    reasons = ("hw_slowdown", "sw_thermal_slowdown")
    listed = _nvidia_smi(
        "--query-gpu=" + ",".join(f"clocks_event_reasons.{reason}" for reason in reasons), "--format=csv,noheader"
    )
    rows = [line.split(", ") for line in (listed or "").splitlines()]
    active = {name for row in rows for name, value in zip(reasons, row) if value == "Active"}
    return f"the GPU lowers its clocks now ({', '.join(sorted(active))}); let it cool" if active else None


# reading -------------------------------------------------------------------------------------------------------------


def _text(path: Path) -> str | None:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return None


def _output(program: str, *arguments: str) -> str | None:
    """Returns the standard output of a program, None where it is missing, fails or takes 10 s."""
    if not (path := shutil.which(program)):
        return None
    try:
        done = subprocess.run([path, *arguments], capture_output=True, text=True, timeout=10, check=True)
    except (subprocess.SubprocessError, OSError):
        return None
    return done.stdout
