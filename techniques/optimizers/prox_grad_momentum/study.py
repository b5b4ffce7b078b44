"""Checks the theorem on sparse logistic regression over a frozen baseline's features: F = loss + lambda ||W||_1.

``descent``: F - F* under the proximal gradient method and under APGnc, the share of weights that are not zero, and how
far a proximal step still moves (0 at a critical point). ``zeros``: what the proximal map leaves of the weights, and
what subgradient descent does, after as many gradients.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import islice, pairwise
from typing import TYPE_CHECKING

from torch import Tensor

from suite.topics.studies.lab import Lab, StudyTable
from techniques.optimizers.prox_grad_momentum.iterations import apgnc, soft_threshold
from techniques.optimizers.shared.linear_probe import LinearProbe, linear_probe

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STEPS = 1000
LONG = 5  # times as many steps find F*
STRENGTH = 0.02  # of the lambda from which on all weights are 0


def study(lab: Lab) -> list[StudyTable]:
    """Returns the tables ``descent`` and ``zeros``; the baseline is trained once, and nothing is recorded."""
    lab.progress(0.0, "training the baseline whose features are classified")
    probe = linear_probe(lab.setting)
    lab.progress(0.3, "descending")
    return tables(probe)


def tables(probe: LinearProbe, steps: int = STEPS) -> list[StudyTable]:
    """Builds the tables of the module."""
    rate = 0.99 / probe.smoothness
    strength = STRENGTH * probe.gradient(probe.start).abs().max().item()

    def objective(weight: Tensor) -> float:
        return probe.value(weight) + strength * weight.abs().sum().item()

    def prox(weight: Tensor, eta: float) -> Tensor:
        return soft_threshold(weight, eta * strength)

    def left(weight: Tensor) -> float:
        """Returns the norm of the gradient mapping: the length of a proximal gradient step over the rate."""
        return (weight - prox(weight - rate * probe.gradient(weight), rate)).norm().item() / rate

    def nonzero(weight: Tensor) -> float:
        return weight.ne(0).double().mean().item()

    fast = list(islice(apgnc(objective, probe.gradient, prox, probe.start, rate), LONG * steps))
    plain = list(islice(apgnc(objective, probe.gradient, prox, probe.start, rate, momentum=False), steps))
    least = fast[-1].value_y
    shown = sorted({round(10 ** (i / 5)) for i in range(int(5 * math.log10(steps)) + 1)})
    rows = []
    for k in shown:
        one, other = plain[k - 1], fast[k - 1]
        chosen = sum(step.extrapolated for step in fast[:k]) / k
        gaps = one.value_x - least, other.value_x - least
        rows.append((k, *gaps, nonzero(one.x), nonzero(other.x), left(one.x), left(other.x), chosen))
    values = [value for step in fast for value in (step.value_x, step.value_y)]
    rise = max(0.0, *(after - before for before, after in pairwise(values)))
    columns = (
        "gradients",
        "proximal_gradient",
        "apgnc",
        "nonzero_proximal_gradient",
        "nonzero_apgnc",
        "gradient_mapping_proximal_gradient",
        "gradient_mapping_apgnc",
        "extrapolated_share",
    )
    note = f"F - F*; in {len(fast)} steps of APGnc F rises by at most {rise:.2g}, which is rounding up to 1e-15"
    return [StudyTable("descent", columns, rows, note), zeros(probe, fast[steps - 1].x, rate, strength, steps)]


def zeros(probe: LinearProbe, sparse: Tensor, rate: float, strength: float, steps: int) -> StudyTable:
    """Counts the weights that are exactly zero and that are merely small, in the proximal solution and after
    subgradients."""
    weight = probe.start
    for _ in range(steps):
        weight = weight - rate * (probe.gradient(weight) + strength * weight.sign())
    rows = [
        (name, tensor.numel(), int((tensor == 0).sum()), int((tensor.abs() < 1e-3).sum()))
        for name, tensor in (("apgnc", sparse), ("subgradient descent", weight))
    ]
    return StudyTable("zeros", ("method", "weights", "zero", "below_0.001"), rows, f"after {steps} gradients")


def plot(tables: Sequence[StudyTable]) -> Figure:
    """Draws the gaps and the shares of weights that are not zero, over the number of gradients."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4), layout="constrained")
    gaps, sparsity = figure.subplots(1, 2)
    rows = tables[0].rows
    gradients = [row[0] for row in rows]
    for offset, name in ((1, "proximal gradient"), (2, "APGnc")):
        gaps.loglog(gradients, [row[offset] for row in rows], label=name)
        sparsity.semilogx(gradients, [row[offset + 2] for row in rows], label=name)
    gaps.set(xlabel="gradients", ylabel="F - F*, sparse logistic regression on frozen features")
    sparsity.set(xlabel="gradients", ylabel="share of weights that are not zero")
    gaps.legend()
    return figure
