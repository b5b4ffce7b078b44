"""Counts what a rank's step puts on the wire: collectives as an ideal ring does, messages from rank to rank once.

:class:`suite.meters.communication.Communication` takes (N - 1) / N of every tensor. That is right for collectives, and
for messages from rank to rank where N is 2 and as many bytes come as go: half of what is sent and half of what is
received. At other N a message is sent by one rank, whole, and received by another, which sends nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from suite.meters.communication import NAMESPACES, NOT_COLLECTIVES, Communication

SENT, RECEIVED = frozenset({"send"}), frozenset({"recv", "recv_any_source"})


def wire_bytes(sizes: Mapping[str, int], ranks: int) -> int:
    """Returns the bytes that a rank of ``ranks`` sends, by operator or by kind of collective: the ideal ring's of
    collectives."""
    rings = Communication()
    sent = 0
    for name, size in sizes.items():
        plain = name.strip("_")
        if plain in SENT:
            sent += size
        elif plain not in RECEIVED:
            rings.bytes_by_collective[name] += size
    return sent + rings.ring_bytes(ranks)


class Traffic(Communication):
    """Counts bytes, as :class:`Communication` does, and operators, which a link's latency is paid for."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def wire_bytes(self, ranks: int) -> int:
        """Returns the bytes on the wire (:func:`wire_bytes`)."""
        return wire_bytes(self.bytes_by_collective, ranks)

    @property
    def messages(self) -> int:
        """Counts the collectives and messages that this rank takes part in, each once: what it receives alone is
        counted by who sends it."""
        return sum(count for name, count in self.calls.items() if name.strip("_") not in RECEIVED)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = super().__torch_dispatch__(func, types, args, kwargs)
        name = func._overloadpacket.__name__
        if out is not NotImplemented and func.namespace in NAMESPACES and name not in NOT_COLLECTIVES:
            self.calls[name] += 1
        return out
