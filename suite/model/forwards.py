"""Another forward in a module for a while; afterwards the module is as it was.

A stand-in goes where the module's calls go: to ``forward``, or, where the module was compiled for itself
(``module.compile()``), to its compiled call, which would otherwise not ask for a new forward. Stand-ins nest, and leave
in any order: one that is off hands calls on to what was there before it, wherever something still holds it, and the one
that leaves last puts back what was there before them all.

Known limitation: a copy of a module that is made meanwhile calls the module that it was copied from. What a copy is to
have is bound to the module and no stand-in, such as another attention function (:mod:`suite.model.attention`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

Forward = Callable[..., Any]
COMPILED = "_compiled_call_impl"


class StandIn:
    """Computes a module's calls from now on, until :meth:`remove`.

    Args:
        make: makes the new forward of the one that was there before.
    """

    def __init__(self, module: nn.Module, make: Callable[[Forward], Forward]) -> None:
        self.module, self.active = module, True
        self.place = COMPILED if getattr(module, COMPILED, None) is not None else "forward"
        self.before: Forward = getattr(module, self.place)
        self.own = vars(module).get(self.place)  # of the module itself, not of its class
        new = make(self.before)

        def forward(*args: Any, **kwargs: Any) -> Any:
            return new(*args, **kwargs) if self.active else self.before(*args, **kwargs)

        forward.stand_in, forward.stand_for = self, new  # type: ignore[attr-defined]
        self.forward = forward
        setattr(module, self.place, forward)

    def remove(self) -> None:
        """Takes it off. What stands on it stays; where nothing does, the module has its former forward back."""
        self.active = False
        if vars(self.module).get(self.place) is not self.forward:
            return
        own = self.own
        while (below := getattr(own, "stand_in", None)) is not None and not below.active:
            own = below.own
        if own is None:
            delattr(self.module, self.place)
        else:
            setattr(self.module, self.place, own)


@contextmanager
def standing_in(module: nn.Module, make: Callable[[Forward], Forward]) -> Iterator[None]:
    """While active, the module's calls go to the forward that ``make`` makes of the one that was there before."""
    stand_in = StandIn(module, make)
    try:
        yield
    finally:
        stand_in.remove()
