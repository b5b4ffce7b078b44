"""The alpha-beta model of a link (Hockney 1994): a message of b bytes arrives alpha + b / beta after it was sent."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class AlphaBeta:
    """``latency_s`` is alpha, of a message without bytes; ``bytes_per_s`` beta, of one direction."""

    latency_s: float
    bytes_per_s: float

    def __post_init__(self) -> None:
        if not (self.latency_s >= 0 and self.bytes_per_s > 0):
            raise ValueError(
                f"a link has a latency of 0 s or more and a rate above 0, not {self.latency_s} and {self.bytes_per_s}"
            )

    def occupied_s(self, size: float) -> float:
        """Seconds for which a message of ``size`` bytes keeps the next one waiting."""
        return size / self.bytes_per_s

    def seconds(self, size: float, messages: int = 1) -> float:
        """What ``messages`` one after the other take, of ``size`` bytes together."""
        return messages * self.latency_s + self.occupied_s(size)
