"""Has estimators, intervals and tests on paired log ratios: pure functions, each with its formula and assumptions.

The data. What is learned has one *replicate* a seed, what is timed one a set of processes that run in lock-step, in
*rounds*. In a round every contender runs one block twice, in a random order followed by its reverse (ABBA or BAAB):

    round 0                 round 1                 time ->
    | A | B | B | A |       | B | A | A | B |       block_s["A"][round, 0 or 1], seconds

Everything is a *log cost ratio* of contender over reference, so that **lower is better everywhere**: 0 is "no change",
ln 1.05 is 5 % slower, and a speedup is exp(-x). Small effects in log units are fractions: 0.01 is 1 %.
The replicate, not the step, carries the inference: two processes that run the same code differ for as long as they
live (memory layout, core assignment), so rounds of one process pair agree with each other about a wrong number.
Replicates are few, and rows many: the rows of a baseline share what each says of the noise.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import optimize, special  # scipy.stats takes as long to load as a command's rows: see where it is used

Floats = NDArray[np.float64]

OF_ROUNDS = "over the rounds of one set of processes"
OVER_REPLICATES = "over replicates"
QUALITY_TOLERANCE = 0.01  # in log units: 1 % of the loss, about what a seed does to a small run
NORMAL_QUARTILE = 0.6744897501960817  # the median absolute deviation of a standard normal


@dataclass(frozen=True)
class Interval:
    """Holds a confidence interval; unbounded ends are infinite, never missing.

    ``n`` counts what ``method`` says it generalises over (rounds or replicates); ``degrees_of_freedom`` is that of the
    t distribution behind the width (infinite: normal).
    """

    estimate: float
    low: float
    high: float
    level: float
    method: str
    n: int
    degrees_of_freedom: float = math.inf

    @property
    def half_width(self) -> float:
        """Returns half the distance between the ends; infinite where an end is."""
        return (self.high - self.low) / 2

    @property
    def standard_error(self) -> float:
        """Returns the standard error that a symmetric t (or normal) interval of this width has."""
        return self.half_width / _critical(self.level, self.degrees_of_freedom)

    def contains(self, value: float) -> bool:
        return self.low <= value <= self.high

    def ratio(self) -> "Interval":
        """Maps a log cost ratio x to the cost ratio exp(x). The result's standard error means nothing."""
        return self._mapped(_exp(self.estimate), _exp(self.low), _exp(self.high))

    def speedup(self) -> "Interval":
        """Maps a log cost ratio x to the speedup exp(-x), ends exchanged. The result's standard error means nothing."""
        return self._mapped(_exp(-self.estimate), _exp(-self.high), _exp(-self.low))

    def negated(self) -> "Interval":
        """Maps x to -x, ends exchanged."""
        return self._mapped(-self.estimate, -self.high, -self.low)

    def _mapped(self, estimate: float, low: float, high: float) -> "Interval":
        return Interval(estimate, low, high, self.level, self.method, self.n, self.degrees_of_freedom)


# ---- rounds: one replicate ------------------------------------------------------------------------------------------


def round_log_ratios(reference_s: ArrayLike, contender_s: ArrayLike, warmup_rounds: int = 0) -> Floats:
    """Computes the paired log cost ratio of each round, d = ((ln b1 + ln b2) - (ln a1 + ln a2)) / 2.

    Both arrays: block times in seconds [rounds, 2]; result [rounds - warmup_rounds]. Under "a random order, then its
    reverse" every contender's two positions have the same mean, so drift that is linear in log time over a round
    cancels exactly, and under "same code" the sign of d is a fair coin. Raises ValueError on times that are not
    positive and finite, on unequal shapes, and when no round is left.
    """
    a, b = _blocks(reference_s, "reference"), _blocks(contender_s, "contender")
    if a.shape != b.shape:
        raise ValueError(f"paired blocks need equal shapes, not {a.shape} and {b.shape}; cut both to the shared rounds")
    if not 0 <= warmup_rounds < len(a):
        raise ValueError(f"{warmup_rounds} warm-up rounds leave none of {len(a)}; measure more rounds")
    d: Floats = (np.log(b) - np.log(a)).mean(axis=1)[warmup_rounds:]
    return d


def warmup_rounds(block_s: Mapping[str, ArrayLike], window: int = 10, alpha: float = 0.01) -> int:
    """Tells how many first rounds of a replicate to discard: one number for all contenders, the largest that one needs.

    One number, because a data-dependent warm-up that differs between the sides of a ratio biases it. A contender is
    warm at the first round k where, over rounds k .. k+window, (1) round k is not a slow outlier: its log time is at
    most 5 scaled median absolute deviations, and 5 %, above the window's median (a compilation is one such round);
    and (2) there is no downward trend: Kendall's tau against time, one-sided, p >= ``alpha`` (Mann 1945). Never more
    than a third of the rounds, so that a machine that drifts all the time costs a bounded share of the data.
    """
    series = {name: np.log(_blocks(times, name)).mean(axis=1) for name, times in block_s.items()}
    return max(_cold_rounds(times, window, alpha) for times in series.values())


def _cold_rounds(log_s: Floats, window: int, alpha: float) -> int:
    cap = len(log_s) // 3
    for k in range(cap):
        ahead = log_s[k : k + window]
        middle = median(ahead)
        deviation = median(np.abs(ahead - middle)) / NORMAL_QUARTILE
        outlier = ahead[0] - middle > max(5 * deviation, math.log(1.05))
        if not (outlier or _falling_p(ahead) < alpha):
            return k
    return cap


def _falling_p(x: Floats) -> float:
    """Computes the one-sided p of Kendall's tau of x against time: small when x falls. As scipy.stats.kendalltau,
    without its overhead where no values are equal: a leaderboard asks ten thousands of times."""
    if len(set(x.tolist())) < len(x):
        from scipy import stats

        return float(stats.kendalltau(np.arange(len(x)), x, alternative="less").pvalue)
    return float(_inversion_tail(len(x))[int(np.triu(x[:, None] > x[None, :]).sum())])


@lru_cache
def _inversion_tail(n: int) -> Floats:
    """Computes P(a random order of n has at least d inversions), d = 0 .. n(n-1)/2: item i adds 0 .. i, each as
    likely."""
    chances = np.ones(1)
    for i in range(1, n):
        chances = np.convolve(chances, np.full(i + 1, 1 / (i + 1)))
    tail: Floats = np.cumsum(chances[::-1])[::-1]
    return tail


def median_interval(d: ArrayLike, level: float = 0.95) -> Interval:
    """Computes the order-statistic interval of the median of independent d [n], with no assumption on their
    distribution.

    Ends are the order statistics x(j) and x(n+1-j) with the largest j such that P(Binomial(n, 1/2) < j) is at most
    (1 - level) / 2 (``scipy.stats.quantile_test``; Conover 1999, 3.2). Fewer than 6 values cannot give 95 %: the
    interval is then unbounded.
    """
    x = _finite(d, 1)
    at_most = special.bdtr(np.arange(len(x) + 1), len(x), 0.5)
    j = int(np.searchsorted(at_most, (1 - level) / 2))  # smallest j with P(B <= j) >= alpha/2, so P(B < j) <= it
    low, high = (np.sort(x)[[j - 1, len(x) - j]]) if j >= 1 else (-math.inf, math.inf)
    return Interval(median(x), float(low), float(high), level, OF_ROUNDS, len(x))


# ---- replicates -----------------------------------------------------------------------------------------------------


def replicate_interval(per_replicate: ArrayLike, level: float = 0.95) -> Interval:
    """Computes Student's t interval of the mean over replicates [n]: mean +- t(n-1) s / sqrt(n).

    Assumes independent replicates, roughly normal (each is a median or a final quality, itself an average of much).
    One replicate says nothing about the spread between replicates: its interval is unbounded.
    """
    x = _finite(per_replicate, 1)
    if len(x) == 1:
        return Interval(float(x[0]), -math.inf, math.inf, level, OVER_REPLICATES, 1, 0)
    dof = len(x) - 1
    half = _critical(level, dof) * float(x.std(ddof=1)) / math.sqrt(len(x))
    return Interval(
        float(x.mean()), float(x.mean()) - half, float(x.mean()) + half, level, OVER_REPLICATES, len(x), dof
    )


def combined_interval(replicates: Sequence[ArrayLike], level: float = 0.95) -> Interval:
    """Computes the interval of a log cost ratio from each replicate's round log ratios, whatever their number.

    One replicate: :func:`median_interval`, whose ``method`` says that it cannot see how processes differ. Two or more:
    :func:`replicate_interval` of the replicates' medians m_p, but never narrower than the rounds alone allow. Var(m_p)
    = between + within, so s^2 of a few medians that happen to agree may fall below the within part, which is known
    well: w^2 = mean over p of the Maritz-Jarrett variance of m_p. Half-width max(t(n-1) s, z w) / sqrt(n). Variance
    components after Kalibera & Jones 2013, section 6.
    """
    if len(replicates) == 1:
        return median_interval(replicates[0], level)
    samples = [_finite(d, 1) for d in replicates]
    between = replicate_interval([median(d) for d in samples], level)
    within = math.sqrt(np.mean([_median_variance(d) for d in samples]) / len(samples))
    half = _critical(level, math.inf) * within
    if half <= between.half_width:
        return between
    centre = between.estimate
    return Interval(centre, centre - half, centre + half, level, OVER_REPLICATES, len(samples))


def _median_variance(d: Floats) -> float:
    """Computes the variance of a median by Maritz & Jarrett 1978; 0 (no floor) where 2 rounds or fewer say nothing."""
    if len(d) <= 2:
        return 0.0
    centred = np.sort(d - median(d))  # else rounding makes the variance of nearly equal values negative
    weights = _order_weights(len(d))
    return max(0.0, float(weights @ centred**2 - (weights @ centred) ** 2))


@lru_cache
def _order_weights(n: int) -> Floats:
    """Returns the chance that the median of n draws, with replacement, of n sorted values is the i-th (scipy's
    mjci)."""
    m = int(0.5 * n + 0.5)
    weights: Floats = np.diff(special.betainc(m - 1, n - m, np.arange(n + 1) / n))
    return weights


def interaction(log_speedup_whole: ArrayLike, *log_speedup_parts: ArrayLike, level: float = 0.95) -> Interval:
    """Tells whether techniques still help together: log speedup(A+B) - log speedup(A) - log speedup(B), paired.

    Arrays [replicates] of the same replicates; of three or more parts, the whole against the sum of all. Of log
    *speedups*: above 0 they help each other, below 0 they overlap, 0 means that their speedups multiply. t interval.
    """
    whole, *parts = _paired(log_speedup_whole, *log_speedup_parts)
    return replicate_interval(whole - np.sum(parts, axis=0), level)


def replication_interval(
    first: ArrayLike, second: ArrayLike, sigma: float, degrees_of_freedom: float, level: float = 0.95
) -> Interval:
    """Tells how far a repeated replicate is from the first, median(second) - median(first), with what noise allows it
    to be.

    ``first`` and ``second``: round log ratios [rounds] of the same seed in two sets of processes. Each median is
    x_i = mu + p_i + w_i: p_i the processes' own offset, of standard deviation ``sigma``, w_i the noise of its rounds,
    of Maritz-Jarrett variance w_i^2. So x_2 - x_1 has mean 0 and variance 2 sigma^2 + w_1^2 + w_2^2, and the half-width
    is t(degrees_of_freedom) times its root: "the same" is an interval that contains 0. ``sigma`` has to come from
    elsewhere, since one seed cannot tell its processes' offset from its effect; where it was estimated from other
    replicates it holds noise of rounds already, and the interval is up to sqrt(2) too wide, never too narrow.
    """
    a, b = _finite(first, 1), _finite(second, 1)
    centre = median(b) - median(a)
    error = math.sqrt(2 * sigma**2 + _median_variance(a) + _median_variance(b))
    half = _critical(level, degrees_of_freedom) * error
    return Interval(centre, centre - half, centre + half, level, OVER_REPLICATES, 2, degrees_of_freedom)


# ---- variance shared by many rows -----------------------------------------------------------------------------------


QUIET = 1e-3  # chance of a variance that small: below, a sample's noise is of another kind, e.g. of rounding alone
NOISY = 0.05  # chance of a variance that large


@dataclass(frozen=True)
class Prior:
    """Describes how the variance of a replicate is distributed over the rows of a baseline: scaled inverse chi-squared.

    A row's own variance s^2, with d degrees of freedom, is then ``variance`` times F(d, ``degrees_of_freedom``).
    Infinite ``degrees_of_freedom``: all rows have one variance. ``pooled`` are those of the samples behind the prior.
    """

    variance: float
    degrees_of_freedom: float
    pooled: int

    def expects(self, variance: float, own: int) -> bool:
        """Tells whether a sample's variance, with its ``own`` degrees of freedom, is of the size that chance allows."""
        ratio = variance / self.variance
        if math.isinf(self.degrees_of_freedom):
            above, below = special.chdtrc(own, own * ratio), special.chdtr(own, own * ratio)
        else:  # as scipy.stats.f, without its overhead: a leaderboard asks ten thousands of times
            above, below = (f(own, self.degrees_of_freedom, ratio) for f in (special.fdtrc, special.fdtr))
        return bool(above >= NOISY and below >= QUIET)


def pooled_variance(samples: Sequence[ArrayLike]) -> Prior | None:
    """Returns the prior that the variances within the samples fit, by the moments of their logarithm (Smyth 2004, 6.2).

    Given a row's own variance sigma^2, ln s^2 has mean ln sigma^2 + psi(d/2) - ln(d/2) and variance psi'(d/2); what it
    varies more than that is the rows' difference, psi'(d0/2). Where it varies no more, all rows have one variance.
    Equal replicates say nothing about noise, and samples that are quieter than chance allows, such as those of
    techniques that change rounding alone, nothing about that of the others: both are left out. None where no sample
    says anything.
    """
    spread = [x for x in (_finite(sample, 1) for sample in samples) if len(x) > 1 and np.ptp(x) > 0]
    if not spread:
        return None
    variance = np.array([x.var(ddof=1) for x in spread])
    own = np.array([len(x) - 1.0 for x in spread])
    centre = median(variance * own / special.chdtri(own, 0.5))
    loud = special.chdtr(own, own * variance / centre) >= QUIET
    variance, own = variance[loud], own[loud]
    pooled = int(own.sum())
    log = np.log(variance) - special.digamma(own / 2) + np.log(own / 2)
    if len(log) == 1:  # its own mean, without the logarithm's bias: one row has Student's interval
        return Prior(float(variance[0]), math.inf, pooled)
    excess = float(log.var(ddof=1) - special.polygamma(1, own / 2).mean())
    if excess <= special.polygamma(1, 5e5):  # a million degrees of freedom are as good as infinitely many
        return Prior(math.exp(float(log.mean())), math.inf, pooled)
    half = math.exp(optimize.brentq(lambda x: special.polygamma(1, math.exp(x)) - excess, -30, math.log(5e5)))
    return Prior(math.exp(float(log.mean()) + float(special.digamma(half)) - math.log(half)), 2 * half, pooled)


def moderated_interval(per_replicate: ArrayLike, prior: Prior | None, level: float = 0.95) -> Interval:
    """Computes the t interval of the mean over replicates [n], its variance shared with the other rows of a baseline.

    With d = n - 1 and s^2 of the sample, d0 and s0^2 of the ``prior``: variance (d0 s0^2 + d s^2) / (d0 + d) with
    d0 + d degrees of freedom, but no more than the samples behind the prior have, of which this may be one (Smyth 2004,
    "limma"). Where the sample's own variance is not of the size that chance allows, it stands alone, as in
    :func:`replicate_interval`. Equal replicates have no noise: a technique that changes no bit of the trajectory is
    known exactly.

    Over all rows the interval covers as promised. Rows that are known to be the noisy ones of an uneven baseline are
    covered less, the quiet ones more, since a few replicates cannot tell which they are.
    """
    x = _finite(per_replicate, 1)
    own = replicate_interval(x, level)
    if prior is None or (len(x) > 1 and np.ptp(x) == 0):
        return own
    d, variance = len(x) - 1, float(x.var(ddof=1)) if len(x) > 1 else 0.0
    if d and not prior.expects(variance, d):
        return own
    own_share = d / (prior.degrees_of_freedom + d)
    dof = min(prior.degrees_of_freedom + d, prior.pooled)
    half = _critical(level, dof) * math.sqrt(((1 - own_share) * prior.variance + own_share * variance) / len(x))
    centre = float(x.mean())
    return Interval(centre, centre - half, centre + half, level, OVER_REPLICATES, len(x), dof)


def difference_interval(
    first: Interval, second: Interval, extra_error: float = 0.0, extra_degrees_of_freedom: float = math.inf
) -> Interval:
    """Computes the interval of ``first`` - ``second``, independent means; ``extra_error`` is a standard error of
    neither.

    Welch's: standard errors add in squares, degrees of freedom by Welch & Satterthwaite.
    """
    parts = [(mean.standard_error if mean.half_width else 0.0, mean.degrees_of_freedom) for mean in (first, second)]
    parts.append((extra_error, extra_degrees_of_freedom))
    total = sum(error**2 for error, _ in parts)
    centre = first.estimate - second.estimate
    n = min(first.n, second.n)
    if not math.isfinite(total):
        return Interval(centre, -math.inf, math.inf, first.level, OVER_REPLICATES, n, 0)
    below = sum(error**4 / max(1.0, dof) for error, dof in parts)
    dof = total**2 / below if below else math.inf
    half = _critical(first.level, dof) * math.sqrt(total)
    return Interval(centre, centre - half, centre + half, first.level, OVER_REPLICATES, n, dof)


# ---- quality against cost -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TimeToQuality:
    """Holds the costs in reference steps to first reach ``target``, and how much worse the contender ended.

    ``log_quality_gap`` is ln(contender's final loss / reference's), positive when worse; it and ``contender_cost``
    are infinite when the contender diverged or never became better than an untrained model.
    """

    target: float
    reference_cost: float
    contender_cost: float
    log_quality_gap: float

    @property
    def log_cost_ratio(self) -> float:
        """Returns ln(contender cost / reference cost), lower is better."""
        return math.log(self.contender_cost / self.reference_cost)


def time_to_quality(
    reference_curve: ArrayLike, contender_curve: ArrayLike, contender_cost: ArrayLike, setup_cost: float = 0.0
) -> TimeToQuality:
    """Computes the cost of the reference's final quality, on both sides of one seed.

    Curves [evaluations, 2]: (step, test loss), evaluations alike in number on both sides, learning rates fully
    decayed at each one's own last step. ``contender_cost`` [evaluations]: what the contender had spent at each of its
    evaluations, in reference steps, evaluation and set-up excluded; ``setup_cost`` is added to it.

    The target is the final loss of the reference, or the contender's own final loss where that is worse. Each side's
    cost is that of its *first* crossing of the target, interpolated linearly between evaluations. Whether a contender
    that ended worse reached the quality at all is a separate question, which all seeds answer together
    (:func:`time_to_quality_interval`).

    Why so. With the reference's final loss alone as target, an identical contender misses it in half of the seeds
    through noise, and the hits that remain favour it. With the worse of both finals, exchanging the sides exchanges
    the costs, so in an A/A comparison the log cost ratio is symmetric around 0, whatever the noise. First crossings
    gain from noise (the least of several noisy losses), but on both sides alike. Where the contender ended worse, the
    reference is read before its learning rate has decayed, which favours the contender a little: hence the tolerance.

    Raises ValueError when the reference ends no better than it began, or not at a number, and when the contender
    starts at the target for nothing.
    """
    reference, contender = _curve(reference_curve, "reference"), _curve(contender_curve, "contender")
    cost = _costs(contender_cost, contender) + setup_cost
    final, own = reference[-1, 1], contender[-1, 1]
    if not (final < reference[0, 1] and final > 0):
        raise ValueError(f"the reference went from {reference[0, 1]} to {final}: it has no quality to reach; train it")
    if not own < reference[0, 1]:
        return TimeToQuality(float(final), float(reference[-1, 0]), math.inf, math.inf)
    target = float(max(final, own))
    reference_cost = _first_crossing(reference[:, 0], reference[:, 1], target)
    own_cost = _first_crossing(cost, contender[:, 1], target)
    if own_cost == 0:
        raise ValueError(f"the contender is at the target {target} before its first step; count what it took as set-up")
    return TimeToQuality(target, reference_cost, own_cost, float(np.log(own / final)))


def time_to_quality_interval(
    results: Sequence[TimeToQuality], level: float = 0.95, tolerance: float = QUALITY_TOLERANCE
) -> Interval | None:
    """Computes the t interval over seeds of the log cost ratio to the reference's quality; ``.speedup()`` is the
    headline number.

    None when the quality was not reached: the mean over seeds of the log quality gap is above ``tolerance``, or a
    seed diverged. Deciding on the mean, not seed by seed, keeps the noise of single seeds from choosing which of them
    count. A tolerance of about a seed's noise is fair; under an unchanged contender it should exceed twice the standard
    error of the mean gap, or good contenders are lost.
    """
    if np.mean([result.log_quality_gap for result in results]) > tolerance:
        return None
    return replicate_interval([result.log_cost_ratio for result in results], level)


# ---- planning -------------------------------------------------------------------------------------------------------


def smallest_detectable_effect(sigma: float, n: int, level: float = 0.95, power: float = 0.8) -> float:
    """Computes the effect that a two-sided t test over ``n`` replicates of standard deviation ``sigma`` finds with
    ``power``.

    Solves P(|T| > t) = power for the noncentral t with n-1 degrees of freedom and noncentrality effect sqrt(n)/sigma
    (Cohen 1988, 2.4). Infinite for one replicate. Effects and sigma in log units.
    """
    if n < 2:
        return math.inf
    return _detectable(sigma / math.sqrt(n), n - 1, level, power)


def detectable_effect(interval: Interval, power: float = 0.8) -> float:
    """Computes the smallest effect that the test behind ``interval`` had the ``power`` to see; to print beside its
    verdict."""
    if not math.isfinite(interval.half_width):
        return math.inf
    return _detectable(interval.standard_error, interval.degrees_of_freedom, interval.level, power)


def required_replicates(sigma: float, effect: float, level: float = 0.95, power: float = 0.8) -> int:
    """Computes the fewest replicates (at least 2) whose :func:`smallest_detectable_effect` is at most ``effect`` >
    0."""
    if not effect > 0:
        raise ValueError(f"the effect to detect must be positive, not {effect}")
    z = special.ndtri([0.5 + level / 2, power]).sum()
    n = max(2, int((z * sigma / effect) ** 2))  # the normal answer is a lower bound: t needs more
    while smallest_detectable_effect(sigma, n, level, power) > effect:
        n += 1
    return n


def _detectable(standard_error: float, dof: float, level: float, power: float) -> float:
    return _noncentrality(dof, level, power) * standard_error


@lru_cache(maxsize=1024)
def _noncentrality(dof: float, level: float, power: float) -> float:
    """Finds the root of the noncentral power function, with T^2 ~ F(1, dof, nc^2) (chi-squared when dof is
    infinite)."""
    critical = _critical(level, dof) ** 2
    high = math.sqrt(critical) + 1
    while _power(high, critical, dof) < power:
        high *= 2
    return float(optimize.brentq(lambda nc: _power(nc, critical, dof) - power, 0.0, high))


def _power(noncentrality: float, critical: float, dof: float) -> float:
    square = noncentrality**2
    below = special.chndtr(critical, 1, square) if math.isinf(dof) else special.ncfdtr(1, dof, square, critical)
    return 1 - float(below)


# ---- many contenders ------------------------------------------------------------------------------------------------


def tiers(intervals: Mapping[str, Interval], level: float = 0.95) -> list[list[str]]:
    """Sorts contenders into statistical tiers, best (lowest estimate) first: a rank is shared where the data cannot
    tell.

    Definition. (1) Every pair gets a two-sided Welch test from the intervals' standard errors,
    t = (x_i - x_j) / sqrt(se_i^2 + se_j^2), Welch-Satterthwaite degrees of freedom. (2) The p-values of all pairs are
    adjusted together by Benjamini & Hochberg 1995. (3) In order of (estimate, name), the first leads the first tier;
    each next joins the current tier unless its adjusted p against the tier's *leader* is below 1 - level: then it
    leads a new tier. An unbounded interval is never told apart, so it joins the tier that its estimate falls in.

    Contenders that share a reference are positively correlated, for which the Welch test is conservative. Among pairs
    BH keeps its rate although they are dependent (Williams, Jones & Tukey 1999). Intervals over rounds
    know nothing of the spread between processes: tiers of such are provisional.
    """
    order = sorted(intervals, key=lambda name: (intervals[name].estimate, name))
    apart = _adjusted_welch_p([intervals[name] for name in order]) < 1 - level
    result: list[list[str]] = []
    leader = 0
    for position, name in enumerate(order):
        if not result or apart[leader, position]:
            result.append([name])
            leader = position
        else:
            result[-1].append(name)
    return result


def _adjusted_welch_p(intervals: Sequence[Interval]) -> Floats:
    """Computes p of every pair [n, n], adjusted over all pairs; 1 below the diagonal, which nobody reads."""
    n = len(intervals)
    adjusted = np.ones((n, n))
    if n < 2:
        return adjusted
    estimate = np.array([interval.estimate for interval in intervals])
    bounded = np.array([math.isfinite(interval.half_width) for interval in intervals])
    variance = np.array(
        [interval.standard_error**2 if math.isfinite(interval.half_width) else 0.0 for interval in intervals]
    )
    dof = np.array([interval.degrees_of_freedom or 1.0 for interval in intervals])  # 0: one replicate, unbounded anyway
    a, b = np.triu_indices(n, 1)
    total = variance[a] + variance[b]
    with np.errstate(divide="ignore", invalid="ignore"):  # no variance at all: apart unless equal
        welch = 1 / ((variance[a] / total) ** 2 / dof[a] + (variance[b] / total) ** 2 / dof[b])
        p = 2 * special.stdtr(welch, -np.abs(estimate[a] - estimate[b]) / np.sqrt(total))
    p = np.where(total == 0, (estimate[a] == estimate[b]).astype(float), p)
    p[~(bounded[a] & bounded[b])] = 1.0
    from scipy import stats

    adjusted[a, b] = stats.false_discovery_control(p)
    return adjusted


# ---- gates ----------------------------------------------------------------------------------------------------------


def sign_e_process(d: ArrayLike, prior: float = 2.0, margin: float | None = None) -> Floats:
    """Computes ln E_n after each of d [n]: evidence against "no change" that may be looked at after every round.

    Two-sided (no ``margin``), K = #{d_i > 0}, a = prior: ln E = ln B(K+a, n-K+a) - ln B(a, a) + n ln 2, the mixture
    likelihood ratio of a coin with a Beta(a, a) bias against a fair one. One-sided, against "slower by at most
    ``margin``" (a fraction, e.g. 0.03), K = #{d_i > ln(1+margin)}, the mixture over biases above 1/2:
    E = 2 2^n B(K+a, n-K+a) (1 - I_1/2(K+a, n-K+a)) / B(a, a). Negate d to test for a gain.

    Reject at any n where ln E_n >= -ln alpha: the chance of ever doing so under the null is at most alpha (Ville
    1939). Exact when the signs are exchangeable: rounds of one process in random order, or one value per process
    pair. Never feed it the rounds of one *fixed* pair of processes: it rightly detects that two processes differ.
    Exact zeros carry no sign: in the two-sided form they leave E as it is, in the one-sided form they count as "not
    slower".
    """
    x = _sample(d, 1)
    a = prior
    if margin is None:
        k, n = np.cumsum(x > 0), np.cumsum(x != 0)
        two_sided: Floats = special.betaln(k + a, n - k + a) - special.betaln(a, a) + n * math.log(2)
        return two_sided
    k, n = np.cumsum(x > math.log1p(margin)), np.arange(1, len(x) + 1)
    with np.errstate(divide="ignore"):  # ln 0 = -inf: no evidence left, correctly
        upper = np.log(special.betaincc(k + a, n - k + a, 0.5))
    one_sided: Floats = special.betaln(k + a, n - k + a) - special.betaln(a, a) + (n + 1) * math.log(2) + upper
    return one_sided


def false_alarm_interval(alarms: int, comparisons: int, level: float = 0.95) -> Interval:
    """Computes the exact interval (Clopper & Pearson 1934) of the false-alarm rate from ``alarms`` in A/A
    ``comparisons``."""
    from scipy import stats

    ends = stats.binomtest(alarms, comparisons).proportion_ci(level, "exact")
    return Interval(alarms / comparisons, float(ends.low), float(ends.high), level, "exact binomial", comparisons)


# ---- checks and small helpers ---------------------------------------------------------------------------------------


def median(values: ArrayLike) -> float:
    """Computes the median of a vector, NaN where one of its numbers is. A large leaderboard asks a million times,
    mostly for three seeds, and ``numpy.median`` has an overhead."""
    x = np.sort(values)
    if not len(x) or math.isnan(x[-1]):  # NaN is sorted to the end
        return math.nan
    half = len(x) // 2
    return float(x[half]) if len(x) % 2 else float(x[half - 1] + x[half]) / 2


@lru_cache(maxsize=1024)
def _critical(level: float, dof: float) -> float:
    """Computes the two-sided critical value of Student's t."""
    if dof <= 0:
        return math.inf
    return float(special.ndtri(0.5 + level / 2) if math.isinf(dof) else special.stdtrit(dof, 0.5 + level / 2))


def _exp(x: float) -> float:
    return math.exp(x) if x < 709 else math.inf


def _sample(values: ArrayLike, least: int) -> Floats:
    x = np.asarray(values, dtype=np.float64)
    if x.ndim != 1 or len(x) < least or np.isnan(x).any():
        raise ValueError(f"expected a vector of {least} or more numbers, got shape {x.shape}; leave failed runs out")
    return x


def _finite(values: ArrayLike, least: int) -> Floats:
    x = _sample(values, least)
    if not np.isfinite(x).all():
        raise ValueError("expected finite values; leave diverged runs out and report them as failures")
    return x


def _paired(*samples: ArrayLike) -> tuple[Floats, ...]:
    arrays = tuple(_finite(sample, 1) for sample in samples)
    if len({len(x) for x in arrays}) != 1:
        raise ValueError(
            f"paired samples need the same replicates, not {[len(x) for x in arrays]}; keep the shared ones"
        )
    return arrays


def _blocks(times_s: ArrayLike, name: str) -> Floats:
    x = np.asarray(times_s, dtype=np.float64)
    if x.ndim != 2 or x.shape[1] != 2 or not len(x):
        raise ValueError(f"{name}: expected block times [rounds, 2], got shape {x.shape}")
    if not (np.isfinite(x).all() and (x > 0).all()):
        raise ValueError(f"{name}: block times must be positive and finite; drop the rounds after a failure")
    return x


def _curve(points: ArrayLike, name: str) -> Floats:
    x = np.asarray(points, dtype=np.float64)
    if x.ndim != 2 or x.shape[1] != 2 or len(x) < 2 or not (np.diff(x[:, 0]) > 0).all():
        raise ValueError(f"{name}: expected two or more (step, loss) rows in increasing steps, got shape {x.shape}")
    return x


def _costs(values: ArrayLike, curve: Floats) -> Floats:
    x = _finite(values, 2)
    if len(x) != len(curve) or (np.diff(x) < 0).any() or x[0] < 0:
        raise ValueError(f"expected one nondecreasing cost for each of {len(curve)} evaluations, got {len(x)}")
    return x


def _first_crossing(cost: Floats, loss: Floats, target: float) -> float:
    """Computes the cost at which the piecewise linear loss first comes down to ``target``; infinite when never (NaN
    never does)."""
    below = np.flatnonzero(loss <= target)
    if not len(below):
        return math.inf
    i = int(below[0])
    if i == 0 or not math.isfinite(loss[i - 1]):
        return float(cost[i])
    share = (loss[i - 1] - target) / (loss[i - 1] - loss[i])
    return float(cost[i - 1] + share * (cost[i] - cost[i - 1]))
