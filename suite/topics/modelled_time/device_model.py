"""Models a step on a device that was measured: constants of operators that were timed alone, and of whole reference
steps.

    an operator's time  =  kernels x launch  +  bytes / bandwidth  +  FLOPs / rate  +  tensors x list
    a step's time       =  cache x the sum over operators  +  the host's  (they run one after the other on a CPU)
    the host's          =  operators that launch x launched  +  views x viewed, by phase

Each line's coefficients are at least 0, and bring the smallest relative errors (non-negative least squares): the first
line's to the samples of an operator of one name and type (where it has none, of its class), the others' to whole steps
of the baselines. ``cache`` is what an operator in a step takes of what it takes alone, over and over, on the same
operands. On a GPU both lines of a step run side by side: the longer one counts. No technique's step is seen by a fit.
Imports no torch.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from suite.record.operator_counts import HOST_ONLY, IN, OUT, PHASES, Operator, TracedStep
from suite.topics.modelled_time.device_samples import OperatorSample, OwnDevice, ReferenceStep

Floats = NDArray[np.float64]
Key = tuple[str, ...]
FEWEST = 4
"""Samples that constants are made of."""
VECTOR = 16
"""Elements: the widest that a CPU's kernels and a GPU's tensor cores take whole."""
LIST = 16
"""Operands of a list's operator that the launch of all includes."""


def _terms(operator: Operator) -> list[float]:
    """Returns what the coefficients of an operator multiply; FLOPs and bytes in millions."""
    return [
        float(max(1, operator.kernels)),
        operator.moved_bytes / 1e6,
        operator.flops / 1e6,
        float(max(0, operator.tensors - LIST)),
    ]


def _keys(operator: Operator) -> tuple[Key, ...]:
    """Returns the keys whose samples say what it takes, the nearest first."""
    dtype = operator.dtype
    kind, name = operator.kind, f"{operator.name}{_odd(operator)}"
    return tuple(dict.fromkeys([(kind, name, dtype), (kind, name), (kind, "", dtype), (kind,), ("pointwise",)]))


def _odd(operator: Operator) -> str:
    """Marks attention whose heads are no multiple of a vector wide, which takes other paths, up to ten times as
    long."""
    width = operator.shapes[0][-1] if operator.kind == "attention" and operator.shapes else 0
    return " of odd width" if width % VECTOR else ""


def _copied(operator: Operator) -> Operator:
    """Turns a transfer between a CPU's memory and itself into a copy."""
    moves = operator.kind in (OUT, IN)
    both = 2 * max(operator.read_bytes, operator.written_bytes)
    return replace(operator, name="copy_", kind="copy", read_bytes=both, written_bytes=0) if moves else operator


def _relative(terms: Floats, seconds: Floats) -> Floats:
    """Computes the coefficients, at least 0, of the smallest relative errors."""
    coefficients: Floats = nnls(terms / seconds[:, None], np.ones(len(seconds)))[0]
    return coefficients


class OperatorCosts:
    """Holds what operators take, by the samples of a device."""

    def __init__(self, samples: Iterable[OperatorSample]) -> None:
        self._samples: dict[Key, list[tuple[list[float], float]]] = defaultdict(list)
        self._known: dict[Key, Floats] = {}
        for sample in samples:
            operator = sample.operator
            for key in _keys(operator):
                self._samples[key].append((_terms(operator), sample.seconds))

    def seconds(self, operator: Operator) -> float:
        """Returns the seconds of one call of it. Raises ValueError where nothing was sampled."""
        key = next((key for key in _keys(operator) if len(self._samples.get(key, ())) >= FEWEST), None)
        if key is None:
            raise ValueError("no operator was sampled on this device: leantrain kernels --calibrate")
        if key not in self._known:
            terms, seconds = zip(*self._samples[key])
            self._known[key] = _relative(np.array(terms), np.array(seconds))
        return float(self._known[key] @ _terms(operator))

    def of(self, step: TracedStep) -> float:
        """Adds up all of a step's operators, one after the other; a transfer is a copy. Raises ValueError where
        something in it has no declared cost."""
        if step.undeclared:
            raise ValueError("; ".join(step.undeclared))
        return sum(count * self.seconds(_copied(operator)) for operator, count in step if operator.kind != HOST_ONLY)


def _dispatched(step: TracedStep) -> list[float]:
    """Returns what the host's coefficients multiply: operators that launch by phase, and views."""
    launched = dict.fromkeys(PHASES, 0.0)
    views = 0.0
    for operator, count in step:
        if operator.kind == HOST_ONLY:
            views += count
        else:
            launched[operator.phase] += count
    return [*launched.values(), views]


@dataclass(frozen=True)
class CalibratedDevice:
    """Holds a device's costs of operators, ``cache``, and the host's coefficients in s."""

    costs: OperatorCosts
    cache: float
    host: Floats
    side_by_side: bool = False

    @classmethod
    def of(cls, known: OwnDevice) -> CalibratedDevice:
        """Returns the device with the constants of what was measured. Raises ValueError where nothing was."""
        return cls.fitted(OperatorCosts(known.samples), known.references, known.device != "cpu")

    @classmethod
    def fitted(
        cls, costs: OperatorCosts, references: Sequence[ReferenceStep], side_by_side: bool = False
    ) -> CalibratedDevice:
        """Returns the device whose whole steps those of the references are."""
        if not references:
            raise ValueError("no reference step was measured on this device: leantrain kernels --calibrate")
        steps = [reference.step for reference in references]
        alone = np.array([costs.of(step) for step in steps])
        asked = np.array([_dispatched(step) for step in steps])
        whole = np.array([reference.step_s for reference in references])
        if not side_by_side:
            cache, *host = _relative(np.column_stack([alone, asked]), whole)
            return cls(costs, float(cache), np.array(host))
        host_s = np.array([reference.host_s for reference in references])
        of_device = whole > 1.1 * host_s  # the others say nothing of the device
        cache = float(np.median((whole / alone)[of_device])) if of_device.any() else 1.0
        return cls(costs, cache, _relative(asked, host_s), side_by_side=True)

    def step_s(self, step: TracedStep, steps: int = 1) -> float:
        """Returns the seconds of one of so many steps that were traced together. Raises ValueError where something in
        it has no declared cost, or no sample."""
        if self.side_by_side and any(operator.kind in (OUT, IN) for operator, _ in step):
            raise ValueError("its transfers to the host were not sampled")
        device_s = self.cache * self.costs.of(step)
        host_s = float(self.host @ np.array(_dispatched(step)))
        return (max(device_s, host_s) if self.side_by_side else device_s + host_s) / steps


def residuals(known: OwnDevice) -> list[tuple[ReferenceStep, float]]:
    """Returns each reference step beside log(modelled / measured), by constants of the other baselines' steps."""
    costs = OperatorCosts(known.samples)
    errors = []
    for baseline in dict.fromkeys(reference.place.baseline for reference in known.references):
        others = [reference for reference in known.references if reference.place.baseline != baseline]
        if others:
            device = CalibratedDevice.fitted(costs, others, known.device != "cpu")
            errors += [
                (reference, math.log(device.step_s(reference.step) / reference.step_s))
                for reference in known.references
                if reference.place.baseline == baseline
            ]
    return errors


def sample_errors(known: OwnDevice) -> Mapping[str, list[float]]:
    """Returns log(modelled / measured) of the samples, by class of operator: how well a line describes them."""
    costs = OperatorCosts(known.samples)
    errors: dict[str, list[float]] = defaultdict(list)
    for sample in known.samples:
        operator = sample.operator
        if (modelled_s := costs.seconds(operator)) > 0:
            errors[operator.kind].append(math.log(modelled_s / sample.seconds))
    return errors


def calibrated(known: OwnDevice) -> list[str]:
    """Says what was measured of a device, in words."""
    errors = [abs(error) for own in sample_errors(known).values() for error in own] or [0.0]
    steps = residuals(known)
    load = "" if known.load is None else f", {known.load:g} cores busy with something else when it began"
    lines = [
        f"{known.title}: {len(known.samples)} samples of operators and {len(known.references)} reference steps in "
        f"{known.took_s / 60:.1f} minutes ({known.made}{load})",
        f"operators: a line for each describes its samples with a median error of {median(errors):.1%}",
    ]
    if steps:
        off = median([abs(error) for _, error in steps])
        lines.append(f"reference steps, each baseline's by the others': median error {off:.1%}")
    return lines
