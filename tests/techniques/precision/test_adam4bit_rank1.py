"""Packing; 4-bit AdamW against Adam's formula on decoded moments; its kernels
(here under the interpreter) against torch's operators."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

import pytest
import torch
from torch import nn

from leantrain.optim import AdamW4bit
from suite.kernels import optimizer as base
from techniques.precision.adam4bit_rank1.codes import BLOCK, FIRST, decode_rank1, encode_rank1, packed, unpacked
from techniques.precision.shared.low_bit import decode_blocks

kernel = pytest.importorskip("techniques.precision.adam4bit_rank1.kernel")  # Triton has no wheel for some platforms

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


# the kernels ----------------------------------------------------------------------------------------------------------

MATRICES = (16, 384), (17, 128), (40, 65), (5, 7, 19), (1, 2100), (300, 1), (2, 2049), (1, 1), (3, 5)
"""Whole groups in a row, more rows than tiles have; groups across rows, few and many columns; a byte and less."""
STATES = "first_codes", "first_scales", "second_codes", "second_rows", "second_columns"


def pair(
    dtype: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
    change: Sequence[tuple[int, float]] = (),
    shapes: Sequence[tuple[int, ...]] = MATRICES,
) -> tuple[list[nn.Parameter], AdamW4bit, list[nn.Parameter], AdamW4bit]:
    """A step from equal states by torch's operators and by the kernels, of gradients that ``change`` at their first
    element by matrix."""
    generator = torch.Generator().manual_seed(0)
    own = [nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in shapes]
    optimizer = AdamW4bit(own, lr=0.05, smallest=1)

    def step(its: AdamW4bit, every: list[nn.Parameter], number: int) -> None:
        generator = torch.Generator().manual_seed(100 + number)
        for parameter in every:
            parameter.grad = torch.randn(parameter.shape, generator=generator).to(dtype)
        for at, value in change if number == 2 else ():
            grad = every[at].grad
            assert grad is not None
            grad.view(-1)[0] = value
        if not change:
            its.clip(3.0)
        its.step()

    for number in range(2):
        step(optimizer, own, number)
    twin, copied = copy.deepcopy((optimizer, own))
    step(optimizer, own, 2)
    monkeypatch.setattr(base, "launchable", lambda tensors: True)
    step(twin, copied, 2)
    return own, optimizer, copied, twin


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_kernels_do_what_torch_does(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    """One clipped step from equal states: codes are equal but where two are as near."""
    own, optimizer, copied, twin = pair(dtype, monkeypatch)
    for a, b in zip(own, copied, strict=True):
        torch.testing.assert_close(a, b, rtol=torch.finfo(dtype).eps * 4, atol=1e-6)
        for name in STATES:
            mine, theirs = optimizer.state[a][name], twin.state[b][name]
            assert mine.dtype == theirs.dtype
            if name.endswith("codes"):
                assert (mine != theirs).float().mean() < 1e-3
            else:
                torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=0)


def test_what_is_no_number_stays_visible_where_torch_shows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    own, optimizer, copied, twin = pair(torch.float32, monkeypatch, [(0, math.nan), (2, math.nan)], MATRICES[:3])
    for a, b in zip(own, copied, strict=True):
        assert torch.equal(a.isnan(), b.isnan())
        for name in ("second_rows", "second_columns"):
            mine, theirs = optimizer.state[a][name], twin.state[b][name]
            torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=0, equal_nan=True)
    assert not twin.state[copied[0]]["first_scales"][0].isfinite()


def test_steps_of_zeros_and_steps_left_out_and_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """All-zero groups, rows and columns; a flag that leaves a step out leaves nothing for the next."""
    monkeypatch.setattr(base, "launchable", lambda tensors: True)
    weights = [nn.Parameter(torch.ones(shape)) for shape in ((64, 128), (70, 65))]
    optimizer = AdamW4bit(weights, lr=0.1, weight_decay=0.0)
    for weight in weights:
        weight.grad = torch.zeros_like(weight)
    optimizer.step()
    assert all((weight == 1).all() for weight in weights)
    assert all((decode_rank1_of(optimizer, weight) == 0).all() for weight in weights)
    before = copy.deepcopy([optimizer.state[weight] for weight in weights])
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    optimizer.found_inf = torch.ones(())  # type: ignore[attr-defined]
    optimizer.step()
    assert all((weight == 1).all() for weight in weights)
    for weight, state in zip(weights, before, strict=True):
        assert all(torch.equal(optimizer.state[weight][name], state[name]) for name in STATES)
    optimizer.found_inf = torch.zeros(())  # type: ignore[attr-defined]
    optimizer.step()
    for weight in weights:
        torch.testing.assert_close(decode_rank1_of(optimizer, weight), torch.full_like(weight, 1e-3))


def decode_rank1_of(optimizer: AdamW4bit, weight: nn.Parameter) -> torch.Tensor:
    state = optimizer.state[weight]
    codes = unpacked(state["second_codes"], weight.numel()).view(len(weight), -1)
    return decode_rank1(codes, state["second_rows"], state["second_columns"])


@pytest.mark.parametrize("width", [512, 771])
def test_more_than_2_to_the_31_elements_by_address_arithmetic(width: int) -> None:
    """Programs deep inside a tensor too large to allocate; only what they may touch is there: the last rows."""
    stretch, tile = kernel.STRETCH, kernel.ROWS.value
    above = -(-(2**32) // (stretch * width)) * stretch  # rows, of whole stretches and tiles
    first, height = above * width, tile
    generator = torch.Generator().manual_seed(0)
    size = height * width
    p, g = torch.randn(size, generator=generator), torch.randn(size, generator=generator)
    v = torch.randn(height, width, generator=generator).square()
    codes, rows, columns = encode_rank1(v)
    pairs, scales = packed(torch.full((size,), FIRST.zero, dtype=torch.uint8)), torch.zeros(-(-size // BLOCK))
    second, new = packed(codes), [torch.zeros(height), torch.zeros(width)]
    table = torch.tensor([p.data_ptr() - 4 * first, g.data_ptr() - 4 * first, first + size]).view(-1, 1)
    code_table = torch.tensor([each.data_ptr() - first // 2 for each in (pairs, second)] + [0]).view(-1, 1)
    scale_table = torch.tensor([scales.data_ptr() - first // BLOCK * 4, 0]).view(-1, 1)
    addresses = [[rows.data_ptr() - 4 * above, columns.data_ptr()], [new[0].data_ptr() - 4 * above, new[1].data_ptr()]]
    largest = torch.tensor([*addresses, [above + height, width]])
    across = -(-width // BLOCK)
    tiles = torch.arange(across) + above // tile * across
    wide = decode_rank1(codes, rows, columns).double() * 0.99 + 0.01 * g.view(height, width).double().square()
    kernel.largest_kernel[(len(tiles),)](
        table, tiles, code_table, largest, 1, None, None, 0.99, 0.01, **constants(kernel.largest_kernel)
    )
    torch.testing.assert_close(new[0], wide.amax(1).float())
    torch.testing.assert_close(new[1], wide.amax(0).float())
    expected = p.double() - 0.1 * 0.1 * g.double() / (wide.sqrt().view(-1) + 1e-8)
    blocks = torch.arange(-(-size // stretch)) + first // stretch
    kernel.adam4bit_kernel[(len(blocks),)](
        table,
        blocks,
        code_table,
        scale_table,
        largest,
        FIRST.table,
        1,
        None,
        None,
        None,
        0.9,
        0.1,
        0.99,
        0.01,
        1.0,
        0.1,
        1.0,
        1e-8,
        **constants(kernel.adam4bit_kernel),
    )
    torch.testing.assert_close(p.double(), expected, rtol=1e-5, atol=1e-5)
    again = encode_rank1(wide.float())[0]
    assert (unpacked(second, size) != again.view(-1)).float().mean() < 1e-3


def constants(function: object) -> dict[str, object]:
    manifests = {each.kernel: each for name, each in kernel.MANIFESTS.items() if name.startswith("float32")}
    return {
        name: manifests[function].constants[name]
        for name in ("DTYPES", "BLOCK")
        if name in manifests[function].constants
    }
