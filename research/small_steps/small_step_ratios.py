"""Compares step-time ratios that were measured on a device with those that its operators and the baselines' steps
foretell.

A row is a technique and its reference at a CPU's size, timed in turns on one machine and kept in its records. Both
sides' operators are traced, and modelled by :mod:`suite.topics.modelled_time.device_model`, which saw no technique.
What an order of techniques by the model is worth, Spearman's rank correlation says. Imports no torch.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy.stats import spearmanr

from suite.judge.rows import Row
from suite.record.job import Size
from suite.record.placed import CountPlace
from suite.topics.modelled_time.device_model import CalibratedDevice
from suite.topics.modelled_time.device_samples import OwnDevice
from suite.topics.modelled_time.step_traces import Traces

SIZE: Size = "nano"
WITHIN = math.log(1.25)
NOTICED = math.log(1.1)
"""Of a ratio's logarithm: what of it should be told the right way."""


@dataclass(frozen=True)
class SmallStep:
    """Holds a stack's step over its reference's, measured and modelled; ``current``: the timing is of the installed
    code."""

    place: CountPlace
    machine: str
    stack: str
    reference: str
    measured: float
    modelled: float
    current: bool

    @property
    def log_error(self) -> float:
        return math.log(self.modelled / self.measured)


@dataclass(frozen=True)
class SmallSteps:
    """Holds all of them, and why others are none; ``machine``: that whose operators were measured."""

    machine: str
    steps: Sequence[SmallStep] = ()
    why_not: Mapping[str, int] = field(default_factory=dict)

    @property
    def current(self) -> Sequence[SmallStep]:
        """Returns the ratios that were timed of the code that is traced."""
        return [step for step in self.steps if step.current]

    @property
    def own(self) -> Sequence[SmallStep]:
        """Returns the ratios that the measured machine itself has timed."""
        return [step for step in self.steps if step.machine == self.machine]


@dataclass(frozen=True)
class Agreement:
    """Says how far two sets of ratios agree: Spearman's rank correlation, the median absolute log error, the share
    within 25 %, and of effects above 10 % the share of which the direction is right."""

    count: int
    techniques: int
    spearman: float
    error: float
    within: float
    direction: float


def agreement(steps: Sequence[SmallStep]) -> Agreement:
    """Raises ValueError for fewer than three."""
    if len(steps) < 3:
        raise ValueError(f"{len(steps)} ratios have no rank correlation")
    errors = np.array([abs(step.log_error) for step in steps])
    effects = [step for step in steps if abs(math.log(step.measured)) > NOTICED]
    right = sum(math.log(effect.measured) * math.log(effect.modelled) > 0 for effect in effects)
    return Agreement(
        len(steps),
        len({step.stack for step in steps}),
        float(spearmanr([step.measured for step in steps], [step.modelled for step in steps]).statistic),
        float(np.median(errors)),
        float((errors < WITHIN).mean()),
        right / len(effects) if effects else math.nan,
    )


def is_small(row: Row) -> bool:
    """Tells whether a row is of a baseline's own model at that size, as it is now, and its step was timed on a CPU."""
    at = row.conditions
    value = row.value("step_time")
    of_cpu = at.size == SIZE and at.device == "cpu" and at.model is None and row.newer_version is None
    return of_cpu and value.kind == "measured" and not value.control and row.split_over == 1


def place_of(row: Row) -> CountPlace:
    at = row.conditions
    return CountPlace(at.baseline, at.size, at.recipe, at.device, at.task)


def small_steps(rows: Iterable[Row], traces: Traces, known: OwnDevice) -> SmallSteps:
    """Returns every small row that is traced, modelled. Raises ValueError where no operator was measured."""
    device = CalibratedDevice.of(known)
    steps, lacking = [], Counter[str]()
    for row in filter(is_small, rows):
        place = place_of(row)
        theirs, ours = (traces.get((place, stack)) for stack in (row.reference, row.stack))
        if theirs is None or ours is None or theirs.step is None or ours.step is None:
            lacking[next((side.unavailable for side in (theirs, ours) if side and not side.step), "not traced")] += 1
            continue
        try:
            ratio = device.step_s(ours.step, ours.steps) / device.step_s(theirs.step, theirs.steps)
        except ValueError as undeclared:
            lacking[str(undeclared)] += 1
            continue
        measured = row.value("step_time").number
        current = "timed" not in row.unverified
        steps.append(SmallStep(place, row.machine.name, row.stack, row.reference, measured, ratio, current))
    return SmallSteps(known.machine, sorted(steps, key=lambda step: (step.machine, step.place, step.stack)), lacking)
