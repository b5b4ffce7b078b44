"""Divides a run into stages: when they begin, how large its examples are in each, and training data that changes with
them.

For ``progressive_resolution``, ``progressive_patch`` and ``autoprog``.

A batch is a function of (seed, position), so its stage is one of the position: a resumed run needs no state for it,
and a batch that is prepared ahead of time is of its own stage. Held-out examples stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

from torch import Tensor

from suite.loop.data import Batch, Data, generator

Change = Callable[[Batch, int], Batch]


def staged(data: Data, *, examples: Change | None = None, batch: Change | None = None) -> Data:
    """Returns ``data`` whose raw examples, or whose batches made of them, go through a function of theirs and the
    position.

    Of the same class, so that a baseline knows its own data, and so are copies of it (``subset``).
    """
    kind: Any = type(data)

    class Staged(kind):
        def batch(self, seed: int, position: int, count: int) -> tuple[Batch, Tensor]:
            indices = self.sampler(len(self.train), seed, position, count)
            raw = self.train[indices]
            inputs = self.transform(examples(raw, position) if examples else raw, generator(seed, position, 1))
            return (batch(inputs, position) if batch else inputs), indices

    return Staged(**{field.name: getattr(data, field.name) for field in fields(data)})


def stage_at(position: int, total: int, stages: int) -> int:
    """Returns the stage, from 0, of ``stages`` equal ones after ``position`` of ``total`` examples; the last one goes
    on."""
    return min(stages - 1, position * stages // total)


def planned_sizes(full: int, unit: int, smallest: float, stages: int) -> list[int]:
    """Returns the sizes of the stages, from ``smallest`` times ``full`` to ``full`` in equal steps, in whole ``unit``s.

    224, 16, 0.5, 4 -> [112, 144, 192, 224].
    """
    shares = [smallest + (1 - smallest) * stage / max(1, stages - 1) for stage in range(stages - 1)]
    return [max(1, int(share * full / unit + 0.5)) * unit for share in shares] + [full]
