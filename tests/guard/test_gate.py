"""The timing gate's decisions by simulation: how often wrong, and what they see; and its rounds, with stub sides."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest

from suite.guard.gate import ROUNDS, GateFailed, decide, finding, gate
from suite.measure.contenders.child import ContenderFailed
from suite.record.job import Job, Setting

JOB = Job(setting=Setting(baseline="gpt"))


def verdict_of(d: np.ndarray, margin: float) -> str:
    """The gate on a stream of pairs: a look after each, until it decides or they end."""
    for n in range(1, len(d) + 1):
        decision = decide(d[:n], margin=margin, last=n == len(d))
        if decision.verdict != "inconclusive":
            break
    return decision.verdict


def verdicts(effect: float, noise: float, gates: int, margin: float = 0.03, pairs: int = 24) -> list[str]:
    """Heavy-tailed noise (Student's t with 3 degrees of freedom), as process pairs have."""
    rng = np.random.default_rng([round(1000 * abs(effect)), round(1000 * noise), round(1000 * margin)])
    d = math.log1p(effect) + noise / math.sqrt(3) * rng.standard_t(3, (gates, pairs))
    return [verdict_of(row, margin) for row in d]


def test_false_alarms_are_within_alpha_even_where_the_margin_is_just_reached() -> None:
    """At a slow-down of exactly the margin the signs are fair coins: the worst case of the null."""
    alarms = verdicts(0.03, 0.02, 100).count("regressed")
    assert alarms <= 9  # P(Binomial(100, 0.05) > 9) = 0.03


@pytest.mark.parametrize("noise", [0.01, 0.05])
def test_unchanged_code_raises_hardly_an_alarm(noise: float) -> None:
    assert verdicts(0.0, noise, 50).count("regressed") <= 1


def test_a_slow_down_of_a_tenth_is_caught() -> None:
    assert verdicts(0.10, 0.03, 60).count("regressed") >= 57


def test_quiet_pairs_are_decided_early_in_every_direction() -> None:
    assert set(verdicts(0.0, 0.003, 20, pairs=10)) == {"equivalent"}
    assert set(verdicts(0.10, 0.003, 20, pairs=8)) == {"regressed"}
    assert set(verdicts(-0.10, 0.003, 20, pairs=8)) == {"improved"}


def test_a_small_gain_is_no_regression_within_what_the_interval_spans() -> None:
    d = [
        -math.log(1.03) + 0.001 * (-1) ** n for n in range(24)
    ]  # half of them beyond the margin: neither equal nor faster
    decision = decide(d, last=True)
    assert decision.verdict == "equivalent"
    assert decision.within is not None and decision.within > 0.03
    assert decide(d[:10]).verdict == "inconclusive"


class Stub:
    """A side whose steps take ``pace_s`` on a machine whose speed drifts with every block."""

    blocks = 0

    def __init__(self, pace_s: float, fails: str = "") -> None:
        self.pace_s, self.fails, self.alive = pace_s, fails, True
        self.log: list[str] = []

    def ask(self, command: str, **arguments: Any) -> Any:
        self.log.append(command if command != "start" else f"start {arguments['job']['seed']}")
        if command == self.fails:
            raise ContenderFailed("crashed", "planted")
        if command == "start":
            return {"steps": arguments["job"]["setting"]["steps"]}
        if command == "block":
            Stub.blocks += 1
            return arguments["steps"] * self.pace_s * (1 + arguments["slower"]) * math.exp(0.01 * Stub.blocks)
        return None


def timed(old: Stub, new: Stub, **options: Any) -> Any:
    return gate(old, new, JOB, coin=random.Random(0), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("pace_s", "slower", "verdict"),
    [(1.0, 0.0, "equivalent"), (1.1, 0.0, "regressed"), (1.0, 0.1, "regressed"), (0.9, 0.0, "improved")],
)
def test_drift_cancels_and_a_planted_share_counts(pace_s: float, slower: float, verdict: str) -> None:
    old, new = Stub(1.0), Stub(pace_s)
    timing = timed(old, new, slower=slower)
    assert timing.decision.verdict == verdict
    assert np.allclose(timing.pairs, math.log(pace_s * (1 + slower)))
    assert [each for each in old.log if each.startswith("start")] == [f"start {n}" for n in range(len(timing.pairs))]
    assert old.log.count("close") == len(timing.pairs)
    assert old.log.count("block") == 2 * (ROUNDS + 1) * len(timing.pairs)  # a round warms up
    assert "smallest effect" in finding(JOB, timing, 0.03).why


def test_a_failure_names_its_side_and_closes_both() -> None:
    old, new = Stub(1.0), Stub(1.0, fails="block")
    with pytest.raises(GateFailed) as caught:
        timed(old, new)
    assert caught.value.side == "new"
    assert old.log[-1] == new.log[-1] == "close"


def test_a_spent_budget_is_no_verdict() -> None:
    timing = timed(Stub(1.0), Stub(1.0), budget_s=-1.0)
    assert finding(JOB, timing, 0.03).verdict == "inconclusive"
