"""Decides over many tries: whoever tries fifty changes keeps two that do nothing, unless each has to show more than the
one before.

Each try brings an e-value, a number whose mean is at most 1 where the change does nothing: betting on the change
multiplied a stake so often. e-LOND (Xu and Ramdas, "Online multiple testing with e-values", AISTATS 2024) keeps try t
where

    e_t >= 1 / alpha_t,    alpha_t = alpha * gamma_t * (kept before + 1),    sum of gamma_t <= 1

and then the expected share of false keeps among all that were kept is at most alpha, after any number of tries, however
they depend on one another: later tries may be chosen by what the earlier ones showed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.special import logsumexp

from suite.judge.statistics import Floats

FALSE_KEEPS = 0.05
TOTAL = 2.1097428012368919  # sum over n >= 2 of 1 / (n ln^2 n)
EFFECT_SIZE = 1.0
"""Standard deviation of the effects that a paired comparison bets on, in standard deviations of a difference."""

LEAST_SCATTER = 1e-6
"""Of the mean: what scatters less is rounding, and brings as much as this."""


def share(number: int) -> float:
    """Returns gamma of the try with this number, from 1 on: nearly as slow a fall as one whose sum is finite can
    have."""
    if number < 1:
        raise ValueError(f"tries are numbered from 1 on, not {number}")
    return 1 / (TOTAL * (number + 1) * math.log(number + 1) ** 2)


def level_of(number: int, kept: int, false_keeps: float = FALSE_KEEPS) -> float:
    """Returns alpha_t of the try with this ``number`` after ``kept`` earlier ones were kept: it is kept where its
    e-value is at least the inverse."""
    return false_keeps * share(number) * (kept + 1)


def log_e_value(gains: Sequence[float]) -> float:
    """Returns ln of the e-value that paired ``gains`` bring against "no gain": normal differences of unknown deviation.

    The likelihood ratio of their t statistic, mixed over effects d > 0 (in standard deviations) with a half-normal
    prior of deviation EFFECT_SIZE, against d = 0 (Rouder et al. 2009; as an e-value that may be looked at after each
    pair: Hendriksen, de Heide and Gruenwald 2021). 0 with fewer than two pairs, and where the mean is exactly 0.
    """
    x = np.asarray(gains, dtype=np.float64)
    if not np.isfinite(x).all():
        raise ValueError("a gain is not a finite number")
    if len(x) < 2:
        return 0.0
    mean, deviation = float(x.mean()), float(x.std(ddof=1))
    if mean == 0.0:
        return 0.0
    t = mean / max(deviation, LEAST_SCATTER * abs(mean)) * math.sqrt(len(x))
    effects = EFFECT_SIZE * np.linspace(0.0125, 5.0, 200)
    prior = -((effects / EFFECT_SIZE) ** 2) / 2
    ratios = _log_ratios(t, len(x) - 1, effects * math.sqrt(len(x)))
    return float(logsumexp(prior + ratios) - logsumexp(prior))


def _log_ratios(t: float, dof: int, noncentralities: Floats) -> Floats:
    """Returns ln of the density of the noncentral t over the central one's, at ``t``.

    f(t | m) / f(t | 0) = exp(-m^2 v / (2 (t^2 + v))) I(m t / sqrt(t^2 + v)) / I(0), with I(y) the integral over x > 0
    of x^v exp(-(x - y)^2 / 2) (Johnson, Kotz and Balakrishnan 1995, 31.5).
    """
    centre = noncentralities * t / math.sqrt(t * t + dof)
    x = np.linspace(1e-9, max(float(centre.max()), 0.0) + math.sqrt(dof) + 10.0, 800)

    def log_integral(y: Floats) -> Floats:
        exponents = dof * np.log(x) - (x - y[:, None]) ** 2 / 2
        return np.asarray(logsumexp(exponents, axis=1), dtype=np.float64)

    return -(noncentralities**2) * dof / (2 * (t * t + dof)) + log_integral(centre) - log_integral(np.zeros(1))
