"""Checkmate's program against every schedule of short chains; its bound, its rounding and its limits on long ones."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suite.chain.chain import Chain, Stage
from suite.chain.exhaustive import fastest
from suite.chain.plan import Infeasible, least, unplanned
from suite.chain.simulate import predicted
from suite.contract.run import Run
from techniques.rematerialization.checkmate_milp.program import Program
from techniques.rematerialization.checkmate_milp.solver import Solution, checkpoints, optimum, rounded
from techniques.rematerialization.checkmate_milp.technique import CheckmateMILP
from tests.chain.chains import chains
from tests.runs import new_run

ROUNDING_S = 1e-6


def alike(depth: int) -> Chain:
    """Equal blocks, whose graphs outweigh their activations six times."""
    return Chain((Stage(1.0, 1.0, 2.0, 10, (20, 40), 30, 80, 40, gradient_bytes=5),) * depth, 10, turn_s=1.0)


def share(chain: Chain, of_the_way: float) -> int:
    low, high = least([chain]).peak_bytes, unplanned([chain]).peak_bytes
    return low + int(of_the_way * (high - low))


def seconds(solution: Solution | None) -> float:
    return math.inf if solution is None else solution.time_s


def attempt(chain: Chain, budget_bytes: int) -> tuple[Solution | None, Solution | None]:
    """The optimum and the rounded schedule, where there are some."""
    solutions: list[Solution | None] = []
    for solve in (optimum, rounded):
        try:
            solutions.append(solve(chain, budget_bytes))
        except Infeasible:
            solutions.append(None)
    return solutions[0], solutions[1]


@settings(max_examples=80, deadline=None)
@given(chains(most=4, any_ends=True), st.floats(-0.2, 1.1))
def test_no_schedule_at_all_is_faster(chain: Chain, of_the_way: float) -> None:
    budget_bytes = share(chain, of_the_way)
    best, rounding = attempt(chain, budget_bytes)
    assert seconds(best) == pytest.approx(fastest(chain, budget_bytes))
    for each in (best, rounding):
        if each is not None:
            assert predicted(each.schedule, chain).peak_bytes <= budget_bytes
            assert predicted(each.schedule, chain).time_s == each.time_s
    relaxed_s = Program(chain).solved(budget_bytes, whole=False).bound_s
    assert relaxed_s - ROUNDING_S <= seconds(best) <= seconds(rounding)
    if best is not None:
        assert best.bound_s <= best.time_s + ROUNDING_S  # of the programme's memory model, which may allow more


@pytest.mark.parametrize("of_the_way", [0.1, 0.4, 0.8])
def test_twelve_blocks_are_planned_no_slower_than_by_checkpoints(of_the_way: float) -> None:
    chain = alike(12)
    budget_bytes = share(chain, of_the_way)
    best, rounding = attempt(chain, budget_bytes)
    fitting = [
        cost.time_s for cost in (predicted(each, chain) for each in checkpoints(12)) if cost.peak_bytes <= budget_bytes
    ]
    relaxed_s = Program(chain).solved(budget_bytes, whole=False).bound_s
    assert best is not None
    assert relaxed_s - ROUNDING_S <= best.bound_s <= best.time_s <= min(fitting)
    assert best.time_s <= seconds(rounding)


def test_where_time_is_up_the_best_known_schedule_comes_with_a_bound() -> None:
    chain = alike(16)
    budget_bytes = share(chain, 0.2)
    hasty, whole = optimum(chain, budget_bytes, limit_s=1e-3), optimum(chain, budget_bytes)
    assert hasty.bound_s <= whole.time_s <= hasty.time_s
    assert predicted(hasty.schedule, chain).peak_bytes <= budget_bytes


def test_a_budget_below_all_schedules_names_the_least() -> None:
    chain = alike(4)
    with pytest.raises(Infeasible, match="raise the budget") as error:
        optimum(chain, 10)
    assert predicted(optimum(chain, error.value.least_bytes).schedule, chain).peak_bytes <= error.value.least_bytes


def test_what_cannot_be_planned_is_refused() -> None:
    with pytest.raises(ValueError, match="milp or rounding"):
        CheckmateMILP(method="greedy")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="above 0 seconds"):
        CheckmateMILP(limit_s=0)
    with pytest.raises(ValueError, match="share of the way"):
        CheckmateMILP(budget=1.5)


def trained(technique: str) -> Run:
    run = new_run("gpt", technique, size="nano", steps=2)
    run.train(2)
    return run


def test_both_ways_train_to_the_same_weights_with_less_memory() -> None:
    plain = trained("baseline")
    for technique in ("checkmate_milp:budget=0.3", "checkmate_milp:method=rounding,budget=0.6"):
        run = trained(technique)
        assert all(
            mine.equal(other) for mine, other in zip(run.model.parameters(), plain.model.parameters(), strict=True)
        )
        assert run.count_step().peak_tensor_bytes < plain.count_step().peak_tensor_bytes
