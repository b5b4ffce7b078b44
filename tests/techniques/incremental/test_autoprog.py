"""AutoProg: what a search chooses at its edges, a run that is resumed, and who changes the depth."""

import math
from pathlib import Path

import pytest

from suite.loop.run import Run
from suite.loop.stack import Stack
from techniques.incremental.autoprog.growth import best, block_cost
from techniques.incremental.autoprog.technique import AutoProg
from tests.runs import new_run


def running(technique: AutoProg, steps: int = 16) -> Run:
    return new_run("vit", Stack({"autoprog": technique}), size="nano", recipe="classic", steps=steps)


def smallest(technique: AutoProg) -> AutoProg:
    """All candidates are as good: the first is taken."""
    technique.judged = lambda run: ([1.0] * len(technique.candidates), [1.0] * len(technique.candidates))  # type: ignore[method-assign]
    return technique


def test_the_best_lies_farthest_below_the_power_law():
    costs = [1.0, 2.0, 4.0, 8.0]
    law = [3 * cost**-0.25 for cost in costs]
    assert best([law[0], law[1], 0.98 * law[2], law[3]], costs) == 2
    assert best([3.0, 2.9, 3.1, 3.2], costs) == 1  # where cost brings nothing, the least loss
    assert best([1.0, 1.0], [1.0, 1.0]) == 0
    assert best([0.0, 1.0], [1.0, 2.0]) == 0
    assert best([math.nan, 1.0], [1.0, 2.0]) == 0


def test_of_two_candidates_on_their_line_the_smaller_is_taken():
    assert best([3.0, 0.25], [1.0, 1.7]) == best([3.0, 0.25], [0.5, 0.85]) == 0


def test_a_blocks_cost_is_that_of_its_products():
    run = new_run("vit", size="nano", recipe="classic", steps=2)
    d, tokens = 96, 16
    assert block_cost(run.anatomy.blocks[0], tokens) == 12 * d * d * tokens + 2 * tokens**2 * d


@pytest.mark.parametrize("saved_at", [1, 9])
def test_a_resumed_run_is_where_it_was(tmp_path: Path, saved_at: int):
    whole = running(smallest(AutoProg()))
    whole.train(saved_at)
    whole.save(tmp_path / "state")
    losses = whole.train(6)
    resumed = running(smallest(AutoProg()))
    resumed.load(tmp_path / "state")
    assert resumed.train(6) == losses


def test_one_technique_alone_changes_the_depth():
    run = new_run("vit", "autoprog+progressive_stacking", size="nano", recipe="classic", steps=8)
    with pytest.raises(ValueError, match="both change the depth"):
        run.train(8)
