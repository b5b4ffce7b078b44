"""Counts collective communication: bytes as the program asked for them, and as an ideal ring would put them on the
wire.

An ideal (ring) implementation over N ranks puts on the wire, per rank and byte of the whole tensor, 2 (N-1)/N for an
all-reduce and (N-1)/N for a reduce-scatter, all-gather, broadcast or all-to-all; a backend may do worse (gloo's
reduce-scatter costs as much as its all-reduce).

A dispatch mode on the c10d operators sees what the program asks for. That includes what DistributedDataParallel's
reducer sends from C++ with its default hook, since it goes through the same operators.

Limits. Traffic outside torch.distributed (bare NCCL calls, MPI) is invisible.
"""

from collections import Counter
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

NAMESPACES = frozenset({"c10d", "_c10d_functional", "_c10d_functional_autograd"})
NOT_COLLECTIVES = frozenset({"wait_tensor", "barrier", "monitored_barrier_", "_wrap_tensor_autograd"})


def payload_bytes(argument: Any) -> int:
    """Counts the bytes of the tensors in ``argument``."""
    return sum(leaf.numel() * leaf.element_size() for leaf in tree_leaves(argument) if isinstance(leaf, Tensor))


class Communication(TorchDispatchMode):
    """Counts the bytes of this rank's collectives, each by its whole tensor: an all-gather's output, a
    reduce-scatter's input.

    ``bytes_by_collective`` is by operator (``allreduce_``, ``_allgather_base_``, ``all_reduce``, ...).
    """

    def __init__(self) -> None:
        super().__init__()
        self.bytes_by_collective: Counter[str] = Counter()

    def ring_bytes(self, ranks: int) -> int:
        """Counts the bytes that each of ``ranks`` ranks would send if every collective ran on an ideal ring.

        2 (N-1)/N of the whole tensor for an all-reduce, (N-1)/N for the others: comparable between collectives.
        """
        share = (ranks - 1) / ranks
        return round(
            sum(
                size * share * (2 if name.replace("_", "").startswith("allreduce") else 1)
                for name, size in self.bytes_by_collective.items()
            )
        )

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # Tensor subclasses first: a DTensor's collectives come back here, on local tensors.
        if any(hasattr(kind, "__tensor_flatten__") for kind in types):
            return NotImplemented
        out = func(*args, **(kwargs or {}))
        name = func._overloadpacket.__name__
        if func.namespace in NAMESPACES and name not in NOT_COLLECTIVES:
            self.bytes_by_collective[name] += max(payload_bytes(part) for part in (*args, out))
        return out
