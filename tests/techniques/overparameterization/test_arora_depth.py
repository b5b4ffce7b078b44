"""Products in place of matrices: theorem 1 against autograd, exact merging, and the bench of the theory."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from suite.model.anatomy import anatomy
from techniques.overparameterization.arora_depth.study import (
    Descent,
    Regression,
    acceleration,
    best_rate,
    curves,
    descended,
    descents,
    diabetes,
    end_to_end,
    plot,
    rule,
)
from techniques.overparameterization.arora_depth.technique import (
    ProductLinear,
    balanced_factors,
    merge,
    product,
)
from tests.runs import new_run


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@given(st.integers(1, 7), st.integers(1, 7), st.integers(2, 4), st.integers(0, 2**31))
def test_factors_are_balanced_and_their_product_is_the_weight(rows: int, columns: int, depth: int, seed: int) -> None:
    weight = drawn(rows, columns, seed=seed)
    factors = balanced_factors(weight, depth)
    torch.testing.assert_close(product(factors), weight)
    assert len(factors) == depth
    for left, right in pairwise(factors):
        assert left.shape[1] == min(rows, columns)
        torch.testing.assert_close(left.T @ left, right @ right.T)


@pytest.mark.parametrize("depth", [2, 3])
def test_theorem_1_is_the_derivative_of_descent_on_the_factors(depth: int) -> None:
    """Autograd's gradients of the factors, and the product's derivative along them."""
    weight, gradient = drawn(5, 4), drawn(5, 4, seed=1)
    factors = [each.requires_grad_() for each in balanced_factors(weight, depth)]
    gradients = torch.autograd.grad((product(factors) * gradient).sum(), factors)
    _, change = torch.func.jvp(lambda *each: product(each), tuple(factors), tuple(gradients))
    torch.testing.assert_close(end_to_end(weight, gradient, depth), change)
    steps = [each - 0.1 * own for each, own in zip(factors, gradients, strict=True)]
    for ours, expected in zip(descended([each.detach() for each in factors], gradient, 0.1), steps, strict=True):
        torch.testing.assert_close(ours, expected)


def test_the_error_of_a_step_goes_with_the_rate() -> None:
    errors = {(depth, rate): error for depth, rate, error in rule().rows}
    for depth in (2, 3):
        assert errors[depth, 1e-5] < 1e-4
        assert errors[depth, 1e-3] / errors[depth, 1e-4] == pytest.approx(10, rel=0.05)


@pytest.mark.parametrize("stack", ["layerscale+arora_depth", "arora_depth+layerscale"])
def test_a_wrapped_layer_keeps_its_wrapper(stack: str) -> None:
    run = new_run("vit", stack, size="pico", recipe="classic", steps=4)
    plain = new_run("vit", "layerscale", size="pico", recipe="classic", steps=4)
    assert run.train(2) == pytest.approx(plain.train(2), rel=1e-3)
    parameters = sum(each.numel() for each in run.technique.evaluated(run.model, run).parameters())
    assert parameters == sum(each.numel() for each in plain.model.parameters())


def test_frozen_layers_are_left_alone_and_a_frozen_model_is_refused() -> None:
    with pytest.raises(ValueError, match="matrices that train"):
        new_run("gpt", "lora+arora_depth", size="pico", recipe="classic", steps=4)


def test_a_transposed_layer_computes_as_before() -> None:
    run = new_run("gpt", size="pico", recipe="classic", steps=4)
    part: Any = anatomy(run.model).blocks[0].mlp_linears[0].module
    x = torch.randn(3, part.weight.shape[0])
    expected = part(x)
    torch.testing.assert_close(ProductLinear(part, 3)(x), expected)


def test_merging_a_model_without_products_changes_nothing() -> None:
    model = new_run("vit", size="pico", recipe="classic", steps=4).model
    before = [str(each) for each in model.modules()]
    assert [str(each) for each in merge(model).modules()] == before


# the study ----------------------------------------------------------------------------------------------------------


def test_depth_doubles_the_speed_on_l4_and_hardly_changes_it_on_l2() -> None:
    quartic, quadratic = diabetes(4), diabetes(2)
    runs = {(4, depth): best_rate(quartic, depth) for depth in (1, 2)}
    runs |= {(2, depth): best_rate(quadratic, depth) for depth in (1, 2)}
    speedups = {(p, depth): speedup for p, depth, _, _, speedup in acceleration(runs).rows}
    assert speedups[4, 2] > 1.9
    assert 0.9 < speedups[2, 2] < 1.2
    table = curves({depth: runs[4, depth] for depth in (1, 2)}, quartic)
    assert table.rows[0][1:] == (1.0, 1.0)
    assert len(plot([table]).axes[0].lines) == 2


def test_minimum_and_gradient_of_the_regression() -> None:
    problem = diabetes(4)
    weights = drawn(2, 10).requires_grad_()
    (expected,) = torch.autograd.grad(problem.value(weights).sum(), weights)
    torch.testing.assert_close(problem.gradient(weights.detach()), expected)
    assert (problem.value(weights.detach()) > problem.least).all()


def test_descents_of_a_product_are_autograds() -> None:
    problem = Regression(drawn(20, 3), drawn(20, seed=1), 4)
    points = descents(problem, 3, [0.01])
    start = next(points)
    size = start.norm() ** (1 / 3)
    vector = (start[0] / size**2).requires_grad_()
    scalars = [size.clone().requires_grad_() for _ in range(2)]
    parts = [vector, *scalars]
    gradients = torch.autograd.grad(problem.value((vector * scalars[0] * scalars[1])[None]).sum(), parts)
    after = [each - 0.01 * own for each, own in zip(parts, gradients, strict=True)]
    torch.testing.assert_close(next(points)[0], after[0] * after[1] * after[2])


def test_a_goal_out_of_reach_is_no_number() -> None:
    problem = Regression(drawn(20, 3), drawn(20, seed=1), 2, least=-1.0)
    assert best_rate(problem, 2, [0.01], most=20) == Descent(None, None)
    rows = acceleration({(2, 1): Descent(None, None), (2, 2): Descent(0.1, 5)}).rows
    assert [row[-1] for row in rows] == [None, None]
