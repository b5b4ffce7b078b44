"""Checks what recorded steps show of a trajectory loss: whether the gradient is that of the plain loss and the
divergence.

Du et al., "Sharpness-Aware Training for Free" (arXiv 2205.14083). For the probes of ``saf`` and ``saf_mesa``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor

from suite.reading.recording import Recording
from suite.reading.trace import Trace, Values
from techniques.shared.ball import differing, length


def divergence(now: Tensor, past: Tensor, temperature: float) -> Tensor:
    """Computes KL(past || now) of each row of logits [rows, classes] at a temperature, times its square; float64."""
    p, q = ((tensor.double() / temperature).softmax(-1) for tensor in (past.detach(), now))
    return temperature**2 * (p * (p / q).log()).sum(-1)


def off_the_term(recording: Recording, trace: Trace, term: Callable[[Any], Tensor]) -> float:
    """Computes how far a recorded gradient is from that of the plain loss plus ``term``, over the length of the term's
    own gradient: 0 is right, 1 is no term, 2 the opposite one."""
    backward = trace.of("backward")[0]
    plain = recording.gradients_at(backward.parameters, trace)
    expected = recording.gradients_at(backward.parameters, trace, term)
    own = length(_difference(expected, plain))
    if not own:
        raise ValueError("the trajectory loss of the recorded step has no gradient: nothing shows whether it is added")
    return length(_difference(backward.gradients, expected)) / own


def touched(recording: Recording, traces: Iterable[Trace]) -> int:
    """Counts the elements of the recorded gradients that are not the plain loss's, to the bit."""
    return sum(
        differing(trace.of("backward")[0].gradients, recording.gradients_at(trace.before.parameters, trace))
        for trace in traces
    )


def _difference(one: Values, other: Values) -> dict[str, Tensor]:
    return {name: one[name].double() - other[name].double() if name in other else one[name].double() for name in one}
