"""Divide and conquer: any program's gradients to the bit, what a capsule holds, and what is refused."""

from __future__ import annotations

import weakref

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from suite.chain.plan import Infeasible
from suite.chain.simulate import predicted
from techniques.rematerialization.ckpt_siskind_dnc.program import Program, gradients
from techniques.rematerialization.ckpt_siskind_dnc.technique import conquered
from techniques.rematerialization.shared.divided import binomial, bisection
from techniques.shared.persistent_probes import equal_chain


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
    values = inputs(base)  # other ones go another way
    result, ours = gradients(newton, values, base, split, 6)
    expected, theirs = plain(newton, values)
    assert torch.equal(result, expected)
    assert all(torch.equal(own, their) for own, their in zip(ours, theirs, strict=True))


def test_a_capsule_resumes_at_any_step_and_holds_what_is_alive():
    values = inputs()
    program = Program(newton, *values)
    start = program.begun(*values)
    for steps in range(0, len(program.steps) + 1, 7):
        capsule = program.interrupt(start, steps)
        assert torch.equal(program.resume(capsule), program.result)
        assert len(capsule.values) <= 6


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


@pytest.mark.parametrize("split", ["bisection", "binomial"])
def test_a_budget_below_the_least_is_refused_with_it(split):
    with pytest.raises(Infeasible, match=split) as error:
        conquered(equal_chain(7), 0, split)
    least = error.value.least_bytes
    assert predicted(conquered(equal_chain(7), least, split), equal_chain(7)).peak_bytes <= least


def test_deep_chains_are_planned():
    chain = equal_chain(96)
    assert predicted(conquered(chain, 20, "bisection"), chain).peak_bytes <= 20
