"""Gathers blocks whose weights FSDP2 shards: whole while they run again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn


class Gathering:
    """Weights that FSDP2 has sharded are whole while a block runs again, and sharded afterwards where they were: one
    block's at a time, as in a pass forward."""

    def __init__(self, owners: Mapping[int, Any]) -> None:
        """Takes the ``owners``: by block, as :func:`owners_of` gives them."""
        self.owners = owners
        self.owner: Any = None
        self.gathered = False

    def __enter__(self) -> Gathering:
        return self

    def __exit__(self, *_: Any) -> None:
        if self.gathered:
            self.owner.reshard()
        self.owner, self.gathered = None, False

    def weights_of(self, block: nn.Module) -> None:
        if (owner := self.owners.get(id(block))) is self.owner:
            return
        self.__exit__()
        self.owner = owner
        if owner is not None:
            before = list(owner.parameters())
            owner.unshard()
            self.gathered = any(now is not then for now, then in zip(owner.parameters(), before, strict=True))


def owners_of(model: nn.Module, around: Any = None) -> Iterator[tuple[int, Any]]:
    """Returns the FSDP2 module whose call gathers a module's weights, by module: itself, or one around it."""
    around = model if hasattr(model, "unshard") and hasattr(model, "reshard") else around
    yield id(model), around
    for child in model.children():
        yield from owners_of(child, around)
