"""Integer layers beside Python's own integers: rounding enumerated, products and updates to the unit, and runs."""

import math
from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from suite.loop.run import Diverged
from suite.model.anatomy import weight_matrix
from techniques.fine_tuning.lora.technique import LoRA
from techniques.precision.int_only import technique
from techniques.precision.int_only.technique import (
    LONGEST_SUM,
    IntegerLinear,
    IntegerWeight,
    IntOnly,
    Scaled,
    integers,
    narrowed,
    product,
    shifted,
)
from tests.runs import new_run


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


# rounding -------------------------------------------------------------------------------------------------------------


@given(st.integers(-(2**31), 2**31), st.integers(0, 20))
def test_rounding_to_the_nearest_and_pseudo_stochastic_rounding_in_pythons_integers(value: int, bits: int) -> None:
    one = torch.tensor([value])
    assert abs(Fraction(int(shifted(one, bits, "nearest"))) - Fraction(value, 2**bits)) <= Fraction(1, 2)
    out, half = abs(value) % 2**bits, bits // 2
    share, random = out // 2**half, out % 2**half * 2 ** (bits % 2)
    expected = (abs(value) // 2**bits + (share > random)) * (1 if value >= 0 else -1)
    assert int(shifted(one, bits, "pseudo")) == expected


@settings(deadline=None)
@given(
    st.lists(st.integers(-(2**31), 2**31), min_size=1, max_size=9),
    st.sampled_from([7, 15]),
    st.sampled_from(["stochastic", "pseudo", "nearest"]),
)
def test_mantissas_fit_and_are_off_by_less_than_a_unit(values: list[int], bits: int, rounding: Any) -> None:
    mantissa, exponent = narrowed(Scaled(torch.tensor(values), torch.tensor(3)), bits, rounding)
    assert mantissa.abs().max() <= 2**bits - 1
    shift = int(exponent) - 3
    assert shift >= 0 and all(abs(int(m) * 2**shift - v) < 2**shift for m, v in zip(mantissa, values, strict=True))
    assert not shift or max(map(abs, values)) >> shift - 1 >= 2**bits - 1, "no bit more is lost than has to be"


@settings(deadline=None)
@given(st.integers(-100, 100), st.sampled_from(["stochastic", "pseudo", "nearest"]))
def test_floating_point_numbers_of_any_size(power: int, rounding: Any) -> None:
    x = drawn(5, 7) * 2.0**power
    mantissa, exponent = integers(x, 7, rounding)
    assert 63 <= mantissa.abs().max() <= 127
    assert (torch.ldexp(mantissa.double(), exponent.double()) - x).abs().max() < 2.0 ** int(exponent) * 1.0001


# layers ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("transposed", [False, True], ids=["Linear", "Conv1D"])
@pytest.mark.parametrize("bits", [7, 15])
def test_a_layer_is_its_integers_products_and_powers_of_two(bits: int, transposed: bool) -> None:
    plain = Conv1D(6, 9) if transposed else nn.Linear(9, 6)
    nn.init.normal_(plain.bias)
    layer = IntegerLinear(plain, bits, "nearest")
    torch.testing.assert_close(layer.weight, weight_matrix(plain).detach(), rtol=0, atol=2.0**-8)
    torch.testing.assert_close(layer.bias, plain.bias.detach(), rtol=0, atol=2.0**-5)
    x, g = drawn(2, 5, 9).requires_grad_(), drawn(2, 5, 6, seed=1)
    y = layer(x)
    y.backward(g)
    p, q, r = (integers(each, 7, "nearest") for each in (x.detach().view(-1, 9), layer.weight, g.view(-1, 6)))
    a, b, c = (each.mantissa.numpy() for each in (p, q, r))
    unit = lambda *scaled: 2.0 ** sum(int(each.exponent) for each in scaled)  # noqa: E731
    assert layer.bias is not None and x.grad is not None
    torch.testing.assert_close(
        y.view(-1, 6).double(), torch.from_numpy(a @ b.T).double() * unit(p, q) + layer.bias.double()
    )
    torch.testing.assert_close(x.grad.view(-1, 9).double(), torch.from_numpy(c @ b).double() * unit(r, q))
    assert layer.integers.gradient is not None and layer.integers.gradient.tolist() == (c.T @ a).tolist()
    assert layer.offsets is not None and layer.offsets.gradient is not None
    assert layer.offsets.gradient.tolist() == c.sum(0).tolist()


def test_weights_that_outgrow_their_range_lose_a_bit_and_keep_their_values() -> None:
    weight = IntegerWeight(torch.tensor([[1.0, -0.5, 0.25]]), 7)
    exponent = int(weight.exponent)
    weight.gradient = torch.tensor([[-1023, 0, 0]], dtype=torch.int32)
    for _ in range(2):
        weight.update(1.0, 6, "nearest")
        weight.gradient = torch.tensor([[-1023, 0, 0]], dtype=torch.int32)
    assert weight.exponent == exponent + 2
    assert weight.value.float().tolist() == [[4.0, -0.5, 0.25]]


def test_zeros_are_zeros_and_what_is_not_finite_is_not_hidden() -> None:
    layer = IntegerLinear(nn.Linear(4, 3), 7, "stochastic")
    assert torch.equal(layer(torch.zeros(2, 4)), layer.bias.expand(2, 3))
    for value in ("nan", "inf"):
        x = torch.zeros(2, 4)
        x[0, 1] = float(value)
        assert layer(x).isnan().all()
    assert layer.integers.mantissa.dtype == torch.int8


def test_sums_stay_in_int32() -> None:
    ones = torch.full((1, LONGEST_SUM), 127, dtype=torch.int8)
    assert product(ones, -ones).item() == -(127**2) * LONGEST_SUM
    with pytest.raises(ValueError, match=f"not of {LONGEST_SUM + 1}: use smaller batches"):
        product(*[torch.ones(1, LONGEST_SUM + 1, dtype=torch.int8)] * 2)


# runs -----------------------------------------------------------------------------------------------------------------


def test_evaluation_draws_nothing() -> None:
    run = new_run("gpt", "int_only", size="pico", steps=4)
    run.train(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(technique.torch, "randint_like", lambda *_: pytest.fail("evaluation rounds to the nearest"))
        assert math.isfinite(run.evaluate()["loss"])


def test_a_run_that_diverges_says_so() -> None:
    run = new_run("vit", "int_only", size="pico", steps=4)
    with torch.no_grad():
        next(each for each in run.model.parameters() if each.is_floating_point()).fill_(math.nan)
    with pytest.raises(Diverged):
        run.train(1)


def test_what_is_refused() -> None:
    run = new_run("gpt", LoRA(), size="pico")
    with pytest.raises(ValueError, match="is a LowRankLinear: leave out what wraps it, or int_only"):
        IntOnly().model(run.model, run)
