"""Checkmate's program against every schedule of short chains; its bound, its rounding and its limits on long ones."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from suite.chain.chain import Chain, Stage
from suite.chain.exhaustive import fastest
from suite.chain.plan import Infeasible, least, unplanned
from suite.chain.schedule import Schedule, plain
from suite.chain.simulate import predicted
from techniques.rematerialization.checkmate_milp.program import Program
from techniques.rematerialization.checkmate_milp.solver import Solution, checkpoints, optimum, rounded
from tests.chain.chains import chains
from tests.chain.schedules import schedules
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


@settings(max_examples=30, deadline=None)
@given(chains(most=4, any_ends=True), st.floats(-0.2, 1.1))
def test_no_schedule_at_all_is_faster(chain: Chain, of_the_way: float) -> None:
    budget_bytes = share(chain, of_the_way)
    best, rounding = attempt(chain, budget_bytes)
    assert seconds(best) == pytest.approx(fastest(chain, budget_bytes))
    assert best is None or best.proven
    for each in (best, rounding):
        if each is not None:
            assert predicted(each.schedule, chain).peak_bytes <= budget_bytes
            assert predicted(each.schedule, chain).time_s == each.time_s
    relaxed_s = Program(chain).solved(budget_bytes, whole=False).bound_s
    assert relaxed_s - ROUNDING_S <= seconds(best) <= seconds(rounding)
    if best is not None:
        assert best.bound_s == pytest.approx(best.time_s, abs=ROUNDING_S)


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_the_programs_bytes_of_any_schedule_are_the_simulations(data: st.DataObject) -> None:
    chain = data.draw(chains(most=6, any_ends=True))
    schedule = data.draw(schedules(chain.depth, moves=False))
    program = Program(chain)
    peak_bytes = program.peak_bytes(choice_of(program, schedule))
    assert max(peak_bytes, chain.outside_bytes) == predicted(schedule, chain).peak_bytes
    assert program.schedule(choice_of(program, schedule)) == schedule


def choice_of(program: Program, schedule: Schedule) -> NDArray[np.bool_]:
    """The variables that are 1: what is there when each stage begins, and what runs in it."""
    choice = np.zeros(program.size, dtype=bool)
    stages = program.chain.stages
    activations, graphs, stage = {0}, set[int](), program.chain.depth - 1

    def begin() -> None:
        held = {block for block in graphs if stages[block].holds_input}
        held |= {block + 1 for block in graphs if stages[block].holds_output}
        choice[[program.kept_x[stage, block] for block in activations | held]] = True
        choice[[program.kept_graph[stage, block] for block in graphs]] = True

    turned = False
    for op in schedule.ops:
        if op.kind == "turn":
            turned = True
            begin()
        elif op.kind == "drop":
            activations.remove(op.block)
        elif op.kind == "back":
            graphs.remove(op.block)
            stage -= 1
            if stage >= 0:
                begin()
        else:
            activations.add(op.block + 1)
            graphs |= {op.block} if op.kind == "save" else set()
            if turned:
                choice[(program.run if op.kind == "run" else program.save)[stage, op.block]] = True
    return choice


def test_a_graph_that_holds_its_output_has_it_beside_the_next_blocks_backward_pass() -> None:
    """Without those bytes the program's choice is over the budget, and of what is left 40 seconds are the least."""
    first = Stage(7, 8, 3, 8, (1, 5), 12, 18, 16, holds_input=False, holds_output=True, gradient_bytes=3)
    second = Stage(6, 7, 8, 4, (10, 16), 5, 39, 17, holds_input=False, gradient_bytes=3)
    best = optimum(Chain((first, second), 4, 11, 2, 1.0, 12, 3), 62)
    assert (best.time_s, best.bound_s, best.proven) == (34, pytest.approx(34), True)


def test_what_is_over_the_budget_by_less_than_the_solver_sees_is_excluded_without_what_fits() -> None:
    chain = alike(4)
    program = Program(chain)
    budget_bytes = predicted(plain(4), chain).peak_bytes - 1
    everything = choice_of(program, plain(4))
    assert program.forbid(everything, budget_bytes)
    excluded = program.solved(10 * budget_bytes)
    assert excluded.values is not None and program.peak_bytes(excluded.values > 0.5) <= budget_bytes
    assert excluded.bound_s == pytest.approx(fastest(chain, budget_bytes))
    assert not program.forbid(excluded.values > 0.5, budget_bytes)


def test_a_byte_less_than_a_schedule_of_a_gigabyte_needs_is_kept_to_and_proven() -> None:
    large = Stage(1.0, 1.0, 2.0, 10**8, (), 4 * 10**8, 9 * 10**8, 5 * 10**8, gradient_bytes=5)
    unlike = [
        replace(large, run_s=1 + n / 7, output_bytes=10**8 + 37 * n, saved_bytes=(3 * 10**8 + 91 * n,))
        for n in range(4)
    ]
    chain = Chain(tuple(unlike), 10**8, turn_s=1.0, turn_peak_bytes=10**7)
    enough = predicted(optimum(chain, share(chain, 0.5)).schedule, chain).peak_bytes
    for budget_bytes in (enough, enough - 1):
        best = optimum(chain, budget_bytes)
        assert best.proven and predicted(best.schedule, chain).peak_bytes <= budget_bytes
        assert best.time_s == pytest.approx(fastest(chain, budget_bytes))


def test_twelve_blocks_are_planned_no_slower_than_by_checkpoints() -> None:
    chain = alike(12)
    budget_bytes = share(chain, 0.4)
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
    assert whole.proven and not hasty.proven
    assert predicted(hasty.schedule, chain).peak_bytes <= budget_bytes


def test_a_budget_below_all_schedules_names_the_least() -> None:
    chain = alike(4)
    with pytest.raises(Infeasible, match="raise the budget") as error:
        optimum(chain, 10)
    assert predicted(optimum(chain, error.value.least_bytes).schedule, chain).peak_bytes <= error.value.least_bytes


def test_rounding_trains_to_the_same_weights() -> None:
    plain, run = (
        new_run("gpt", stack, size="pico", steps=2)
        for stack in ("baseline", "checkmate_milp:method=rounding,budget=0.6")
    )
    assert run.train(2) == plain.train(2)
    assert all(map(torch.equal, run.model.parameters(), plain.model.parameters()))
