"""Simulations with known truth: error rates, coverage and power of every estimator, at fixed seeds.

Noise is drawn as the harness meets it: heavy-tailed rounds (Student t with 3 degrees of freedom), drift, and processes
that differ from each other although they run the same code.
"""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.integrate import quad

from suite.judge import statistics as s


def at_most(count: int, trials: int, rate: float) -> bool:
    """Whether ``count`` is compatible with a true rate of at most ``rate`` (exact, one error in a thousand)."""
    return bool(stats.binomtest(count, trials, rate, alternative="greater").pvalue > 1e-3)


def at_least(count: int, trials: int, rate: float) -> bool:
    return at_most(trials - count, trials, 1 - rate)


def simulated_rounds(rng, rounds, effect=0.0, noise=0.03, drift=0.0, process=0.0):
    """block_s of a reference and a contender ``effect`` (log) slower, each pair of processes off by ``process``."""
    offset = rng.normal(0, process) if process else 0.0
    log_s = np.log(0.03) + drift * np.arange(4 * rounds).reshape(rounds, 4) + noise * rng.standard_t(3, (rounds, 4))
    abba = rng.random(rounds)[:, None] < 0.5
    slow = np.where(abba, [0, 1, 1, 0], [1, 0, 0, 1]).astype(bool)
    log_s += slow * (effect + offset)
    return np.exp(log_s[~slow].reshape(rounds, 2)), np.exp(log_s[slow].reshape(rounds, 2))


# ---- rounds


@given(
    slope=st.floats(-0.1, 0.1),
    contenders=st.integers(2, 6),
    seed=st.integers(0, 2**32 - 1),
)
def test_linear_drift_cancels_for_any_number_of_contenders(slope, contenders, seed):
    rng = np.random.default_rng(seed)
    rounds = 7
    base = rng.normal(0, 0.1, (contenders, rounds, 2))
    drifted = base.copy()
    for r in range(rounds):
        order = rng.permutation(contenders)
        position = {int(c): (i, 2 * contenders - 1 - i) for i, c in enumerate(order)}
        for c, places in position.items():
            drifted[c, r] += slope * (r * 2 * contenders + np.array(places))
    for c in range(1, contenders):
        expected = s.round_log_ratios(np.exp(base[0]), np.exp(base[c]))
        np.testing.assert_allclose(s.round_log_ratios(np.exp(drifted[0]), np.exp(drifted[c])), expected, atol=1e-12)


def test_round_log_ratio_is_the_log_of_the_geometric_means_and_drops_warmup():
    a, b = np.array([[1.0, 4.0], [2.0, 2.0]]), np.array([[8.0, 2.0], [1.0, 1.0]])
    np.testing.assert_allclose(s.round_log_ratios(a, b), [math.log(2), -math.log(2)])
    np.testing.assert_allclose(s.round_log_ratios(a, b, 1), [-math.log(2)])
    for bad in (np.array([[0.0, 1.0]]), np.array([[np.nan, 1.0]]), np.ones((2, 3))):
        with pytest.raises(ValueError, match="block times"):
            s.round_log_ratios(bad, bad)
    with pytest.raises(ValueError, match="measure more rounds"):
        s.round_log_ratios(a, b, 2)


@pytest.mark.parametrize("n", [1, 5, 6, 7, 10, 41, 100])
@pytest.mark.parametrize("level", [0.8, 0.95, 0.99])
def test_median_interval_agrees_with_scipys_quantile_test(n, level):
    x = np.random.default_rng(n).standard_cauchy(n)
    expected = stats.quantile_test(x, q=0, p=0.5).confidence_interval(level)
    got = s.median_interval(x, level)
    assert got.low == (-math.inf if np.isnan(expected.low) else expected.low)
    assert got.high == (math.inf if np.isnan(expected.high) else expected.high)
    assert got.low <= got.estimate <= got.high and got.n == n and got.method == s.OF_ROUNDS


def test_planted_slow_down_is_found_and_a_no_op_is_not():
    rng, trials = np.random.default_rng(1), 400
    found = alarms = 0
    for _ in range(trials):
        found += not s.median_interval(
            s.round_log_ratios(*simulated_rounds(rng, 40, math.log(1.05), drift=0.002))
        ).contains(0)
        alarms += not s.median_interval(s.round_log_ratios(*simulated_rounds(rng, 40, drift=0.002))).contains(0)
    assert at_least(found, trials, 0.9)
    assert at_most(alarms, trials, 0.05)


@pytest.mark.parametrize("cold", [0, 1, 3])
def test_warmup_finds_slow_first_rounds_and_uses_the_slowest_contender(cold):
    rng = np.random.default_rng(cold)
    for _ in range(20):
        steady, warming = simulated_rounds(rng, 40, noise=0.01)
        warming[:cold] *= np.geomspace(50, 1.5, cold)[:, None] if cold else 1
        assert s.warmup_rounds({"a": steady, "b": warming}) >= cold
        assert s.warmup_rounds({"a": warming, "b": steady}) == s.warmup_rounds({"b": steady, "a": warming})


def test_warmup_is_bounded_and_seldom_wasteful():
    rng = np.random.default_rng(2)
    falling = np.exp(-0.1 * np.arange(60)).reshape(30, 2)
    assert s.warmup_rounds({"a": falling}) == 10
    assert s.warmup_rounds({"a": np.ones((2, 2))}) == 0
    wasted = [s.warmup_rounds({"a": simulated_rounds(rng, 40)[0]}) for _ in range(200)]
    assert np.mean(wasted) < 0.5


# ---- replicates


def test_three_seeds_cover_at_the_nominal_rate_where_rounds_alone_do_not():
    rng, trials, truth = np.random.default_rng(3), 1000, -0.1
    covered = pooled = 0
    for _ in range(trials):
        replicates = [s.round_log_ratios(*simulated_rounds(rng, 30, truth, noise=0.02, process=0.02)) for _ in range(3)]
        covered += s.combined_interval(replicates).contains(truth)
        pooled += s.median_interval(np.concatenate(replicates)).contains(truth)
    assert at_least(covered, trials, 0.95)
    assert not at_least(pooled, trials, 0.8), "rounds are not replicates: the test would not see the difference"


def test_seeds_that_agree_by_chance_do_not_give_an_absurdly_narrow_interval():
    rng = np.random.default_rng(4)
    d = rng.normal(0, 0.02, (2, 40))
    d -= np.median(d, axis=1, keepdims=True)
    assert s.replicate_interval(np.median(d, axis=1)).half_width < 1e-12
    floored = s.combined_interval(list(d))
    assert floored.half_width == pytest.approx(1.96 * 1.2533 * 0.02 / math.sqrt(40) / math.sqrt(2), rel=0.4)
    # without between-process variance the floor must not cost coverage either
    covered = sum(s.combined_interval(list(rng.normal(0, 0.02, (2, 40)))).contains(0) for _ in range(1000))
    assert at_least(covered, 1000, 0.95)


def test_one_replicate_is_shown_but_says_what_it_is():
    d = np.random.default_rng(5).normal(0.1, 0.01, 30)
    assert s.combined_interval([d]) == s.median_interval(d)
    alone = s.replicate_interval([0.1])
    assert (alone.low, alone.high, alone.n) == (-math.inf, math.inf, 1)
    assert s.combined_interval([np.zeros(20), np.zeros(20)]).half_width == 0


def test_replicate_interval_is_the_t_interval():
    x = np.random.default_rng(6).normal(size=5)
    expected = stats.ttest_1samp(x, 0).confidence_interval(0.9)
    got = s.replicate_interval(x, 0.9)
    assert (got.low, got.high) == pytest.approx((expected.low, expected.high))
    assert got.standard_error == pytest.approx(x.std(ddof=1) / math.sqrt(5))


def test_interval_maps_to_ratio_and_speedup():
    x = s.Interval(math.log(0.5), math.log(0.4), math.inf, 0.95, s.OVER_REPLICATES, 3, 2)
    assert (x.speedup().low, x.speedup().estimate, x.speedup().high) == pytest.approx((0.0, 2.0, 2.5))
    assert (x.ratio().low, x.ratio().estimate, x.ratio().high) == pytest.approx((0.4, 0.5, math.inf))


def test_interaction_is_centred_and_covers():
    rng, trials = np.random.default_rng(9), 1000
    covered = 0
    for _ in range(trials):
        seed_effect = rng.normal(0, 0.1, 4)  # shared by the three in a seed
        a, b, ab = (x + seed_effect + rng.normal(0, 0.01, 4) for x in (0.2, 0.3, 0.4))
        covered += s.interaction(ab, a, b).contains(-0.1)
    assert at_least(covered, trials, 0.95)
    with pytest.raises(ValueError, match="same replicates"):
        s.interaction([1, 2], [1], [1, 2])


@pytest.mark.parametrize("seeds", [None, 2, 3, 5])
def test_two_runs_of_one_seed_agree_as_often_as_promised_and_a_change_is_seen(seeds):
    """sigma known, or from the spread over seeds of which the first run is one."""
    rng, trials, within, between = np.random.default_rng(12), 600, 0.05, 0.02
    agreed = seen = 0
    for _ in range(trials):
        first, second, *others = (
            within * rng.standard_normal(21) + between * rng.standard_normal() for _ in range(max(2, (seeds or 0) + 1))
        )
        sigma, dof = between, math.inf
        if seeds:
            sigma, dof = np.std([np.median(each) for each in (first, *others)], ddof=1), seeds - 1
        agreed += s.replication_interval(first, second, sigma, dof).contains(0)
        seen += not s.replication_interval(first, second + 0.2, sigma, dof).contains(0)
    assert at_least(agreed, trials, 0.95)
    if seeds is None:
        assert at_least(seen, trials, 0.95)
        assert at_most(agreed, trials, 0.96)  # and no wider than it must be


# ---- variance shared by many rows


ROWS, SEEDS = 20, 3


def board(rng, deviation, seeds=SEEDS):
    """Replicates of rows [rows] with these standard deviations, around 0."""
    return [each * rng.standard_normal(seeds) for each in deviation]


def moderated(samples):
    prior = s.pooled_variance(samples)
    return [s.moderated_interval(each, prior) for each in samples]


@pytest.mark.parametrize("rows", [2, ROWS])
def test_rows_of_one_variance_share_it_and_cover_at_the_nominal_rate(rows):
    rng, trials = np.random.default_rng([30, rows]), 2000 // rows
    intervals = [each for _ in range(trials) for each in moderated(board(rng, np.ones(rows)))]
    covered = np.mean([each.contains(0) for each in intervals])
    assert abs(covered - 0.95) < 0.02


def test_rows_of_one_variance_have_intervals_as_narrow_as_theory_says():
    """Of a variance with 40 degrees of freedom in place of 2: t(40) sigma over t(2) E[s], s of three replicates."""
    rng = np.random.default_rng(31)
    shared, own = [], []
    for _ in range(50):
        samples = board(rng, np.ones(ROWS))
        shared += [each.half_width for each in moderated(samples)]
        own += [s.replicate_interval(each).half_width for each in samples]
    expected = stats.t.ppf(0.975, 2 * ROWS) / (stats.t.ppf(0.975, 2) * math.gamma(1.5))
    assert np.median(shared) / np.mean(own) == pytest.approx(expected, rel=0.12)


@pytest.mark.parametrize("kind", ["a third three times as noisy", "a wide range"])
def test_rows_that_differ_in_noise_are_covered_too(kind):
    rng, trials = np.random.default_rng([32, len(kind)]), 150
    covered = 0
    for _ in range(trials):
        deviation = np.ones(ROWS)
        if kind == "a third three times as noisy":
            deviation[::3] = 3
        else:
            deviation = np.exp(0.7 * rng.standard_normal(ROWS))
        covered += sum(each.contains(0) for each in moderated(board(rng, deviation)))
    assert covered >= 0.93 * trials * ROWS


def test_a_row_much_noisier_than_all_others_keeps_its_own_width():
    rng, trials = np.random.default_rng(33), 300
    deviation = np.ones(ROWS)
    deviation[0] = 10
    covered = sum(moderated(board(rng, deviation))[0].contains(0) for _ in range(trials))
    assert at_least(covered, trials, 0.93)


def test_rounding_alone_is_no_noise_of_the_others_and_has_none_of_theirs():
    rng, trials = np.random.default_rng(34), 100
    deviation = np.where(np.arange(ROWS) % 3 == 0, 1e-3, 1.0)
    quiet, loud = [], []
    for _ in range(trials):
        for each, of in zip(moderated(board(rng, deviation)), deviation, strict=True):
            (loud if of == 1 else quiet).append(each)
    for intervals in (quiet, loud):
        assert at_least(sum(each.contains(0) for each in intervals), len(intervals), 0.945)
    assert np.median([each.half_width for each in quiet]) < 0.01
    assert np.median([each.half_width for each in loud]) < 1.4


def test_equal_replicates_are_exact_and_say_nothing_of_noise():
    samples = [np.array([0.25, 0.25, 0.25]), np.array([-0.1, 0.0, 0.1])]
    prior = s.pooled_variance(samples)
    assert prior == s.pooled_variance(samples[1:])
    assert s.moderated_interval(samples[0], prior).half_width == 0
    assert s.pooled_variance(samples[:1]) is None and s.pooled_variance([[1.0], [2.0]]) is None


def test_a_row_alone_has_its_students_interval():
    x = np.random.default_rng(35).normal(size=4)
    alone, own = s.moderated_interval(x, s.pooled_variance([x])), s.replicate_interval(x)
    assert (alone.low, alone.high, alone.degrees_of_freedom) == pytest.approx((own.low, own.high, 3))
    assert s.moderated_interval(x, None) == own


def test_one_replicate_has_the_interval_of_the_others():
    rng, trials = np.random.default_rng(36), 1000
    covered = 0
    for _ in range(trials):
        prior = s.pooled_variance(board(rng, np.ones(8)))
        covered += s.moderated_interval(rng.standard_normal(1), prior).contains(0)
    assert at_least(covered, trials, 0.95)
    assert math.isinf(s.moderated_interval([0.1], None).half_width)


def test_the_prior_is_the_distribution_that_variances_were_drawn_from():
    """Scaled inverse chi-squared with 6 degrees of freedom around 0.04, of many rows."""
    rng = np.random.default_rng(37)
    deviation = np.sqrt(6 * 0.04 / rng.chisquare(6, 2000))
    prior = s.pooled_variance(board(rng, deviation))
    assert prior.degrees_of_freedom == pytest.approx(6, rel=0.25)
    assert prior.variance == pytest.approx(0.04, rel=0.1)


samples_of_rows = st.lists(st.lists(st.integers(-50, 50).map(float), min_size=1, max_size=5), min_size=1, max_size=8)


@given(samples_of_rows, st.floats(1e-3, 1e3), st.integers(-100, 100))
def test_moderation_knows_neither_unit_nor_origin_and_keeps_the_mean(rows, scale, shift):
    plain = moderated(rows)
    moved = moderated([scale * (np.array(each) + shift) for each in rows])
    for x, a, b in zip(rows, plain, moved, strict=True):
        assert a.estimate == pytest.approx(np.mean(x))
        assert b.estimate == pytest.approx(scale * (a.estimate + shift), rel=1e-6, abs=1e-6 * scale)
        if math.isfinite(a.half_width):
            assert b.half_width == pytest.approx(scale * a.half_width, rel=1e-4, abs=1e-9 * scale)


# ---- differences


def test_a_difference_of_means_with_an_error_of_neither_is_covered():
    rng, trials = np.random.default_rng(40), 2000
    plain = with_extra = ignored = 0
    for _ in range(trials):
        first, second = s.replicate_interval(rng.normal(3, 1, 4)), s.replicate_interval(rng.normal(1, 2, 6))
        extra = rng.normal(0, 1.5, 3)  # its mean's error is known from three values
        error = float(np.std(extra, ddof=1)) / math.sqrt(3)
        plain += s.difference_interval(first, second).contains(2)
        shifted = s.Interval(*(end + extra.mean() for end in (first.estimate, first.low, first.high)), *parts(first))
        with_extra += s.difference_interval(shifted, second, error, 2).contains(2)
        ignored += s.difference_interval(shifted, second).contains(2)
    assert at_least(plain, trials, 0.95) and at_most(plain, trials, 0.97)
    assert at_least(with_extra, trials, 0.94)
    assert not at_least(ignored, trials, 0.93), "the extra error must matter, or this test shows nothing"


def parts(interval):
    return interval.level, interval.method, interval.n, interval.degrees_of_freedom


@settings(max_examples=40)
@given(st.floats(-5, 5), st.floats(0, 5), st.floats(-5, 5), st.floats(0, 5), st.floats(0, 5))
def test_a_difference_is_as_uncertain_as_both_together(x, w, y, v, extra):
    first, second = (s.Interval(c, c - h, c + h, 0.95, s.OVER_REPLICATES, 3, 2) for c, h in ((x, w), (y, v)))
    both, swapped = s.difference_interval(first, second, extra), s.difference_interval(second, first, extra)
    assert both.estimate == pytest.approx(x - y)
    assert (swapped.low, swapped.high) == pytest.approx((-both.high, -both.low))
    assert both.standard_error == pytest.approx(math.hypot(first.standard_error, second.standard_error, extra))
    assert both.half_width <= w + v + 4.31 * extra + 1e-9
    exact = s.Interval(y, y, y, 0.95, s.OVER_REPLICATES, 3)
    alone = s.difference_interval(first, exact)
    assert alone.half_width == pytest.approx(w)


def test_an_unbounded_side_leaves_the_difference_unbounded():
    bounded, unbounded = s.replicate_interval([1.0, 2.0, 3.0]), s.replicate_interval([1.0])
    for pair in ((bounded, unbounded), (unbounded, bounded)):
        assert math.isinf(s.difference_interval(*pair).half_width)
    exact = s.replicate_interval([2.0, 2.0])
    assert s.difference_interval(exact, exact).half_width == 0


# ---- quality against cost


def noisy_curve(rng, noise, evaluations=12, steps=600):
    step = np.linspace(0, steps, evaluations + 1)
    progress = step / steps
    return np.column_stack(
        [step, 2 + 2 * (1 - progress) ** 2 + 3 * np.exp(-6 * progress) + rng.normal(0, noise, len(step))]
    )


@pytest.mark.parametrize("noise", [0.003, 0.2])
def test_time_to_quality_of_identical_contenders_is_centred_at_one(noise):
    rng, trials = np.random.default_rng(12), 1500
    x = np.empty(trials)
    for i in range(trials):
        reference, contender = noisy_curve(rng, noise), noisy_curve(rng, noise)
        cost = contender[:, 0] * math.exp(rng.normal(0, 0.01))
        x[i] = s.time_to_quality(reference, contender, cost).log_cost_ratio
    assert stats.binomtest(int((x > 0).sum()), int((x != 0).sum())).pvalue > 1e-3
    assert abs(x.mean()) < 3.3 * stats.sem(x)


def test_time_to_quality_interval_covers_one_for_identical_contenders():
    rng, trials = np.random.default_rng(13), 500
    intervals = []
    for _ in range(trials):
        seeds = [(noisy_curve(rng, 0.01), noisy_curve(rng, 0.01)) for _ in range(3)]
        intervals.append(s.time_to_quality_interval([s.time_to_quality(a, b, b[:, 0]) for a, b in seeds]))
    reached = [interval for interval in intervals if interval is not None]
    assert len(reached) > 0.95 * trials
    assert at_least(sum(interval.contains(0) for interval in reached), len(reached), 0.95)


def test_planted_time_to_quality_speedup_is_recovered():
    rng = np.random.default_rng(14)
    results = []
    for _ in range(200):
        reference, contender = noisy_curve(rng, 0.005), noisy_curve(rng, 0.005, steps=300)
        results.append(s.time_to_quality(reference, contender, contender[:, 0] * 0.8))
    interval = s.time_to_quality_interval(results)
    assert interval is not None
    speedup = interval.speedup()
    assert speedup.low < 2.5 < speedup.high and speedup.high / speedup.low < 1.05


def test_time_to_quality_by_hand():
    reference = np.array([[0, 4.0], [50, 3.0], [100, 2.0]])
    faster = np.array([[0, 4.0], [50, 2.5], [100, 1.5]])
    result = s.time_to_quality(reference, faster, [0, 60, 120], setup_cost=10)
    assert (result.target, result.reference_cost, result.contender_cost) == (2.0, 100, 100)
    assert s.time_to_quality(reference, reference, [0, 50, 100]).log_cost_ratio == 0
    worse = s.time_to_quality(reference, np.array([[0, 4.0], [50, 2.01]]), [0, 50])
    assert (worse.target, worse.reference_cost, worse.contender_cost) == pytest.approx((2.01, 99.5, 50))
    assert 0.001 < worse.log_quality_gap < s.QUALITY_TOLERANCE
    with pytest.raises(ValueError, match="no quality to reach"):
        s.time_to_quality([[0, 2.0], [1, 2.5]], faster, [0, 60, 120])
    warm_start = [[0, 1.9], [50, 1.5]]
    with pytest.raises(ValueError, match="set-up"):
        s.time_to_quality(reference, warm_start, [0, 50])
    assert s.time_to_quality(reference, warm_start, [0, 50], setup_cost=25).log_cost_ratio == -math.log(4)


@pytest.mark.parametrize("final", [math.nan, math.inf, 4.0])
def test_a_contender_that_diverged_has_not_reached_the_quality(final):
    reference = np.array([[0, 4.0], [50, 3.0], [100, 2.0]])
    good = s.time_to_quality(reference, reference, [0, 50, 100])
    lost = s.time_to_quality(reference, [[0, 4.0], [50, 1.0], [100, final]], [0, 50, 100])
    assert lost.log_quality_gap == lost.log_cost_ratio == math.inf
    assert s.time_to_quality_interval([good, good, lost]) is None
    assert s.time_to_quality_interval([good, good]) is not None


# ---- planning


@pytest.mark.parametrize("n", [2, 3, 8])
def test_power_at_the_smallest_detectable_effect_is_as_stated(n):
    rng, trials = np.random.default_rng(16 + n), 20000
    effect = s.smallest_detectable_effect(0.02, n)
    x = rng.normal(effect, 0.02, (trials, n))
    found = int((stats.ttest_1samp(x, 0, axis=1).pvalue < 0.05).sum())
    assert at_least(found, trials, 0.8) and at_most(found, trials, 0.8)


def test_required_replicates_inverts_the_smallest_effect():
    n = s.required_replicates(0.02, 0.03)
    assert s.smallest_detectable_effect(0.02, n) <= 0.03 < s.smallest_detectable_effect(0.02, n - 1)
    assert s.smallest_detectable_effect(0.02, 1) == math.inf
    x = np.random.default_rng(17).normal(size=4)
    assert s.detectable_effect(s.replicate_interval(x)) == pytest.approx(s.smallest_detectable_effect(x.std(ddof=1), 4))
    assert s.detectable_effect(s.replicate_interval([0.0])) == math.inf


# ---- many contenders


def test_equal_contenders_share_one_tier():
    rng, trials = np.random.default_rng(19), 500
    split = 0
    for _ in range(trials):
        x = rng.normal(0, 0.02, (8, 4))
        split += len(s.tiers({str(i): s.replicate_interval(row) for i, row in enumerate(x)})) > 1
    assert at_most(split, trials, 0.05)


def test_distinct_contenders_get_distinct_tiers_and_correlation_is_harmless():
    rng = np.random.default_rng(20)
    shared = rng.normal(0, 0.001, 5)  # the noise of the common reference
    truth = {"fast": -0.5, "also_fast": -0.5, "middle": -0.2, "slow": 0.3}
    intervals = {name: s.replicate_interval(x + shared + rng.normal(0, 0.002, 5)) for name, x in truth.items()}
    assert [sorted(tier) for tier in s.tiers(intervals)] == [["also_fast", "fast"], ["middle"], ["slow"]]
    assert s.tiers(dict(reversed(intervals.items()))) == s.tiers(intervals)
    unknown = {**intervals, "unknown": s.replicate_interval([-0.3])}
    assert len(s.tiers(unknown)) == 3
    assert s.tiers({}) == [] and s.tiers({"a": intervals["slow"]}) == [["a"]]
    exact = {name: s.replicate_interval([x, x]) for name, x in truth.items()}
    assert s.tiers(exact) == [["also_fast", "fast"], ["middle"], ["slow"]]


@given(st.lists(st.floats(), min_size=1, max_size=50))
def test_the_median_is_numpys_to_the_bit(values):
    with np.errstate(invalid="ignore", over="ignore"):
        assert np.array_equal(s.median(values), np.median(values), equal_nan=True)


# ---- gates


def test_two_sided_e_process_is_the_beta_binomial_mixture():
    d = np.array([1.0, -1, 1, 1, 0, 1])
    prior = stats.beta(2, 2)
    mixture = quad(lambda p: prior.pdf(p) * p**4 * (1 - p) * 2**5, 0, 1)[0]
    above = quad(lambda p: 2 * prior.pdf(p) * p**4 * (1 - p) ** 2 * 2**6, 0.5, 1)[0]
    assert s.sign_e_process(d)[-1] == pytest.approx(math.log(mixture))
    assert s.sign_e_process(d, margin=0.0)[-1] == pytest.approx(math.log(above))


def ever_rejects(rng, p, trials=1500, looks=200, **form):
    d = np.where(rng.random((trials, looks)) < p, 1.0, -1.0)
    return sum(s.sign_e_process(row, **form).max() >= math.log(20) for row in d)


def test_e_process_survives_peeking_at_every_round_and_finds_an_effect():
    rng = np.random.default_rng(21)
    assert at_most(ever_rejects(rng, 0.5), 1500, 0.05)
    assert at_most(ever_rejects(rng, 0.5, margin=0.03), 1500, 0.05)
    assert at_most(ever_rejects(rng, 0.5, margin=0.03, prior=0.5), 1500, 0.05)
    assert at_most(ever_rejects(rng, 0.4, margin=0.03), 1500, 0.01)
    assert at_least(ever_rejects(rng, 0.7, margin=0.03), 1500, 0.99)
    d = s.round_log_ratios(*simulated_rounds(rng, 100, math.log(1.05)))
    assert s.sign_e_process(d).max() > math.log(20)
    assert s.sign_e_process(d, margin=0.10).max() < math.log(20), "5 % slower is within a margin of 10 %"


def test_a_coarse_clock_that_reads_zero_is_no_evidence():
    assert np.all(s.sign_e_process(np.zeros(50)) == 0)


def test_false_alarm_interval_is_exact():
    got = s.false_alarm_interval(2, 120)
    assert (got.low, got.high) == pytest.approx((0.002, 0.059), abs=5e-4)
    assert s.false_alarm_interval(0, 60).low == 0


# ---- fast forms against scipy's


@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=12))
def test_the_trend_is_kendalls_and_a_median_s_variance_maritz_and_jarretts(values):
    x = np.array(values)
    assert s._falling_p(x) == pytest.approx(
        stats.kendalltau(np.arange(len(x)), x, alternative="less").pvalue, nan_ok=True
    )
    if len(x) > 2:
        slow = float(np.nan_to_num(stats.mstats.mjci(x - np.median(x), prob=[0.5])[0])) ** 2
        assert s._median_variance(x) == pytest.approx(slow, rel=1e-6, abs=1e-9 * max(1.0, float(np.var(x))))


def test_pairs_are_told_apart_by_welchs_test_adjusted_over_all():
    rng = np.random.default_rng(5)
    samples = [rng.normal(rng.normal(0, 1), rng.uniform(0.1, 2), rng.integers(2, 7)) for _ in range(6)]
    found = s._adjusted_welch_p([s.replicate_interval(each) for each in samples])
    a, b = np.triu_indices(6, 1)
    slow = [stats.ttest_ind(samples[i], samples[j], equal_var=False).pvalue for i, j in zip(a, b)]
    np.testing.assert_allclose(found[a, b], stats.false_discovery_control(slow), rtol=1e-9)


def test_the_bold_marks_of_rows_that_change_nothing_are_as_rare_as_they_say():
    """Of sets of processes, each with a layout of its own that favours one side by some per cent, 6 % of intervals or
    fewer exclude 1, on boards of forty rows with two or three sets each. Were it one layout for all sets of a row, many
    would."""
    rng = np.random.default_rng(11)
    alarms = {False: 0, True: 0}
    boards, rows = 60, 40
    for shared in alarms:
        for _ in range(boards):
            layout = 0.03 * rng.standard_normal((rows, 3))
            layout = layout[:, :1].repeat(3, axis=1) if shared else layout
            sets = layout + 0.01 * rng.standard_normal((rows, 3))
            known = [each[: 2 + number % 2] for number, each in enumerate(sets)]
            prior = s.pooled_variance(known)
            alarms[shared] += sum(not s.moderated_interval(each, prior).contains(0.0) for each in known)
    rates = {shared: count / (boards * rows) for shared, count in alarms.items()}
    assert rates[False] <= 0.06 and rates[True] > 0.2, rates
