"""AC-GC's bits against their formula, its bound on random layers, its bit planes; saved and resumed, and refused."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from suite.loop.run import Run
from suite.measure.at_scale.full_size import Scale, counted
from suite.record.job import Setting
from techniques.activation_compression.acgc.bit_planes import packed, rows_of_planes, unpacked
from techniques.activation_compression.acgc.technique import (
    ACGC,
    allowed_error,
    fixed_point,
    fraction_bits,
    restored,
)
from tests.runs import new_run


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 12), st.integers(1, 70), st.data())
def test_planes_give_back_every_value_and_waste_no_bit(rows: int, columns: int, data: st.DataObject) -> None:
    widths = torch.tensor(data.draw(st.lists(st.integers(1, 16), min_size=rows, max_size=rows)))
    ends = 2.0 ** widths[:, None]
    values = (torch.rand(rows, columns, generator=torch.Generator().manual_seed(columns)) * ends).int()
    values[:, 0] = (ends[:, 0] - 1).int()  # all bits
    counts = rows_of_planes(widths)
    planes = packed(values, widths, counts)
    assert planes.dtype == torch.uint8 and planes.nbytes == int(widths.sum()) * math.ceil(columns / 8)
    assert torch.equal(unpacked(planes, widths, counts, columns), values)


@given(st.floats(1e-12, 10.0), st.lists(st.floats(0, 1e4), min_size=1, max_size=9))
def test_bits_are_the_authors_formula(allowed: float, largest: list[float]) -> None:
    single = torch.tensor(largest)
    for f, m in zip(fraction_bits(allowed, single).tolist(), single.tolist(), strict=True):
        scale = 1 / (m + 1e-6)
        exact = -0.5 * math.log2(allowed) - math.log2(scale) - 1
        assert f == min(max(math.trunc(exact), 1), 15) or abs(exact - round(exact)) < 1e-9


@given(st.floats(1e-6, 1.0), st.floats(1.0, 1e6))
def test_a_larger_error_never_takes_more_bits(error: float, factor: float) -> None:
    largest = drawn(20).abs()
    few, more = (fraction_bits(allowed_error(each, 2.0, 30.0, 640), largest) for each in (error * factor, error))
    assert bool((few <= more).all())


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 60), st.integers(1, 20), st.integers(1, 20), st.floats(0.01, 2.0), st.integers(0, 99))
def test_the_gradient_of_a_random_layer_is_within_the_bound(
    tokens: int, inputs: int, outputs: int, error: float, seed: int
) -> None:
    """|g_y^T dx|^2 <= e^2 |g_W|^2."""
    x, of_outputs = drawn(tokens, inputs, seed=seed), drawn(tokens, outputs, seed=seed + 1)
    exact = of_outputs.T @ x
    allowed = allowed_error(error, exact.square().sum().item(), of_outputs.square().sum().item(), x.numel())
    largest = x.abs().amax(0)
    bits = fraction_bits(allowed, largest)
    back = restored(fixed_point(x.T, largest, bits), largest, bits).T
    off = (of_outputs.T @ (back - x)).double().square().sum()
    # Cauchy-Schwarz with errors of 4 dx, the largest that a truncated number of bits lets through (that of a channel's
    # largest value, which has no code), is 8 e^2; where errors do not all add up, as among many values, there is room
    bound = error * exact.double().square().sum()
    assert off <= (bound if tokens >= 16 else 8 * bound) or int(bits.max()) == 15


def test_the_variance_of_gradients_is_within_the_bound_on_average() -> None:
    """Of 50 random layers: E |g'|^2 <= (1 + e^2) V^2 with V^2 = E |g|^2."""
    error, exact_squares, packed_squares = 0.5, [], []
    for seed in range(50):
        x, of_outputs = drawn(64, 8, seed=2 * seed), drawn(64, 12, seed=2 * seed + 1)
        exact = of_outputs.T @ x
        largest = x.abs().amax(0)
        squares = exact.square().sum().item(), of_outputs.square().sum().item()
        bits = fraction_bits(allowed_error(error, *squares, x.numel()), largest)
        back = restored(fixed_point(x.T, largest, bits), largest, bits).T
        exact_squares.append(squares[0])
        packed_squares.append((of_outputs.T @ back).square().sum().item())
    assert sum(packed_squares) <= (1 + error) * sum(exact_squares)


def test_values_are_rounded_to_the_nearest_and_the_largest_to_the_last_code() -> None:
    x = torch.tensor([[-1.0, -0.6, 0.0, 0.3, 0.8, 1.0]])
    largest, bits = torch.tensor([1.0]), torch.tensor([2], dtype=torch.int32)
    codes = fixed_point(x, largest, bits)
    assert codes.tolist() == [[0, 2, 4, 5, 7, 7]]
    torch.testing.assert_close(restored(codes, largest, bits), torch.tensor([[-1.0, -0.5, 0.0, 0.25, 0.75, 0.75]]))


def test_a_channel_of_zeros_comes_back_to_the_bit() -> None:
    x = torch.zeros(1, 9)
    bits = fraction_bits(1e-3, x.abs().amax(1))
    assert torch.equal(restored(fixed_point(x, x.abs().amax(1), bits), x.abs().amax(1), bits), x)


def own(run: Run) -> ACGC:
    (technique,) = run.technique.techniques.values()  # type: ignore[attr-defined]
    assert isinstance(technique, ACGC)
    return technique


def test_norms_are_those_of_the_gradients_and_the_last_few_are_kept() -> None:
    run = new_run("vit", "acgc:interval=2,history=2", size="pico", recipe="classic", steps=8)
    run.recipe = replace(run.recipe, gradient_clip=0.0)
    measured: dict[str, list[float]] = {}
    for _ in range(7):
        step = run.step
        batch, indices = run.next_batch()
        run.train_step(batch, indices)
        for part in run.anatomy.linears:
            weight: Any = part.module.weight
            if step % 2 == 0:
                measured.setdefault(part.path, []).append(weight.grad.square().sum().item())
    norms = own(run).norms
    assert {path: [each[0] for each in pairs] for path, pairs in norms.items()} == {
        path: pytest.approx(each[-2:]) for path, each in measured.items()
    }


def test_a_gradient_that_is_not_finite_is_not_measured() -> None:
    run = new_run("vit", "acgc:interval=1", size="pico", recipe="classic", steps=8)
    run.train(1)
    technique = own(run)
    before = {path: list(each) for path, each in technique.norms.items()}
    technique.of_outputs = {path: torch.tensor(math.inf) for path in technique.norms}
    technique.after_backward(run)
    assert technique.norms == before


@pytest.mark.filterwarnings("error")
def test_a_layer_whose_weight_is_computed_from_other_parameters_goes_on_with_16_bits() -> None:
    run = new_run("vit", "intrinsic_dim:dimension=100+acgc:interval=1", size="pico", task="adapt", steps=4)
    run.train(3)
    technique = run.technique.techniques["acgc"]  # type: ignore[attr-defined]
    head = [part.path for part in run.anatomy.linears if part.module.weight.is_leaf]
    assert sorted(technique.norms) == sorted(head)
    assert run.probes()["acgc.bits"] > 8


def test_layers_with_one_input_are_known() -> None:
    run = new_run("bert", "acgc", size="pico", recipe="classic", steps=4)
    run.train(1)
    shared = [readers for readers in own(run).readers.values() if len(readers) > 1]
    assert [len(readers) for readers in shared] == [3] * run.anatomy.depth  # queries, keys and values


def test_a_number_of_bits_is_counted_without_values_as_it_is_with_them() -> None:
    setting = Setting(baseline="vit", size="pico", recipe="classic", steps=1)
    bytes_kept = []
    for bits in (4, 8):
        run = new_run("vit", f"acgc:bits={bits}", size="pico", recipe="classic", steps=2)
        run.train(1)
        count = counted(f"acgc:bits={bits}", Scale(setting))
        assert count.counters is not None, count.unavailable
        assert count.counters.saved_activation_bytes == run.count_step().saved_activation_bytes
        assert not own(run).norms and run.probes()["acgc.bits"] == bits
        bytes_kept.append(count.counters.saved_activation_bytes)
    assert bytes_kept[0] < bytes_kept[1]
