"""What a recorded step shows of divide and conquer: runs of blocks by the recurrences; and a loop of unknown length,
reversed operator by operator."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cache

import torch
from torch import Tensor

from suite.chain.schedule import TURN, Op, Schedule, tidied
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


def probes(recording: Recording, own: DivideAndConquer) -> Mapping[str, float]:
    """Those of all that plan; ``forwards_beside_formula``: forward passes in the step, more or fewer than n + E(n) of
    the stacks; ``time_over_best`` and ``plan_over_budget``: beside all bisections, as :func:`beside_rivals`, over the
    model's chains and 16 equal blocks; ``capsules_over_log``: kept at the turn of those 16, over log2(16);
    ``binomial_beside_formula``: runs of the binomial split, summed over all numbers of capsules, more or fewer than
    E(n, s); ``loop_changed``: gradients of a loop of unknown length that are others than torch's; and of one of 64
    operators ``operators_over_formula``, T + T + T / 2 log2(T), and ``operator_capsules_over_log``, log2(T) + 1."""
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
    """E(n) = floor(n / 2) + E(ceil(n / 2)) + E(floor(n / 2)), 0 up to ``base``."""
    if steps <= base:
        return 0
    half = steps // 2
    return half + bisection_extra(steps - half, base) + bisection_extra(half, base)


def bisections(depth: int) -> list[Schedule]:
    """One for each number of blocks at which it ends."""

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
    """Values of the gradients that differ."""

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
    """Operators that run in all, and the most capsules at once."""

    def f(x: Tensor) -> Tensor:
        for _ in range(OPERATORS):
            x = x.sin()
        return x

    x = torch.ones(())
    notes = program.Program(f, x)
    program.reverse(notes, notes.begun(x), OPERATORS, {notes.output: x}, 1, program.bisection, OPERATORS)
    return notes.operator_runs, notes.most_alive
