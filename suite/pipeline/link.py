"""Has the alpha-beta model of a link (Hockney 1994): a message of b bytes arrives alpha + b / beta after it was sent.

A limiter that is a token bucket (Linux' tbf, a cloud's network credits) saves up what was not sent, up to a burst, and
lets it through at once: so the first bytes after a pause take no time. A cable has no burst.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class AlphaBeta:
    """Describes a link, whose ``latency_s`` is alpha, of a message without bytes; ``bytes_per_s`` beta, of one
    direction; ``burst_bytes`` what a limiter saves up."""

    latency_s: float
    bytes_per_s: float
    burst_bytes: float = 0.0

    def __post_init__(self) -> None:
        if not (self.latency_s >= 0 and self.bytes_per_s > 0 and self.burst_bytes >= 0):
            raise ValueError(
                "a link has a latency of 0 s or more, a rate above 0 and a burst of 0 bytes or more, not "
                f"{self.latency_s}, {self.bytes_per_s} and {self.burst_bytes}"
            )

    def occupied_s(self, size: float) -> float:
        """Returns the seconds for which a message of ``size`` bytes keeps the next one waiting."""
        return size / self.bytes_per_s

    def seconds(self, size: float, messages: int = 1) -> float:
        """Returns what ``messages`` one after the other take after a long pause, of ``size`` bytes together."""
        return messages * self.latency_s + self.occupied_s(max(0.0, size - self.burst_bytes))
