import subprocess
import sys

import pytest
import torch

from suite.meters.process import ProcessMemory, cuda_memory

MIB = 2**20
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")

CHILD = """
import resource, re
status = open("/proc/self/status").read()
print(int(re.search(r"VmHWM:\\s+(\\d+)", status).group(1)) * 1024)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


@linux
def test_the_peak_is_the_window_s():
    with ProcessMemory() as before:
        block = bytearray(300 * MIB)
        del block
    with ProcessMemory() as after:
        pass
    assert before.peak_bytes - before.start_bytes > 280 * MIB
    assert after.peak_bytes - after.start_bytes < 20 * MIB
    assert before.reason == ""


@linux
def test_the_peak_is_not_the_parent_s():
    block = bytearray(b"1") * (300 * MIB)
    peak, inherited = map(int, subprocess.check_output([sys.executable, "-S", "-c", CHILD]).split())
    del block
    assert peak < 100 * MIB
    assert inherited > peak  # what getrusage says is why it is not used


def test_without_proc_there_is_a_reason_and_no_number(tmp_path):
    with ProcessMemory(tmp_path / "missing") as memory:
        pass
    assert memory.peak_bytes is None
    assert "missing" in memory.reason
    (tmp_path / "status").write_text("Name: x\n")
    with ProcessMemory(tmp_path) as memory:
        pass
    assert memory.peak_bytes is None
    assert "VmHWM" in memory.reason


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_peaks():
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = cuda_memory("cuda")
    torch.empty(MIB + 1, dtype=torch.uint8, device="cuda")
    after = cuda_memory("cuda")
    assert after.allocated_bytes - before.allocated_bytes == MIB + 512
    assert after.reserved_bytes >= after.allocated_bytes
