"""The rule of the speed gate: sets of processes vote, and no machine is too noisy for counting votes.

A set's value is d = ln(step time of the working tree / of the revision), and s the slow-down that must be noticed. Half
of it, h = ln(1 + s) / 2, parts the votes: above it a set says *slower*, below *not slower*. Where nothing changed, a
vote for *slower* takes noise beyond h; where the step is slower by s, one for *not slower* takes noise beyond -h. Noise
whose median is 0 does either in at most half of the sets, whatever it is otherwise, so the sign e-process over the
votes may be looked at after each of them (Ville 1939):

    slower        E(votes for, votes against) >= 1 / FALSE_ALARMS     at most 1 alarm in 50 runs of unchanged code
    not slower    E(votes against, votes for) >= 1 / MISSES           at most 1 miss in 20 runs that are slower by s
    cannot tell   neither, when the time is over

So 7 sets that agree on *slower* decide, or 11 of 12; 6 on *not slower*, or 10 of 11. What lies between 0 and s is
called by what it is nearer to, if at all. These rates are bounds. What the rule does in the noise at hand, the
revision's runs against itself tell (:func:`errors`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from scipy import special

from suite.judge.statistics import Floats, sign_e_process

SLOWER = 0.10
FALSE_ALARMS = 0.02
MISSES = 0.05
PRIOR = 0.5  # Krichevsky & Trofimov's: 7 sets that agree decide, where a prior of 2 needs 10
LEVEL = 0.95  # of what is said of error rates
ENOUGH = 0.95  # of the runs decide, where it is said what would be needed
MOST_SETS = 160  # that anyone would wait for
OF_THE_MEAN = math.sqrt(3) / 2
"""sd(b - (a + a') / 2) / sd(a' - a), of three times with equal noise: what makes an A/A pair's noise a set's."""

Outcome = Literal["slower", "not slower", "cannot tell"]


@dataclass(frozen=True)
class Rule:
    """Says when votes decide: which slow-down must be noticed, a fraction, and how often either answer may be wrong."""

    slower: float = SLOWER
    false_alarms: float = FALSE_ALARMS
    misses: float = MISSES

    @property
    def half(self) -> float:
        """Returns the log ratio that parts the votes."""
        return math.log1p(self.slower) / 2

    def outcome(self, d: Sequence[float]) -> Outcome:
        """Returns what the sets' log ratios say so far."""
        if not len(d):
            return "cannot tell"
        votes = np.asarray(d, dtype=np.float64) - self.half
        if _evidence(votes).max() >= -math.log(self.false_alarms):
            return "slower"
        return "not slower" if _evidence(-votes).max() >= -math.log(self.misses) else "cannot tell"


def _evidence(votes: Floats) -> Floats:
    """Returns ln E after each vote, of which the positive are for, and all others against."""
    return sign_e_process(votes, prior=PRIOR, margin=0.0)


def log_evidence(votes: Sequence[float]) -> float:
    """Returns ln of the e-value of the votes as they stand, the positive for and all others against; 0 without any."""
    return float(_evidence(np.asarray(votes, dtype=np.float64))[-1]) if len(votes) else 0.0


@lru_cache
def _enough(alpha: float, most: int) -> tuple[int, ...]:
    """Tells how many votes decide against 0, 1, ... ``most`` others."""
    needed = []
    for against in range(most + 1):
        evidence = _evidence(np.repeat([-1.0, 1.0], [against, 4 * most + 20]))[against:]
        needed.append(int(np.argmax(evidence >= -math.log(alpha))) + 1)
    return tuple(needed)


@dataclass(frozen=True)
class Chances:
    """Tells how a run ends, of at most so many sets, whose votes are for *slower* with one chance each."""

    slower: float
    not_slower: float

    @property
    def cannot_tell(self) -> float:
        return max(0.0, 1 - self.slower - self.not_slower)


@lru_cache
def _course(vote: float, rule: Rule, most: int) -> tuple[Floats, Floats]:
    """Returns the exact chances of having said *slower*, and *not slower*, after 1, 2, ... ``most`` sets, over all
    orders."""
    alarm, passed = (np.array(_enough(alpha, most)) for alpha in (rule.false_alarms, rule.misses))
    running = np.zeros(most + 1)  # the chance of so many votes for slower, undecided
    running[0] = 1.0
    ends = np.zeros((2, most))
    for n in range(1, most + 1):
        running[1:] = vote * running[:-1] + (1 - vote) * running[1:]
        running[0] *= 1 - vote
        votes = np.arange(n + 1)
        for end, decided in zip(ends, (votes >= alarm[n - votes], n - votes >= passed[votes])):
            end[n - 1] = running[: n + 1][decided].sum()
            running[: n + 1][decided] = 0.0
    slower, not_slower = ends.cumsum(axis=1)
    return slower, not_slower


def chances(vote: float, rule: Rule, most: int) -> Chances:
    """Tells how a run of at most ``most`` sets ends where each votes for *slower* with the chance ``vote``."""
    if most < 1:
        return Chances(0.0, 0.0)
    slower, not_slower = _course(vote, rule, MOST_SETS)
    return Chances(float(slower[most - 1]), float(not_slower[most - 1]))


@dataclass(frozen=True)
class Errors:
    """Tells how often the rule errs in the noise of ``pairs`` A/A pairs, as estimates and as bounds at LEVEL:
    ``alarms`` of unchanged code, ``caught`` of what is slower by the rule's share."""

    pairs: int
    alarms: float
    most_alarms: float
    caught: float
    least_caught: float


def errors(unchanged: Sequence[float], rule: Rule, sets: int) -> Errors:
    """Returns the rule's error rates in the noise that the A/A log ratios show, of runs of at most ``sets`` sets.

    A pair is as likely to come out the one way as the other, so each tells of both.
    """
    n, beyond = len(unchanged), int((_noise(unchanged) > rule.half).sum())
    most = 1.0 if beyond == n else float(special.betaincinv(beyond + 1, n - beyond, LEVEL))  # Clopper & Pearson 1934
    vote, worst, sets = beyond / n / 2 if n else 0.5, most / 2, min(sets, MOST_SETS)
    return Errors(
        n,
        chances(vote, rule, sets).slower,
        chances(worst, rule, sets).slower,
        chances(1 - vote, rule, sets).slower,
        chances(1 - worst, rule, sets).slower,
    )


def sets_needed(unchanged: Sequence[float], rule: Rule) -> int | None:
    """Tells how many sets let ENOUGH of the runs of unchanged code decide; None where none that anyone would wait for
    do."""
    vote = (float((_noise(unchanged) > rule.half).sum()) + 0.5) / (len(unchanged) + 1) / 2
    return next((n for n in range(1, MOST_SETS + 1) if chances(vote, rule, n).cannot_tell <= 1 - ENOUGH), None)


def threshold_for(unchanged: Sequence[float], rule: Rule, sets: int) -> float | None:
    """Returns the slow-down, a fraction, that so many sets could tell from none in this noise; None where no one is."""
    noise = _noise(unchanged)
    for percent in range(49, 0, -1):
        if chances(percent / 100, rule, min(sets, MOST_SETS)).cannot_tell <= 1 - ENOUGH:
            return math.expm1(2 * float(np.quantile(noise, 1 - 2 * percent / 100))) if len(noise) else None
    return None


def _noise(unchanged: Sequence[float]) -> Floats:
    """Tells how far a set's value is from 0 where nothing changed."""
    return np.abs(np.asarray(unchanged, dtype=np.float64)) * OF_THE_MEAN
