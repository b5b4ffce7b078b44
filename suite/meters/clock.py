"""Time: monotonic seconds that wait for the device, spans by device events, and CPU-seconds as an energy proxy."""

import time
from typing import Self

import torch


class Clock:
    """A clock for work on ``device``."""

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)

    def synchronize(self) -> None:
        """Waits until the device has done all that was asked of it."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def now_s(self) -> float:
        """Seconds on a monotonic clock, read once the device is idle. Only differences mean anything."""
        self.synchronize()
        return time.perf_counter()

    def cpu_s(self) -> float:
        """CPU-seconds that this process has used, all its threads, user and system; children excluded.

        A proxy for CPU energy where no counter can be read. A GPU's driver thread spins while it waits, so on CUDA it
        says little.
        """
        return time.process_time()

    def span(self) -> "Span":
        """A context manager that times a block of work."""
        return Span(self.device)


class Span:
    """The time from a block's first work to its last.

    On CUDA by events on the current stream: neither end waits for the device, and ``elapsed_s`` waits for the block.
    """

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        if self._cuda:
            with torch.cuda.device(device):
                self._start, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            self._device = device

    def __enter__(self) -> Self:
        if self._cuda:
            self._start.record(torch.cuda.current_stream(self._device))
        else:
            self._start_s = time.perf_counter()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._cuda:
            self._end.record(torch.cuda.current_stream(self._device))
        else:
            self._end_s = time.perf_counter()

    @property
    def elapsed_s(self) -> float:
        """Seconds; available when the block has closed."""
        if self._cuda:
            self._end.synchronize()
            return float(self._start.elapsed_time(self._end)) / 1e3
        return self._end_s - self._start_s
