"""Computes what an optimizer's recorded update did to each parameter, and how far that is from what a paper says, in
roundings.

For the probes of optimizers: everything is float64, and the distance has the unit that rounding has. An operation on
floats is wrong by half a unit in the last place of its result, so that a formula of a few operations ends within a few
``eps (|a| + |b| + ...)`` of its value, where a, b, ... are the terms that are added.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from suite.loop.recipe import Recipe
from suite.reading.recording import Recording
from suite.reading.trace import Moment, Trace, Update


@dataclass(frozen=True)
class Move:
    """Records what one update did to a parameter.

    Attributes:
        weights, gradient: before it, float64.
        after: the weights after it, in their own dtype.
        begun, state_after: the optimizer's state before and after it.
        hyper: the group's hyper-parameters.
    """

    name: str
    weights: Tensor
    gradient: Tensor
    after: Tensor
    begun: Mapping[str, Any]
    state_after: Mapping[str, Any]
    hyper: Mapping[str, Any]

    @property
    def moved(self) -> Tensor:
        """Returns how far the weights moved, float64."""
        return self.after.double() - self.weights

    def before(self, name: str) -> Tensor:
        """Returns a tensor of the state before, float64: zeros before the first step."""
        return self.begun[name].double() if name in self.begun else torch.zeros_like(self.weights)

    def state(self, name: str) -> Tensor:
        """Returns a tensor of the state after, in its own dtype: not a number where the optimizer keeps none."""
        return self.state_after.get(name, torch.full_like(self.after, torch.nan))


def moves(update: Update, **hyper: Any) -> Iterator[Move]:
    """Yields the moves of the parameters that had a gradient; ``hyper`` is what the group should say, instead of what
    it does."""
    before, after = update.before, update.after
    for name, gradient in before.gradients.items():
        yield Move(
            name,
            before.parameters[name].double(),
            gradient.double(),
            after.parameters[name],
            before.state.get(name, {}),
            after.state.get(name, {}),
            {**before.hyper[name], **hyper},
        )


def off(actual: Tensor, expected: Tensor, *terms: Tensor | float) -> float:
    """Computes the largest distance of ``actual``, in its dtype, from ``expected``, float64, in roundings of a sum of
    ``terms``; infinite where ``actual`` is not a number."""
    precision = torch.finfo(actual.dtype)
    size: Any = precision.smallest_normal
    for term in terms:
        size = size + abs(term)
    unit = precision.eps * size
    return float(((actual.double() - expected).abs() / unit).nan_to_num(nan=torch.inf).max())


def scaled(before: Moment, by: float, powers: Mapping[str, int], **hyper: Any) -> Moment:
    """Returns ``before`` with gradients ``by`` times as large, each state that ``powers`` names ``by`` to that power,
    and these hyper-parameters. A power of 2 scales floats without rounding."""
    state = {
        name: {key: value * by ** powers[key] if key in powers else value for key, value in own.items()}
        for name, own in before.state.items()
    }
    return replace(
        before,
        gradients={name: by * gradient for name, gradient in before.gradients.items()},
        state=state,
        hyper={name: {**own, **hyper} for name, own in before.hyper.items()},
    )


def different(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> int:
    """Counts how many weights differ, in any bit but the sign of 0."""
    return sum(int(torch.ne(value, theirs[name]).sum()) for name, value in ours.items())


def again(recording: Recording, before: Moment) -> Update:
    """Computes what the optimizer's step does from another moment; of the state after it nothing is known."""
    after = replace(before, parameters={**before.parameters, **recording.replayed(before)}, state={})
    return Update(before, after)


def rate_over_the_baselines(recording: Recording) -> dict[str, float]:
    """Computes ``rate``: the learning rate over the baseline's own, at the last recorded step that has one; nothing
    where none has: a run's last step is made at rate 0."""
    trace, reference = _last_with_a_rate(recording), _reference(recording)
    if trace is None:
        return {}
    rate = max(group["lr"] for group in trace.update.before.hyper.values())
    return {"rate": rate / reference.learning_rate_at(trace.step)}


def over_the_baselines(recording: Recording) -> dict[str, float]:
    """Computes the same, and ``decay``: the product of the rate and the weight decay over the baseline's own."""
    trace, reference = _last_with_a_rate(recording), _reference(recording)
    if trace is None:
        return {}
    decay = max(group["lr"] * group["weight_decay"] for group in trace.update.before.hyper.values())
    own = reference.learning_rate_at(trace.step) * reference.weight_decay
    return {**rate_over_the_baselines(recording), "decay": decay / own}


def _last_with_a_rate(recording: Recording) -> Trace | None:
    return next(
        (trace for trace in reversed(recording.traces) if _reference(recording).learning_rate_at(trace.step)), None
    )


def _reference(recording: Recording) -> Recipe:
    return recording.run.baseline.recipe_of(recording.run.job.setting)
