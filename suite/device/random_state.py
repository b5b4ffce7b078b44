"""Keeps torch's random state: the CPU generator's and, where a run is on a GPU, that device's too.

A forward pass on a GPU draws its dropout from the device's generator and what a program draws on the host from the
CPU's. Whoever repeats a pass needs both.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class RandomState:
    """Holds ``cpu`` and, of a GPU, ``cuda``: uint8, both on the CPU. ``device`` is where the passes that drew from it
    ran."""

    device: torch.device
    cpu: Tensor
    cuda: Tensor | None = None

    @classmethod
    def now(cls, device: torch.device) -> RandomState:
        """Returns the state in which the next draw finds torch."""
        cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
        return cls(device, torch.get_rng_state(), cuda)

    def restore(self) -> None:
        """Draws from here on are those that came after it."""
        torch.set_rng_state(self.cpu)
        if self.cuda is not None:
            torch.cuda.set_rng_state(self.cuda, self.device)


@contextmanager
def unchanged_randomness(device: torch.device, enabled: bool = True) -> Iterator[None]:
    """Has what is drawn inside, on the CPU and on ``device``, drawn again after it."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else [], enabled=enabled):
        yield


@contextmanager
def replayed(state: RandomState) -> Iterator[None]:
    """Draws inside are those that came from ``state`` on; those after it do not notice."""
    with unchanged_randomness(state.device):
        state.restore()
        yield
