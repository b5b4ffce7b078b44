"""The micro layer for those who use pytest-benchmark: one step of every technique, optimizer and kernel, by discovery.

    pytest benchmarks --benchmark-only -k "lion and cpu" --benchmark-save before
    pytest-benchmark compare

Times here are of one process after another, so a difference may be the machine's: for a verdict, ``leantrain compare``
trains both sides in lock-step, and ``leantrain check`` is the gate. ``extra_info`` holds the exact counts of the step
and its floor: the bytes that it must move at least, over the bandwidth that this device reaches.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib.util import find_spec
from typing import Any

import pytest
import torch

from suite.kernels.bench import copy_bytes_per_s
from suite.record.machine import fingerprint
from suite.record.schema import Counters

if find_spec("pytest_benchmark") is None:
    raise pytest.UsageError("benchmarks/ needs pytest-benchmark: pip install 'leantrain[bench]'")

THREADS = 1
SCALED_BYTES = 256 * 2**20  # far over a processor's caches
REPETITIONS = 9
VOLATILE = ("hz_actual", "hz_actual_friendly", "hz_advertised", "hz_advertised_friendly")  # Linux says the current one
DEVICES = ("cpu", "cuda")


def pytest_benchmark_update_machine_info(config: Any, machine_info: dict[str, Any]) -> None:
    """What decides speed and nothing else, so that pytest-benchmark warns of another machine, and of no other hour."""
    for name in VOLATILE:
        machine_info.get("cpu", {}).pop(name, None)
    del machine_info["node"]  # a container's name changes with every start
    machine = fingerprint("cuda" if torch.cuda.is_available() else "cpu", THREADS)
    machine_info["leantrain"] = {"name": machine.name, "key": machine.key, "facts": machine.facts}


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    """Each of DEVICES, or a skip that says why this machine has none."""
    if request.param == "cuda":
        request.getfixturevalue("gpu")
    return request.param


@pytest.fixture
def gpu() -> torch.device:
    if not torch.cuda.is_available():
        built = torch.backends.cuda.is_built()
        pytest.skip("torch sees no CUDA GPU" if built else "torch was built without CUDA")
    return torch.device("cuda")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    yield
    torch.set_num_threads(before)


@cache
def bandwidth(device: str) -> float:
    """Bytes read and written a second: of a copy on a GPU, of scaling in place on one thread of a CPU.

    A CPU's copy first reads the lines that it will overwrite, a third more traffic than counted, and an update in place
    does not: it would come out above its floor. The fastest of several, since a floor is a bound.
    """
    if device == "cuda":
        return copy_bytes_per_s(torch.device(device))
    numbers = torch.ones(SCALED_BYTES // 4)
    times_s = []
    for _ in range(REPETITIONS):
        begin_s = time.perf_counter()
        numbers.mul_(1.0)
        times_s.append(time.perf_counter() - begin_s)
    return 2 * numbers.nbytes / min(times_s)


@pytest.fixture
def with_floor() -> Callable[..., Mapping[str, Any]]:
    return floor


def floor(benchmark: Any, device: str, moved_bytes: float) -> Mapping[str, Any]:
    """The floor's entries of ``extra_info``; call it after the measurement. The share is of the median time."""
    rate = bandwidth(device)
    entries = {"floor_bytes": moved_bytes, "bandwidth_bytes_per_s": rate, "floor_s": moved_bytes / rate}
    if benchmark.stats is not None:  # None under --benchmark-disable
        entries["floor_share"] = entries["floor_s"] / benchmark.stats.stats.median
    return entries


@pytest.fixture
def counted() -> Callable[[Counters], Mapping[str, Any]]:
    return counts


def counts(counters: Counters) -> dict[str, Any]:
    """The exact counts' entries of ``extra_info``."""
    entries: dict[str, Any] = {
        "peak_tensor_bytes": counters.peak_tensor_bytes,
        "peak_by_kind": counters.peak_by_kind,
        "optimizer_state_bytes": counters.optimizer_state_bytes,
        "operators": counters.operators,
        "flops": counters.flops,
    }
    if counters.uncounted_operators:
        entries["flops_lower_bound_without"] = counters.uncounted_operators
    return entries
