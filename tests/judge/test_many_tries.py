"""Many tries: the levels never spend more than there is, e-values mean 1 where nothing changed, and power is left."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from suite.guard.votes import MISSES, Rule, chances
from suite.judge.many_tries import _log_ratios, level_of, log_e_value, share


def test_the_shares_of_all_tries_sum_to_no_more_than_one() -> None:
    few = sum(share(number) for number in range(1, 100_001))
    rest = 1 / (2.1097428012368919 * math.log(100_000))  # the integral that bounds what follows
    assert few < 1 and few + rest == pytest.approx(1, abs=1e-4)
    with pytest.raises(ValueError, match="numbered from 1"):
        share(0)


@pytest.mark.parametrize("dof", [1, 4, 30])
def test_the_likelihood_ratio_is_that_of_the_noncentral_t(dof: int) -> None:
    at = np.array([0.5, 1.7, 4.0])
    for t in (-1.2, 0.0, 0.8, 3.5):
        theirs = stats.nct.logpdf(t, dof, at) - stats.t.logpdf(t, dof)
        assert _log_ratios(t, dof, at) == pytest.approx(theirs, abs=2e-4)


def test_e_values_of_no_gain_have_a_mean_of_at_most_one() -> None:
    random = np.random.default_rng(3)
    for n, mean in ((3, 0.0), (8, -0.3)):
        values = np.array([math.exp(log_e_value(x)) for x in random.normal(mean, 1, (150, n))])
        assert values.mean() < 1 + 3 * values.std() / math.sqrt(len(values))
        assert (values >= 20).mean() <= 0.05


def test_a_real_gain_is_seen_and_what_never_scatters_is_sure() -> None:
    random = np.random.default_rng(4)
    assert np.median([log_e_value(random.normal(3, 1, 14)) for _ in range(20)]) > math.log(1 / level_of(10, 0))
    assert log_e_value([0.1]) == 0.0 and log_e_value([0.0, 0.0]) == 0.0
    assert log_e_value([0.1] * 3) == pytest.approx(log_e_value([0.1, 0.1, 0.1 + 1e-9]), abs=1e-3)
    with pytest.raises(ValueError, match="not a finite number"):
        log_e_value([math.nan, 1.0])


def test_false_keeps_stay_below_a_twentieth_over_700_tries_of_unchanged_code() -> None:
    """Exactly, over all orders of votes, in the worst noise there is: a coin's."""
    for number in (1, 50, 700):
        rule = Rule(0.05, level_of(number, 0), MISSES)
        assert chances(0.5, rule, 160).slower <= rule.false_alarms
    assert sum(level_of(number, 0) for number in range(1, 701)) <= 0.05


def test_a_step_faster_by_a_twentieth_is_kept_at_the_fiftieth_try_on_a_quiet_machine() -> None:
    rule = Rule(0.05, level_of(50, 0), MISSES)
    vote = float(stats.norm.cdf(rule.half / 0.015))  # sets of processes that scatter by 1.5 %
    assert chances(vote, rule, 40).slower >= 0.8
