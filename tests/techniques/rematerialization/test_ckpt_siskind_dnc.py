"""Divide and conquer: any program's gradients to the bit, the paper's counts, schedules against the formulas."""

from __future__ import annotations

import math
import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from suite.chain.chain import Chain
from suite.chain.plan import Infeasible
from suite.chain.simulate import predicted
from techniques.rematerialization.ckpt_siskind_dnc.probes import bisection_extra, bisections
from techniques.rematerialization.ckpt_siskind_dnc.program import Program, gradients, reverse
from techniques.rematerialization.ckpt_siskind_dnc.technique import conquered, divisions
from techniques.rematerialization.rotor.technique import fastest
from techniques.rematerialization.shared.divided import binomial, bisection
from techniques.shared.persistent_probes import binomial_extra, equal_chain, kept_at_turn
from tests.chain.chains import chains


def newton(x: Tensor, weight: Tensor) -> Tensor:
    """Rounds and branches that depend on values, a value that is read rounds later, and several results at once."""
    first, rounds = x, 0
    while x.norm() > 1 and rounds < 12:
        y = torch.tanh(x @ weight)
        x = 0.7 * x + 0.2 * y if y.sum() > 0 else functional.gelu(0.9 * x) + 0.1 * y
        x = 0.2 * functional.layer_norm(x, x.shape[-1:]) + 0.6 * x
        top, _ = x.topk(2)
        x, rounds = x + 1e-3 * top.sum(), rounds + 1
    return (x.softmax(-1) * first).sum() + weight.square().mean()


def inputs(seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [5 * torch.randn(4, 6, generator=generator), torch.randn(6, 6, generator=generator)]


def plain(f, values):
    leaves = [each.clone().requires_grad_() for each in values]
    result = f(*leaves)
    return result.detach(), list(torch.autograd.grad(result, leaves))


@pytest.mark.parametrize(("split", "base"), [(bisection, 1), (bisection, 5), (bisection, 10_000), (binomial, 1)])
def test_gradients_of_a_loop_of_unknown_length_are_torchs_to_the_bit(split, base):
    result, ours = gradients(newton, inputs(), base, split, 6)
    expected, theirs = plain(newton, inputs())
    assert torch.equal(result, expected)
    assert all(torch.equal(own, their) for own, their in zip(ours, theirs, strict=True))


@settings(max_examples=15)
@given(st.integers(0, 1000))
def test_whatever_way_the_program_goes(seed):
    values = inputs(seed)
    _, ours = gradients(newton, values, base=4)
    assert all(torch.equal(own, their) for own, their in zip(ours, plain(newton, values)[1], strict=True))


def test_a_capsule_resumes_at_any_step_and_holds_what_is_alive():
    values = inputs()
    program = Program(newton, *values)
    start = program.begun(*values)
    for steps in range(0, len(program.steps) + 1, 7):
        capsule = program.interrupt(start, steps)
        assert torch.equal(program.resume(capsule), program.result)
        assert len(capsule.values) <= 6


def wave(x: Tensor, rounds: int) -> Tensor:
    for _ in range(rounds):
        x = x.sin()
    return x


@pytest.mark.parametrize("power", [3, 5, 7])
def test_bisection_costs_half_the_logarithm_in_time_and_the_logarithm_in_capsules(power):
    steps, x = 2**power, torch.ones(3)
    program = Program(lambda x: wave(x, steps), x)
    assert len(program.steps) == steps
    reverse(program, program.begun(x), steps, {program.output: x}, 1, bisection, steps)
    assert program.operator_runs == 2 * steps + steps // 2 * power
    assert program.most_alive == power + 1


def test_the_binomial_split_runs_as_often_as_revolve():
    x = torch.ones(3)
    for steps, capsules in ((12, 3), (24, 4), (31, 2)):
        program = Program(lambda x, steps=steps: wave(x, steps), x)
        reverse(program, program.begun(x), steps, {program.output: x}, 1, binomial, capsules)
        assert program.operator_runs - 2 * steps == binomial_extra(steps, capsules)
        assert program.most_alive == capsules + 1  # the one that a step's tape is made from


def test_values_are_forgotten_after_their_last_use():
    made = []

    def f(x: Tensor) -> Tensor:
        for _ in range(8):
            x = x.sin()
            made.append(weakref.ref(x))
        return x

    program = Program(f, torch.ones(3))
    assert [ref() is not None for ref in made] == [False] * 7 + [True]  # the result
    del program


def test_draws_are_repeated():
    def f(x: Tensor) -> Tensor:
        for _ in range(4):
            x = x * torch.rand(5) + torch.randn(5)
        return x.sum()

    torch.manual_seed(3)
    _, (ours,) = gradients(f, [torch.ones(5)])
    torch.manual_seed(3)
    assert torch.equal(ours, plain(f, [torch.ones(5)])[1][0])


def test_what_cannot_be_resumed_is_refused():
    with pytest.raises(ValueError, match="writes in place"):
        gradients(lambda x: (2 * x).mul_(3).sum(), [torch.ones(2)])
    outside = torch.ones(2, requires_grad=True)
    with pytest.raises(ValueError, match="make it an input"):
        gradients(lambda x: (x * outside).sum(), [torch.ones(2)])


@pytest.mark.parametrize("depth", range(2, 18))
def test_schedules_run_as_often_as_the_formulas_say(depth):
    each = list(divisions(depth, "bisection"))
    assert set(each) == set(bisections(depth))
    assert [way.extra_forwards for way in each] == [bisection_extra(depth, base) for base in range(depth, 0, -1)]
    assert kept_at_turn(each[-1]) <= math.ceil(math.log2(depth))
    for capsules, way in enumerate(divisions(depth, "binomial"), 1):
        assert way.extra_forwards == binomial_extra(depth, capsules)


@settings(max_examples=40)
@given(chains(most=7), st.sampled_from(["bisection", "binomial"]))
def test_the_budget_holds_more_of_it_costs_no_time_and_rotor_is_no_slower(chain: Chain, split):
    with pytest.raises(Infeasible, match=split) as error:
        conquered(chain, 0, split)
    times = []
    for budget in range(error.value.least_bytes, error.value.least_bytes + 100, 9):
        seen = predicted(conquered(chain, budget, split), chain)
        assert seen.peak_bytes <= budget
        assert predicted(fastest(chain, budget), chain).time_s <= seen.time_s * (1 + 1e-9)
        times.append(seen.time_s)
    assert times == sorted(times, reverse=True)


def test_deep_chains_are_planned():
    chain = equal_chain(96)
    assert predicted(conquered(chain, 20, "bisection"), chain).peak_bytes <= 20
