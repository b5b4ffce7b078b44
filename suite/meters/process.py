"""Reads peak memory as the operating system saw it, and as CUDA's allocator did.

Resident memory includes the interpreter, the libraries and the allocator's slack: the honest system-level number beside
the exact tensor bytes, and a noisy one. ``ru_maxrss`` is never used: a child inherits its parent's. VmHWM is the
process's own, and writing 5 to /proc/self/clear_refs sets it back to what is resident now (proc(5)).
"""

import ctypes
import gc
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch

RESET_PEAK = "5"


class ProcessMemory:
    """Measures the peak resident memory of this process within a window.

    Attributes:
        peak_bytes: most bytes resident at once, after the window has closed; None if it cannot be known.
        start_bytes: bytes resident when the window opened; None likewise.
        reason: why they are None; empty if they are known.
    """

    def __init__(self, proc: Path = Path("/proc/self")) -> None:
        self._proc = proc
        self.peak_bytes: int | None = None
        self.start_bytes: int | None = None
        self.reason = ""

    def __enter__(self) -> Self:
        try:
            (self._proc / "clear_refs").write_text(RESET_PEAK)
            self.start_bytes = self._field("VmHWM")
        except (OSError, ValueError) as error:
            self.reason = f"no resettable peak of resident memory on this system: {error}"
        return self

    def __exit__(self, *exc: object) -> None:
        if self.start_bytes is not None:
            self.peak_bytes = self._field("VmHWM")

    def _field(self, name: str) -> int:
        for line in (self._proc / "status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
        raise ValueError(f"{self._proc / 'status'} has no {name}")


def settle_memory(device: torch.device | str) -> None:
    """Gives back what earlier work has freed, and sets CUDA's peaks back, so that a window begins at what is in use.

    Freed memory that the allocator kept would take in a part of what comes: a training would seem to need less after
    other work in its process than alone.
    """
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
    if trim is not None:
        trim(0)
    if torch.device(device).type == "cuda":
        torch.cuda.init()  # peaks cannot be set back before, and a context is no part of what comes
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


@dataclass(frozen=True)
class CudaMemory:
    """Holds the peaks of CUDA's caching allocator since :func:`settle_memory`, in bytes.

    Attributes:
        allocated_bytes: in blocks handed to tensors, each rounded up to 512: rank on this.
        reserved_bytes: in segments held from the driver: depends on history and fragmentation.
    """

    allocated_bytes: int
    reserved_bytes: int


def cuda_memory(device: torch.device | str) -> CudaMemory:
    """Returns the allocator's peaks on ``device``.

    Raises RuntimeError under ``backend:cudaMallocAsync``, whose statistics are partly always 0.
    """
    if torch.cuda.get_allocator_backend() != "native":
        raise RuntimeError("peak memory needs torch's native CUDA allocator: unset PYTORCH_CUDA_ALLOC_CONF=backend")
    stats = torch.cuda.memory_stats(device)
    return CudaMemory(
        allocated_bytes=stats.get("allocated_bytes.all.peak", 0),
        reserved_bytes=stats.get("reserved_bytes.all.peak", 0),
    )
