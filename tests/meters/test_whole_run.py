"""FLOPs of whole runs against the sum over all their steps."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses import FakeTensorMode

from suite.meters.flops import FlopCounter
from suite.meters.whole_run import STRATUM, FlopTally
from tests.runs import new_run


def summed(technique: str, steps: int) -> tuple[int, list[float]]:
    """Of the steps of a run, one by one, and their losses."""
    run, total, losses = new_run("gpt", technique, size="pico", steps=steps), 0, []
    for _ in range(steps):
        with FlopCounter() as counter:
            losses += run.train(1)
        total += counter.total
    return total, losses


# The cost of a step: constant; of several sizes on the way; constant, of two passes.
@pytest.mark.parametrize(
    ("technique", "steps", "within"), [("baseline", 45, 0.0), ("progressive_stacking", 205, 0.02), ("sam", 45, 0.0)]
)
def test_a_tally_is_near_the_sum_and_changes_no_bit(technique: str, steps: int, within: float) -> None:
    total, losses = summed(technique, steps)
    run, tally = new_run("gpt", technique, size="pico", steps=steps), FlopTally(0)
    assert tally.train(run.train, 20) + tally.train(run.train, steps - 20) == losses
    assert tally.total == pytest.approx(total, rel=within, abs=0)


def test_on_average_over_draws_a_tally_is_the_sum() -> None:
    """Of steps whose cost grows, every one another."""

    def train(steps: int) -> list[float]:
        for _ in range(steps):
            grown.append(torch.ones(1, 1 + len(grown)) @ torch.ones(1 + len(grown), 1))
        return [0.0] * steps

    totals = []
    for seed in range(200):
        grown: list[torch.Tensor] = []
        tally = FlopTally(seed)
        tally.train(train, 5 * STRATUM + 3)
        totals.append(tally.total)
    steps = 5 * STRATUM + 3
    assert sum(totals) / len(totals) == pytest.approx(steps * (steps + 1), rel=0.01)
    assert len(set(totals)) > 1


def test_what_has_no_values_is_not_counted() -> None:
    tally = FlopTally(0)
    with tally.counting(), FakeTensorMode():
        _ = torch.ones(2, 3) @ torch.ones(3, 4)
    with tally.counting():
        _ = torch.ones(2, 3, device="meta") @ torch.ones(3, 4, device="meta")
    assert tally.total == 0
    with tally.counting(times=2):
        _ = torch.ones(2, 3) @ torch.ones(3, 4)
    assert tally.total == 96


def test_what_ends_in_an_error_was_computed_all_the_same() -> None:
    tally = FlopTally(0)
    with pytest.raises(RuntimeError, match="planted"), tally.counting():
        _ = torch.ones(2, 3) @ torch.ones(3, 4)
        raise RuntimeError("planted")
    assert tally.total == 48


def test_operators_without_a_formula_are_named() -> None:
    tally = FlopTally(0)
    with tally.counting():
        _ = torch.cdist(torch.ones(2, 3), torch.ones(4, 3))
    assert tally.total == 0 and tally.uncounted == {"aten._cdist_forward": 1}
