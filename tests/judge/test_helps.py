"""The rule by which a technique is said to help: what it sells, against its price in quality."""

from __future__ import annotations

import math

import pytest

from suite.judge.helps import Gain, gain_of, helps, mean_gain, withheld
from suite.judge.metrics import MetricValue
from suite.judge.rows import pairs
from tests.factories import evidence, installed, records, row

MORE, LESS, SAME = Gain(1.1, 1.3, 1.2), Gain(0.7, 0.9, 0.8), Gain(0.95, 1.08, 1.01)
WIDE, UNKNOWN = Gain(0.6, 1.5, 1.0), Gain(why="nobody measured it")


@pytest.mark.parametrize(
    ("sold", "quality", "said"),
    [
        (UNKNOWN, MORE, "not known: nobody measured it"),
        (LESS, MORE, "costs"),
        (SAME, LESS, "costs"),
        (SAME, SAME, "no difference (±8 %)"),
        (SAME, UNKNOWN, "no difference (±8 %)"),
        (WIDE, SAME, "not known: within ±50 %"),
        (MORE, UNKNOWN, "not known: nobody measured it"),
        (MORE, LESS, "costs"),
        (MORE, SAME, "helps"),
        (MORE, MORE, "helps"),
    ],
)
def test_every_line_of_the_rule(sold: Gain, quality: Gain, said: str) -> None:
    assert str(helps(sold, quality)) == said


@pytest.mark.parametrize(("ratio", "sure"), [(0.94, 1), (0.97, 0), (1.0, 0), (1.04, 0), (1.06, -1)])
def test_an_exact_gain_is_sure_from_five_percent_on(ratio: float, sure: int) -> None:
    assert gain_of(MetricValue("exact", ratio)).sure == sure


def test_a_bound_is_sure_on_its_own_side_and_a_diverged_run_is_the_worst_there_is() -> None:
    assert gain_of(MetricValue("bound", 3.0)).sure == -1, "it costs at least three times as much"
    assert gain_of(MetricValue("bound", 0.5, at_most=True)).sure == 1
    assert str(helps(gain_of(MetricValue("missed")), gain_of(MetricValue("missed")))) == "costs"


def test_chance_between_two_that_do_the_same_is_no_verdict() -> None:
    assert str(helps(Gain(1.1, 1.2, 1.15, control=True), SAME)) == "no difference (the same)"


def test_the_mean_over_baselines_is_geometric_and_narrower() -> None:
    mean = mean_gain([Gain(0.9, 1.2, math.sqrt(0.9 * 1.2)), Gain(1.8, 2.4, math.sqrt(1.8 * 2.4)), UNKNOWN])
    assert mean.number == pytest.approx(math.sqrt(2) * math.sqrt(0.9 * 1.2))
    assert math.log(mean.high / mean.low) == pytest.approx(math.log(1.2 / 0.9) / math.sqrt(2))
    assert mean_gain([UNKNOWN]).why == "nobody measured it" and not mean_gain([]).known
    assert mean_gain([MORE, Gain(0.0, 0.5)]).high == pytest.approx(math.sqrt(1.3 * 0.5))
    assert mean_gain([MORE, Gain(0.0, 0.0, 0.0)]).sure == -1
    assert not mean_gain([Gain(0.0, 0.5), Gain(2.0, math.inf)]).known


def test_what_was_not_tuned_or_never_acted_is_withheld() -> None:
    assert withheld(row("x")) == ""
    (untuned,) = pairs(records(evidence("x")), lambda stack: "baseline", installed, tuned=lambda stack: True)
    assert withheld(untuned) == "learning rates were not tuned"
    lines = evidence("x", probes={"x.share": 0.0})
    (idle,) = pairs(records(lines), lambda stack: "baseline", installed, active=lambda stack: ("x.share",))
    assert withheld(idle) == "not exercised"
