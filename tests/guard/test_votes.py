"""The rule of the speed gate: exact error rates, what it sees, and what it says of the noise at hand."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from suite.guard.votes import (
    FALSE_ALARMS,
    MISSES,
    MOST_SETS,
    OF_THE_MEAN,
    Rule,
    chances,
    errors,
    sets_needed,
    threshold_for,
)
from tests.numbers.gate import MOST, replayed, smallest_visible

RULE = Rule()
HALF = math.log1p(0.10) / 2


@pytest.mark.parametrize("vote", [0.1, 0.3, 0.5])
def test_the_exact_chances_are_those_of_playing_it(vote: float) -> None:
    """An independent account of the same rule: the sets one after the other, a look after each."""
    rng = np.random.default_rng(0)
    ends = {"slower": 0, "not slower": 0, "cannot tell": 0}
    for votes in rng.random((100, 20)) < vote:
        d = np.where(votes, 1.0, -1.0)
        outcome = next((said for n in range(1, 21) if (said := RULE.outcome(d[:n])) != "cannot tell"), "cannot tell")
        ends[outcome] += 1
    exact = chances(vote, RULE, 20)
    for name, chance in (
        ("slower", exact.slower),
        ("not slower", exact.not_slower),
        ("cannot tell", exact.cannot_tell),
    ):
        assert abs(ends[name] / 100 - chance) < 4 * math.sqrt(max(chance * (1 - chance), 0.001) / 100), name


def test_no_noise_errs_more_often_than_the_rule_says() -> None:
    """The worst case: so much noise that votes are fair coins, and as many sets as anyone would wait for."""
    worst = chances(0.5, RULE, 160)
    assert worst.slower <= FALSE_ALARMS and worst.not_slower <= MISSES


def test_so_few_sets_decide_where_it_is_quiet() -> None:
    def first(d: float) -> tuple[int, str]:
        n = next(n for n in range(1, 99) if RULE.outcome([d] * n) != "cannot tell")
        return n, RULE.outcome([d] * n)

    assert first(math.log(1.10)) == (7, "slower") == first(HALF + 1e-9)
    assert first(0.0) == (6, "not slower") == first(HALF - 1e-9) == first(-1.0)
    assert RULE.outcome([]) == "cannot tell"


def test_a_rate_that_items_share_asks_for_more_sets() -> None:
    assert Rule(false_alarms=FALSE_ALARMS / 50).outcome([1.0] * 7) == "cannot tell"
    assert Rule(false_alarms=FALSE_ALARMS / 50).outcome([1.0] * 13) == "slower"


def test_the_rates_in_a_runs_own_noise_are_those_of_its_pairs() -> None:
    """Of pairs that are far from each other in a third of the cases, a sixth of the votes is wrong either way."""
    far = 2 * HALF / OF_THE_MEAN
    said = errors([far, 0.0, 0.0, -far, 0.0, 0.0], RULE, 40)
    assert said.alarms == chances(1 / 6, RULE, 40).slower
    assert said.caught == chances(5 / 6, RULE, 40).slower > 0.9
    assert said.alarms < said.most_alarms < FALSE_ALARMS and said.least_caught < said.caught
    quiet = errors([0.001] * 8, RULE, 40)
    assert quiet.alarms == 0.0 < quiet.most_alarms and quiet.caught > 0.999


def test_what_would_be_needed_grows_with_the_noise() -> None:
    rng = np.random.default_rng(1)
    needed = [sets_needed(spread * rng.standard_normal(40), RULE) for spread in (0.01, 0.04, 0.06)]
    assert needed == sorted(needed, key=lambda n: n or math.inf) and needed[0] == 6
    assert sets_needed(0.5 * rng.standard_normal(40), RULE) is None
    noise = 0.3 * rng.standard_normal(40)
    threshold = threshold_for(noise, RULE, 24)
    assert threshold is not None and threshold > 0.10
    assert chances(errors_of(noise, threshold), RULE, 24).cannot_tell < 0.10
    assert threshold_for(noise, RULE, 3) is None, "three sets decide nothing"


def errors_of(noise: np.ndarray, slower: float) -> float:
    """How often noise gives a wrong vote."""
    return float((np.abs(noise) * OF_THE_MEAN > math.log1p(slower) / 2).mean() / 2)


RECORDED = Path(__file__).with_name("noise.json")
"""Log ratios of the sets of each run, as ``python -m tests.numbers.gate --noise`` wrote them on two cores that others
kept busy at times: of unchanged code, and of a step with a busy loop of a tenth of it."""


def recorded_runs() -> tuple[list[list[float]], list[list[float]]]:
    """The sets of runs of unchanged code, and of slower code."""
    recorded = json.loads(RECORDED.read_text("utf-8"))
    return recorded["unchanged"], recorded["slower"]


def test_the_page_says_how_recorded_checks_ended() -> None:
    unchanged, slower = ([RULE.outcome(run) for run in runs] for runs in recorded_runs())
    assert len(unchanged) >= 50 and unchanged.count("slower") <= len(unchanged) * FALSE_ALARMS
    assert len(slower) >= 20 and slower.count("slower") >= len(slower) * (1 - MISSES)
    page = " ".join((Path(__file__).parents[2] / "docs" / "action.md").read_text("utf-8").split())
    assert (
        f"{unchanged.count('slower')} of {len(unchanged)} checks of unchanged code raised an alarm, and "
        f"{slower.count('slower')} of {len(slower)} saw a step that was slower by a tenth"
    ) in page


def test_the_page_says_the_smallest_slow_down_that_the_rule_sees_in_recorded_noise() -> None:
    """Exact chances, beside the rule played."""
    unchanged = [d for run in recorded_runs()[0] for d in run]
    smallest = {most: smallest_visible(unchanged, most) for most in (20, MOST, MOST_SETS)}
    seen = replayed(unchanged, Rule(smallest[MOST] / 100), slower=smallest[MOST] / 100, runs=60)["slower"]
    assert seen >= 60 * (1 - MISSES) - 3 * math.sqrt(60 * MISSES * (1 - MISSES))
    page = " ".join((Path(__file__).parents[2] / "docs" / "action.md").read_text("utf-8").split())
    told = ", ".join(f"of {percent} % within {most} sets" for most, percent in smallest.items())
    assert f"slow-downs {told}" in page


def test_in_recorded_noise_a_tenth_is_caught_and_unchanged_code_is_not() -> None:
    """Runs whose sets are drawn from what real processes showed: 19 of 20, and at most 1 in 50."""
    unchanged_sets, slower_sets = ([d for run in runs for d in run] for runs in recorded_runs())
    unchanged = replayed(unchanged_sets, RULE)
    assert unchanged["slower"] <= 200 * FALSE_ALARMS
    for slower in (
        replayed(slower_sets, RULE),
        replayed(unchanged_sets, RULE, slower=0.1),
    ):
        assert slower["slower"] >= 200 * (1 - MISSES)
