"""Tells whether a run that was repeated is the same: equal to the bit, equal up to rounding, or different.

Where the arithmetic is the same, bits are, and any difference is a change. Where it is another, two runs part by
rounding: as far as runs part whose weights were moved by one unit in the last place, which is the envelope. A change of
the algorithm leaves it within a few steps. Tried on GPT, BERT and ViT at nano: three other arithmetics (AVX-512, SSE,
MKL's COMPATIBLE) part by at most 1.2 times what moved weights make of 64 steps; Adam's epsilon of 1e-7 in place of 1e-8
by 68 to 706 times, beta2 larger by 1e-4 by 24 to 1391 times, past SLACK from step 2 to 25 on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from suite.judge.statistics import Floats
from suite.record.schema import Trained

Equality = Literal["equal to the bit", "equal up to rounding", "differs"]
UNIT = 2.0**-23
"""One unit in the last place of a float32, relative: as little as two losses can differ by."""
SLACK = 8.0
"""Rounding of another kind disturbs every step, a moved weight the first one alone; and three draws are few."""


@dataclass(frozen=True)
class Repetition:
    """Describes a repetition by its ``distance``: the largest relative difference of the first losses; ``step`` the
    first (from 1 on) that leaves the envelope, 0 where none does. ``steps``: how many were compared."""

    equality: Equality
    distance: float = 0.0
    step: int = 0
    steps: int = 0


def envelope(losses: Sequence[float], nudged: Sequence[Sequence[float]]) -> Floats:
    """Tells how far rounding alone may part two runs by each step, relative [steps]: it never shrinks along a run."""
    own = np.asarray(losses, dtype=np.float64)
    apart = np.abs(np.asarray(nudged, dtype=np.float64)[:, : len(own)] / own - 1).max(axis=0)
    return SLACK * np.maximum.accumulate(np.maximum(apart, UNIT))


def repetition(old: Trained, new: Trained, equal_bits: bool, allowed: Floats) -> Repetition:
    """Tells what a run that repeats an old one says; ``allowed`` is :func:`envelope` of the new one's first losses,
    empty where it was not asked. ``equal_bits``: whether both are equal to the bit."""
    if equal_bits:
        return Repetition("equal to the bit", steps=new.steps or 0)
    steps = min(len(old.first_losses), len(new.first_losses), len(allowed))
    if old.bits == new.bits or not steps or old.status != new.status:
        return Repetition("differs", steps=steps)
    then, now = (np.asarray(run.first_losses[:steps], dtype=np.float64) for run in (old, new))
    apart = np.abs(now / then - 1)
    outside = np.flatnonzero(~(apart <= allowed[:steps]))
    distance = float(apart.max())
    if len(outside):
        return Repetition("differs", distance, int(outside[0]) + 1, steps)
    return Repetition("equal up to rounding", distance, 0, steps)
