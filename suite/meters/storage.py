"""Finds a tensor's memory, which is its storages: views share one, subclasses and sparse layouts hold several."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

SPARSE_PARTS: dict[torch.layout, tuple[str, ...]] = {
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}


def storages(tensor: Tensor) -> Iterator[torch.UntypedStorage]:
    """Yields the untyped storages that hold ``tensor``'s data on this process.

    A DTensor gives its local shard's, a quantised wrapper its inner tensors', a sparse tensor its indices' and values'.
    Opaque tensors (mkldnn) have none that Python can see, and give none. The same storage may come twice.
    """
    if is_traceable_wrapper_subclass(tensor):
        for name in tensor.__tensor_flatten__()[0]:
            inner = getattr(tensor, name)
            if isinstance(inner, Tensor):
                yield from storages(inner)
    elif tensor.layout is torch.strided:
        yield tensor.untyped_storage()
    else:
        for part in SPARSE_PARTS.get(tensor.layout, ()):
            yield from storages(getattr(tensor, part)())


def unique_bytes(tensors: Iterable[Tensor]) -> int:
    """Counts the bytes of the distinct storages behind ``tensors``: a tied or viewed storage counts once, and counts
    whole."""
    sizes = {storage._cdata: storage.nbytes() for tensor in tensors for storage in storages(tensor)}
    return sum(sizes.values())


def tensors_within(value: Any, depth: int = 6) -> Iterator[Tensor]:
    """Yields every tensor reachable from ``value`` through containers and plain objects, at most ``depth`` levels down.

    Modules and optimizers are not entered: they are somebody's whole state, not a part of ``value``.
    """
    seen: set[int] = set()
    level = [value]
    for _ in range(depth + 1):
        below: list[Any] = []
        for item in level:
            if isinstance(item, Tensor):
                yield item
            elif id(item) not in seen:
                seen.add(id(item))
                below.extend(_parts(item))
        level = below


def _parts(value: Any) -> Iterable[Any]:
    if isinstance(value, (nn.Module, torch.optim.Optimizer)) or callable(value):
        return ()
    if isinstance(value, Mapping):
        return value.values()
    if isinstance(value, (list, tuple, set, frozenset)):
        return value
    if dataclasses.is_dataclass(value):
        return [getattr(value, field.name, None) for field in dataclasses.fields(value)]
    return list(getattr(value, "__dict__", {}).values())
