"""Checks what a recorded step shows of divide and conquer: runs of blocks by the recurrences; and a loop of unknown
length, reversed operator by operator."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cache

import torch
from torch import Tensor

from suite.chain.schedule import TURN, Op, Schedule, tidied
from suite.reading.judged import judged
from suite.reading.recording import Recording
from techniques.rematerialization.ckpt_siskind_dnc import program
from techniques.rematerialization.ckpt_siskind_dnc.technique import DivideAndConquer
from techniques.shared.persistent_probes import (
    beside_rivals,
    binomial_extra,
    equal_chain,
    kept_at_turn,
    most_graphs,
)
from techniques.shared.recomputation_probes import order_of, scheduled_probes

BLOCKS = 16
OPERATORS = 64
LEAST_BYTES = 8  # for one capsule, the chain's input: another block's input and graph, and two gradients


@judged("changed", "The step's gradients are those of a plain pass, to the bit", "throughout", id="same_gradients")
@judged(
    "changed_with_dropout",
    "Dropout leaves out the same values when a block runs again",
    "throughout",
    id="same_dropout",
    note="half of the values are dropped out in one more pass, since the small sizes drop none",
)
@judged("runs_beside_plan", "Every block runs as often as the schedule says", "throughout", id="runs_as_planned")
@judged(
    "forwards_beside_formula",
    "n blocks are run n + E(n) times, E(n) = n / 2 + 2 E(n / 2), 0 where it ends",
    "Section 2, bisection",
    id="bisection_runs",
    note="counted in the recorded step; halves are rounded",
)
@judged(
    "time_over_best",
    "It ends as early as the budget allows",
    "Section 2, termination criteria",
    id="fastest_bisection",
    equals=1.0,
    tolerance=1e-9,
    note="beside all bisections of the model's chains and of 16 equal blocks, at every budget",
)
@judged(
    "plan_over_budget",
    "The schedule for any budget needs no more than it",
    "Section 2, termination criteria",
    id="plans_within_every_budget",
    at_most=1.0,
)
@judged(
    "capsules_over_log",
    "Bisection down to one step has at most log2(n) capsules at once",
    "Section 2, bisection",
    id="logarithmic_capsules",
    equals=1.0,
    note="16 equal blocks",
)
@judged(
    "binomial_beside_formula",
    "The binomial split runs n steps with s capsules n + t(n, s) times",
    "Section 2, binomial checkpointing",
    id="binomial_runs",
    note="16 equal blocks with any number of capsules",
)
@judged(
    "loop_changed",
    "Works for programs with loops and branches that depend on values, with no annotation",
    "Title; abstract",
    id="any_program",
    note="gradients to the bit",
)
@judged(
    "operators_over_formula",
    "T steps run T / 2 log2(T) more times",
    "Section 2, bisection",
    id="operators_run_again",
    equals=1.0,
    note="a loop of 64 operators, the counting run and the tapes included",
)
@judged(
    "operator_capsules_over_log",
    "T steps have log2(T) capsules at once, beside the first",
    "Section 2, bisection",
    id="logarithmic_operator_capsules",
    equals=1.0,
    note="a loop of 64 operators",
)
@judged(
    "peak_over_budget", "The peak of a pass is within the memory limit", id="within_budget", at_most=1.0, kind="counted"
)
@judged("peak_over_predicted", "The memory model predicts the peak", id="predicted_peak", equals=1.0, kind="counted")
def probes(recording: Recording, own: DivideAndConquer) -> Mapping[str, float]:
    """Includes those of all that plan. Runs that are more or fewer than a formula's are counted,
    ``binomial_beside_formula`` over all numbers of capsules; capsules are those at the turn."""
    run, schedules, equal = recording.run, own.plan(recording.run).schedules, equal_chain(BLOCKS)
    orders = [order_of(stack, recording.trace.ran) for stack in run.anatomy.stacks]
    beside = [
        beside_rivals(lambda chain, budget: own.solve(chain, budget, None), chain, bisections(chain.depth))
        for chain in [*own.chains, equal]
    ]
    by_two, binomial = replace(own, split="bisection"), replace(own, split="binomial")
    numbers = range(1, BLOCKS)
    operator_runs, alive = _loop_of_known_length()
    return scheduled_probes(recording, own) | {
        "forwards_beside_formula": sum(
            abs(len(order) - schedule.depth - bisection_extra(schedule.depth, most_graphs(schedule)))
            for order, schedule in zip(orders, schedules, strict=True)
        ),
        "time_over_best": max(time for time, _ in beside),
        "plan_over_budget": max(peak for _, peak in beside),
        "capsules_over_log": kept_at_turn(by_two.solve(equal, LEAST_BYTES + 3, None)) / math.log2(BLOCKS),
        "binomial_beside_formula": sum(
            abs(
                binomial.solve(equal, LEAST_BYTES - 1 + capsules, None).extra_forwards
                - binomial_extra(BLOCKS, capsules)
            )
            for capsules in numbers
        ),
        "loop_changed": _loop_of_unknown_length(),
        "operators_over_formula": operator_runs / (2 * OPERATORS + OPERATORS // 2 * math.log2(OPERATORS)),
        "operator_capsules_over_log": alive / (math.log2(OPERATORS) + 1),
    }


@cache
def bisection_extra(steps: int, base: int) -> int:
    """Computes E(n) = floor(n / 2) + E(ceil(n / 2)) + E(floor(n / 2)), 0 up to ``base``."""
    if steps <= base:
        return 0
    half = steps // 2
    return half + bisection_extra(steps - half, base) + bisection_extra(half, base)


def bisections(depth: int) -> list[Schedule]:
    """Returns one schedule for each number of blocks at which it ends."""

    def over(first: int, steps: int, base: int) -> list[Op]:
        if steps <= base:
            blocks = range(first, first + steps)
            return [*(Op("save", i) for i in blocks), *(Op("back", i) for i in reversed(blocks))]
        half = steps // 2
        there = [Op("run", first + i) for i in range(half)]
        return [*there, *over(first + half, steps - half, base), *over(first, half, base)]

    overheads = [over(0, depth, base) for base in range(1, depth + 1)]
    for ops in overheads:
        ops.insert(ops.index(Op("back", depth - 1)), TURN)
    return [tidied(depth, ops) for ops in overheads]


def _loop_of_unknown_length() -> int:
    """Counts values of the gradients that differ."""

    def f(x: Tensor, weight: Tensor) -> Tensor:
        while x.norm() > 1:
            y = torch.tanh(x @ weight)
            x = 0.8 * x + 0.1 * y if y.sum() > 0 else 0.7 * x * torch.sigmoid(y)
        return (x * weight.softmax(-1)).sum()

    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(4, 4, generator=generator) * scale for scale in (5.0, 1.0)]
    leaves = [operand.clone().requires_grad_() for operand in inputs]
    plain = torch.autograd.grad(f(*leaves), leaves)
    _, ours = program.gradients(f, inputs)
    pairs = zip(ours, plain, strict=True)
    return sum(schedule.numel() if own is None else int((own != schedule).sum()) for own, schedule in pairs)


def _loop_of_known_length() -> tuple[int, int]:
    """Counts the operators that run in all, and the most capsules at once."""

    def f(x: Tensor) -> Tensor:
        for _ in range(OPERATORS):
            x = x.sin()
        return x

    x = torch.ones(())
    notes = program.Program(f, x)
    program.reverse(notes, notes.begun(x), OPERATORS, {notes.output: x}, 1, program.bisection, OPERATORS)
    return notes.operator_runs, notes.most_alive
