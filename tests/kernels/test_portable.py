"""`dot` and `narrow` under the interpreter, against torch, to the bit."""

import pytest
import torch
import triton
import triton.language as tl

from suite.kernels.portable import dot, narrow


@triton.jit
def _narrow_kernel(source, target, N: tl.constexpr):
    offsets = tl.arange(0, N)
    tl.store(target + offsets, narrow(tl.load(source + offsets), target.dtype.element_ty))


@triton.jit
def _dot_kernel(a, b, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    rows, columns, inner = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    x = tl.load(a + rows[:, None] * K + inner[None, :])
    y = tl.load(b + inner[:, None] * N + columns[None, :])
    acc = tl.full((M, N), 1.0, tl.float32)
    tl.store(c + rows[:, None] * N + columns[None, :], dot(x, y, acc))


def _floats_of_all_kinds() -> torch.Tensor:
    """2**16 float32 bit patterns: random ones, every tie between two bfloat16 neighbours' low halves, the extremes."""
    generator = torch.Generator().manual_seed(0)
    low, high = -(2**31), 2**31
    patterns = torch.randint(low, high, (2**16,), generator=generator, dtype=torch.int64)
    ties = torch.randint(0, 2**16, (2**14,), generator=generator) * 2**16 + 0x8000 + low
    patterns[: 2**14] = ties
    patterns[2**14 : 2**14 + 4] = torch.tensor([0x7F7FFFFF, 0x7F800000, 0x00000001, 0x007FFFFF])
    patterns[2**14 + 4 : 2**14 + 7] = torch.tensor([0x7FFFFFFF, 0x7F800001, -1])  # NaNs whose payload would carry over
    return patterns.to(torch.int32).view(torch.float32)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_narrow_rounds_as_torch_does(dtype: torch.dtype) -> None:
    source = _floats_of_all_kinds()
    target = torch.empty(source.shape, dtype=dtype)
    _narrow_kernel[(1,)](source, target, N=source.numel())
    expected = source.to(dtype)
    nan = source.isnan()
    assert nan.any()
    assert target.isnan().equal(nan)
    bits = torch.int32 if dtype == torch.float32 else torch.int16
    assert torch.equal(target[~nan].view(bits), expected[~nan].view(bits))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_narrow_rounds_to_eight_bits_as_torch_does(dtype: torch.dtype) -> None:
    """All numbers of the format, what lies halfway between two of them and just beside that, and random ones."""
    codes = torch.arange(256, dtype=torch.uint8).view(dtype).float()
    codes = codes[codes.isfinite()].sort().values
    halves = (codes[1:] + codes[:-1]) / 2
    beside = [halves.nextafter(torch.tensor(to)) for to in (-torch.inf, torch.inf)]
    largest = torch.finfo(dtype).max
    generator = torch.Generator().manual_seed(0)
    random = torch.randn(2**12, generator=generator) * (4 * torch.randn(2**12, generator=generator)).exp()
    source = torch.cat([codes, halves, *beside, random.clamp(-largest, largest), torch.full((1,), torch.nan)])
    source = torch.cat([source, source.new_zeros(2**13 - len(source))])
    target = torch.empty(source.shape, dtype=dtype)
    _narrow_kernel[(1,)](source, target, N=source.numel())
    nan = source.isnan()
    assert target.isnan().equal(nan)
    assert torch.equal(target.view(torch.uint8)[~nan], source.to(dtype).view(torch.uint8)[~nan])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_dot_is_exact_on_integers(dtype: torch.dtype) -> None:
    """Small integers have exact products and sums in every dtype, so any order of summation gives the same bits."""
    generator = torch.Generator().manual_seed(1)
    a = torch.randint(-8, 9, (16, 64), generator=generator).to(dtype)
    b = torch.randint(-8, 9, (64, 32), generator=generator).to(dtype)
    c = torch.empty(16, 32)
    _dot_kernel[(1,)](a, b, c, M=16, N=32, K=64)
    assert torch.equal(c, 1 + a.float() @ b.float())
