"""Rank-1 scales and packing against their formulas; 4-bit AdamW against Adam's formula on decoded moments."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from leantrain.optim import AdamW4bit
from techniques.precision.adam4bit_rank1.optimizer import (
    BLOCK,
    FIRST,
    decode_rank1,
    encode_rank1,
    packed,
    unpacked,
)
from techniques.precision.adam4bit_rank1.technique import Adam4bit
from techniques.shared.low_bit import decode_blocks

SHAPES = (70, 65), (13, 7, 51), (5000,), (64, 64)  # a tail; odd, of three dimensions; a vector; too small


def parameters() -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in SHAPES]


def train(optimizer: torch.optim.Optimizer, every: list[nn.Parameter], steps: range) -> None:
    for step in steps:
        generator = torch.Generator().manual_seed(100 + step)
        for parameter in every:
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        optimizer.step()


@pytest.mark.parametrize("count", [1, 2, 127, 128])
def test_two_codes_a_byte_and_back(count: int) -> None:
    codes = torch.randint(0, 16, (count,), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    assert packed(codes).shape == ((count + 1) // 2,)
    assert torch.equal(unpacked(packed(codes), count), codes)


def test_rank1_codes_are_the_nearest_and_none_decodes_to_zero() -> None:
    v = torch.randn(40, 50, generator=torch.Generator().manual_seed(0)).square()
    v[:, 7], v[3] = 1e-30, 0.0
    codes, rows, columns = encode_rank1(v)
    scales = torch.minimum(rows[:, None], columns)
    assert (scales >= v).all()
    values = torch.linspace(0, 1, 17, dtype=torch.float64)[1:]
    over = torch.where(scales > 0, v.double() / scales, 0.0)
    brute = (over[..., None] - values).abs().argmin(-1)
    assert ((codes == brute) | (scales == 0)).float().mean() > 0.9999
    decoded = decode_rank1(codes, rows, columns)
    assert (decoded[3] == 0).all()
    assert (decoded[4:] > 0).all()


def test_rank1_is_finer_than_groups_where_outliers_lie_in_a_column() -> None:
    """The paper's figure 3: groups cut across it."""
    v = torch.rand(64, 128, generator=torch.Generator().manual_seed(0)) * 1e-3
    v[:, 9] *= 1e3
    grouped = v.view(-1, BLOCK)
    scales = grouped.amax(1, keepdim=True)
    by_group = (grouped / scales * 16).round().clamp(1, 16) / 16 * scales
    error = (decode_rank1(*encode_rank1(v)) - v).abs().mean()
    assert error < 0.2 * (by_group - grouped).abs().mean()


def test_update_by_update_adamw_of_the_decoded_moments() -> None:
    every = parameters()
    optimizer = AdamW4bit(every, lr=0.05, betas=(0.9, 0.99), weight_decay=0.1)
    for step in range(4):
        before = []
        for parameter in every:
            state, count = optimizer.state[parameter], parameter.numel()
            m = v = torch.zeros(parameter.shape, dtype=torch.float64)
            if "first_codes" in state:
                first = unpacked(state["first_codes"], count)
                m = decode_blocks(first, state["first_scales"], BLOCK, FIRST).double().view(parameter.shape)
                second = unpacked(state["second_codes"], count).view(len(parameter), -1)
                v = decode_rank1(second, state["second_rows"], state["second_columns"]).double().view(parameter.shape)
            elif state:
                m, v = state["first_moment"].double(), state["second_moment"].double()
            before.append((parameter.detach().double().clone(), m, v))
        train(optimizer, every, range(step, step + 1))
        for parameter, (p, m, v) in zip(every, before, strict=True):
            assert parameter.grad is not None
            g = parameter.grad.double()
            m, v = 0.9 * m + 0.1 * g, 0.99 * v + (1 - 0.99) * g.square()
            direction = m / (1 - 0.9 ** (step + 1)) / ((v / (1 - 0.99 ** (step + 1))).sqrt() + 1e-8)
            torch.testing.assert_close(
                parameter.double(), p * (1 - 0.05 * 0.1) - 0.05 * direction, rtol=1e-5, atol=1e-6
            )
    assert ["first_codes" in optimizer.state[each] for each in every] == [True, True, False, False]


def test_bytes_of_a_matrix() -> None:
    weight = nn.Parameter(torch.zeros(128, 256))
    optimizer = AdamW4bit([weight])
    train(optimizer, [weight], range(1))
    held = sum(each.nbytes for each in optimizer.state[weight].values() if each.numel() > 1)
    assert held / weight.numel() == 0.5 + 0.5 + 4 / 128 + 4 * (128 + 256) / (128 * 256)


def test_a_saved_and_a_copied_optimizer_continue_to_the_bit() -> None:
    every = parameters()
    optimizer = AdamW4bit(every, lr=0.01)
    train(optimizer, every, range(2))
    copied, twins = copy.deepcopy((optimizer, every))
    loaded = copy.deepcopy(every)
    resumed = AdamW4bit(loaded, lr=1.0)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for its, own in ((optimizer, every), (copied, twins), (resumed, loaded)):
        train(its, own, range(2, 4))
    assert all(torch.equal(a, b) and torch.equal(a, c) for a, b, c in zip(every, twins, loaded, strict=True))


def test_what_makes_no_sense_is_refused_with_a_sentence() -> None:
    with pytest.raises(ValueError, match="is 1 or more"):
        AdamW4bit(parameters(), smallest=0)
    with pytest.raises(ValueError, match="is 1 or more"):
        Adam4bit(smallest=0)
