"""Packed numbers: exact bytes, exact ends, unbiased in between, and independent of each other."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from techniques.activation_compression.shared.bit_allocation import WHOLE, allocated, variance
from techniques.shared import packed
from techniques.shared.packed import GROUP, WIDTHS, from_bytes, in_bytes, pack, packed_bytes, unpack

every_width = pytest.mark.parametrize("bits", WIDTHS)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def noise(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def grouped(rows: Tensor) -> list[Tensor]:
    return [group for row in rows for group in row.split(GROUP)]


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(WIDTHS),
    st.integers(1, 4),
    st.integers(1, 700),
    st.floats(-30, 30),
    st.floats(1e-3, 1e3),
    st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
)
def test_numbers_come_back_within_a_step_in_the_bytes_of_the_formula(
    bits: int, rows: int, length: int, shift: float, scale: float, dtype: torch.dtype
) -> None:
    x = (drawn(rows, length, seed=length) * scale + shift).to(dtype)
    stored = pack(x, bits, noise())
    assert stored.codes.nbytes + stored.least.nbytes + stored.steps.nbytes == packed_bytes(rows, length, bits)
    assert (stored.codes.dtype, stored.least.dtype, stored.steps.dtype) == (torch.uint8, *[torch.bfloat16] * 2)
    back = unpack(stored)
    for group, returned in zip(grouped(x.double()), grouped(back.double()), strict=True):
        extent = (group.max() - group.min()).item()
        step = extent / (2**bits - 1)
        ends = 2.0**-7 * (step + group.abs().max().item())  # of least value and step, rounded outwards
        assert (returned - group).abs().max().item() <= step + 2 * ends


@every_width
def test_a_number_takes_b_and_an_eighth_bits(bits: int) -> None:
    assert packed_bytes(1, 2**20, bits) * 8 / 2**20 == bits + 32 / GROUP
    assert round(32 / (bits + 32 / GROUP), 2) == {1: 28.44, 2: 15.06, 4: 7.76, 8: 3.94}[bits]


@every_width
def test_each_number_is_right_on_average_and_its_neighbours_err_otherwise(bits: int) -> None:
    """Of 4000 draws: each mean within five standard errors, whose squares are 1 on average; no two errors alike."""
    x = drawn(1, 2 * GROUP) + 100.0  # far from 0, where rounding to nearest would clip
    stored = pack(x.expand(4000, -1), bits, noise())
    errors = unpack(stored).double() - x.double()
    step = stored.steps[0].double().repeat_interleave(GROUP)
    share = ((x.double() - stored.least[0].double().repeat_interleave(GROUP)) / step).frac()[0]
    between = (share > 0.02) & (share < 0.98)  # others are rarely, or never, rounded the other way
    expected = (share * (1 - share)).sqrt() * step
    z = (errors.mean(0) / expected * math.sqrt(4000))[between]
    assert between.sum() > GROUP and z.abs().max() < 5 and 0.8 < z.square().mean() < 1.2
    assert (errors.mean(0).abs() < 0.05 * step).all()
    pairs = torch.corrcoef(errors[:, between].T).fill_diagonal_(0)
    assert pairs.abs().max() < 6 / math.sqrt(4000)


@every_width
def test_ends_of_a_group_have_codes(bits: int) -> None:
    """Whatever bfloat16 makes of them: nothing is clipped."""
    x = drawn(40, GROUP) * torch.logspace(-3, 3, 40)[:, None] + torch.linspace(-50, 50, 40)[:, None]
    stored = pack(x, bits, noise())
    assert (stored.least.float() <= x.amin(1, keepdim=True)).all()
    top = stored.least.double() + stored.steps.double() * (2**bits - 1)
    assert (top >= x.amax(1, keepdim=True).double() * (1 - 1e-7 * x.amax(1, keepdim=True).sign())).all()


@given(st.sampled_from(WIDTHS), st.integers(1, 3), st.integers(1, 70))
def test_bytes_hold_every_code(bits: int, rows: int, length: int) -> None:
    codes = torch.randint(2**bits, (rows, length), generator=noise(length), dtype=torch.uint8)
    stored = in_bytes(codes, bits)
    assert stored.shape == (rows, math.ceil(length * bits / 8)) and stored.dtype == torch.uint8
    assert torch.equal(from_bytes(stored, bits, length), codes)
    by_hand = sum(int(code) << bits * place for place, code in enumerate(codes[0].tolist()))
    assert bytes(stored[0].tolist()) == by_hand.to_bytes(len(stored[0]), "little")


def test_constant_tiny_and_infinite_groups() -> None:
    x = torch.ones(6, GROUP)
    x[1] = 0.0
    x[2] = torch.linspace(0, 1e-41, GROUP)  # no float32 is the inverse of its step
    x[3, 7], x[4, 9], x[5, 3] = torch.nan, torch.inf, -torch.inf
    back = unpack(pack(x, 2, noise()))
    assert torch.equal(back[:2], x[:2]) and (back[2] - x[2]).abs().max() <= 1e-38
    assert back[3:].isnan().all()


def test_the_same_generator_gives_the_same_bits_and_pieces_change_nothing_but_the_noise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = drawn(3, 5 * GROUP + 9)
    one, other = (pack(x, 4, noise()) for _ in range(2))
    assert torch.equal(one.codes, other.codes)
    for rows in (x, x.view(1, -1), drawn(7, 100)):
        whole = pack(rows, 4, noise())
        with monkeypatch.context() as small:
            small.setattr(packed, "PIECE", 2 * GROUP)
            pieces = pack(rows, 4, noise())
            assert torch.equal(pieces.least, whole.least) and torch.equal(pieces.steps, whole.steps)
            assert pieces.codes.shape == whole.codes.shape
            in_pieces = unpack(pieces)
        assert torch.equal(in_pieces, unpack(pieces))
        assert (in_pieces - rows).abs().max() <= 1.1 * pieces.steps.float().max()


def test_other_widths_are_refused() -> None:
    with pytest.raises(ValueError, match="in 1, 2, 4, 8 bits, not in 3"):
        pack(drawn(1, 8), 3, noise())


# allocation -----------------------------------------------------------------------------------------------------------


def spent(bits: list[int], weights: list[int]) -> int:
    return sum(width * weight for width, weight in zip(bits, weights, strict=True))


def bound(bits: list[int], costs: list[float]) -> float:
    return sum(cost * variance(width) for cost, width in zip(costs, bits, strict=True))


@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(1, 5), st.sampled_from([8, WHOLE]))
def test_no_allocation_of_as_many_bits_is_better(data: st.DataObject, count: int, widest: int) -> None:
    costs = data.draw(st.lists(st.floats(1e-3, 1e3), min_size=count, max_size=count))
    weights = data.draw(st.lists(st.integers(1, 9), min_size=count, max_size=count))
    budget = data.draw(st.floats(1, widest)) * sum(weights)
    bits = allocated(costs, weights, budget, widest)
    total = spent(bits, weights)
    assert total <= budget
    widths = [width for width in (*WIDTHS, WHOLE) if width <= widest]
    every = [list(each) for each in itertools.product(widths, repeat=count)]
    best = min(bound(each, costs) for each in every if spent(each, weights) <= total)
    assert bound(bits, costs) <= best * (1 + 1e-9)


def test_of_equals_none_is_preferred_by_more_than_a_width() -> None:
    assert allocated([0.0] * 4, [1] * 4, 8) == [2] * 4
    assert allocated([1.0] * 4, [1] * 4, 10) == [2, 2, 2, 4]


def test_a_budget_below_a_bit_for_each_is_refused() -> None:
    with pytest.raises(ValueError, match="less than one for each of 5"):
        allocated([1.0, 1.0], [2, 3], 4)
