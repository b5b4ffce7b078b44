"""Measures time: monotonic seconds that wait for the device."""

import time

import torch


class Clock:
    """Has a clock for work on ``device``."""

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)

    def synchronize(self) -> None:
        """Waits until the device has done all that was asked of it."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def now_s(self) -> float:
        """Returns the seconds on a monotonic clock, read once the device is idle. Only differences mean anything."""
        self.synchronize()
        return time.perf_counter()
