"""Says where a technique acts: what it says of itself, and :mod:`suite.loop.attachment` proves in the first step.

A technique that does nothing to a model, or to a part of it, looks like a cheap one. So it names its sites: the modules
that must run, the parameters that must get gradients, and an :class:`Act` for everything else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Union

if TYPE_CHECKING:
    from torch import nn

Due = Literal["step", "run"]


@dataclass(eq=False)
class Act:
    """Counts what is neither module nor parameter: a recomputed segment, a masked gradient, a pruned data set.

    The technique calls it where it acts, at set-up or later, at least once until it is ``due``: by the end of the first
    step, or of the run (growth at a quarter, averaging near the end).
    """

    due: Due = "step"
    count: int = 0

    def __call__(self) -> None:
        from torch.compiler import is_compiling  # what only looks at techniques needs no torch

        if not is_compiling():  # a compiled graph would be made again for every count
            self.count += 1


Site = Union["nn.Module", "nn.Parameter", Act]
"""What a technique acts on. A module's forward must run, a parameter must get a gradient, an act must be called."""


class NotAttached(Exception):
    """Is raised where a technique did nothing where it says that it acts. Never evidence: such a run has no row."""
