"""Collective communication: calls and bytes as the program asked for them, and bytes as they went over the wire.

The two differ, and both matter. An ideal (ring) implementation over N ranks puts on the wire, per rank and byte of the
whole tensor, 2 (N-1)/N for an all-reduce and (N-1)/N for a reduce-scatter, all-gather, broadcast or all-to-all; a
backend may do worse (gloo's reduce-scatter costs as much as its all-reduce).

The program's side is seen by a dispatch mode on the c10d operators. That includes what DistributedDataParallel's
reducer sends from C++ with its default hook, since it goes through the same operators.

Limits. Traffic outside torch.distributed (bare NCCL calls, MPI) is invisible. Wire bytes are the interface's: all
ranks' and everybody else's on this machine, headers included; wait for asynchronous work before the window closes.
"""

from collections import Counter
from pathlib import Path
from typing import Any, Self

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

NAMESPACES = frozenset({"c10d", "_c10d_functional", "_c10d_functional_autograd"})
NOT_COLLECTIVES = frozenset({"wait_tensor", "barrier", "monitored_barrier_", "_wrap_tensor_autograd"})


def wire_bytes_sent(interface: str = "lo", root: Path = Path("/sys/class/net")) -> int:
    """Bytes sent over ``interface`` since it came up. Raises OSError where the system does not tell."""
    return int((root / interface / "statistics" / "tx_bytes").read_text())


def payload_bytes(argument: Any) -> int:
    """Bytes of the tensors in ``argument``."""
    return sum(leaf.numel() * leaf.element_size() for leaf in tree_leaves(argument) if isinstance(leaf, Tensor))


class Communication(TorchDispatchMode):
    """Counts this rank's collectives, and the bytes that ``interface`` sends.

    A collective's bytes are its whole tensor's: an all-gather's output, a reduce-scatter's input.

    Attributes:
        calls_by_collective: calls by operator (``allreduce_``, ``_allgather_base_``, ``all_reduce``, ...).
        bytes_by_collective: bytes likewise.
        wire_bytes: bytes that the interface sent in the window, all processes together; None if unknown.
        wire_reason: why they are unknown; empty if they are known.
    """

    def __init__(self, interface: str = "lo", root: Path = Path("/sys/class/net")) -> None:
        super().__init__()
        self.calls_by_collective: Counter[str] = Counter()
        self.bytes_by_collective: Counter[str] = Counter()
        self.wire_bytes: int | None = None
        self.wire_reason = ""
        self._interface, self._root = interface, root

    @property
    def calls(self) -> int:
        return sum(self.calls_by_collective.values())

    @property
    def bytes(self) -> int:
        return sum(self.bytes_by_collective.values())

    def ring_bytes(self, ranks: int) -> int:
        """Bytes that each of ``ranks`` ranks would send if every collective ran on an ideal ring.

        2 (N-1)/N of the whole tensor for an all-reduce, (N-1)/N for the others: comparable between collectives.
        """
        share = (ranks - 1) / ranks
        return round(
            sum(
                size * share * (2 if name.replace("_", "").startswith("allreduce") else 1)
                for name, size in self.bytes_by_collective.items()
            )
        )

    def __enter__(self) -> Self:
        super().__enter__()
        self._sent_before = self._sent()
        return self

    def __exit__(self, *exc: Any) -> None:
        sent = self._sent()
        if sent is not None and self._sent_before is not None:
            self.wire_bytes = sent - self._sent_before
        super().__exit__(*exc)

    def _sent(self) -> int | None:
        try:
            return wire_bytes_sent(self._interface, self._root)
        except (OSError, ValueError) as error:
            self.wire_reason = f"no byte counter for interface {self._interface!r}: {error}"
            return None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # Tensor subclasses first: a DTensor's collectives come back here, on local tensors.
        if any(hasattr(kind, "__tensor_flatten__") for kind in types):
            return NotImplemented
        out = func(*args, **(kwargs or {}))
        name = func._overloadpacket.__name__
        if func.namespace in NAMESPACES and name not in NOT_COLLECTIVES:
            self.calls_by_collective[name] += 1
            self.bytes_by_collective[name] += max(payload_bytes(part) for part in (*args, out))
        return out
