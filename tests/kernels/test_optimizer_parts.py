"""Device functions that optimizers' kernels share: rounding with random bits, the bits, scalars, partial sums."""

import math

import pytest
import torch
from torch import Tensor

triton = pytest.importorskip("triton")  # no wheel for some platforms
tl = pytest.importorskip("triton.language")
optimizer_parts = pytest.importorskip("suite.kernels.optimizer_parts")
portable = pytest.importorskip("suite.kernels.portable")

if not portable.INTERPRET.value:
    raise pytest.UsageError("kernel tests run on the CPU: set TRITON_INTERPRET=1 before any kernel is imported")


@triton.jit
def _narrow_kernel(source, bits, target, N: tl.constexpr):
    offsets = tl.arange(0, N)
    x, drawn = tl.load(source + offsets), tl.load(bits + offsets).to(tl.uint32)
    tl.store(target + offsets, optimizer_parts.narrow_stochastic(x, drawn, target.dtype.element_ty))


@triton.jit
def _bits_kernel(target, seed, tensor, first, N: tl.constexpr):
    offsets = tl.arange(0, N)
    drawn = optimizer_parts.random_bits(tl.load(seed), tl.load(tensor), tl.load(first), offsets)
    tl.store(target + offsets, drawn.to(tl.int64))


@triton.jit
def _factor_kernel(target, scale, clip, found_inf):
    tl.store(target, optimizer_parts.gradient_factor(scale, clip))
    if optimizer_parts.skipped(found_inf):
        return
    tl.store(target + 1, 1.0)


@triton.jit
def _total_kernel(partials, count, target, PARTIALS: tl.constexpr):
    tl.store(target, optimizer_parts.total(partials, count, PARTIALS))


def _narrowed(x: Tensor, bits: Tensor, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    target = torch.empty(x.shape, dtype=dtype)
    _narrow_kernel[(1,)](x, bits, target, N=x.numel())
    return target


def _patterns() -> Tensor:
    """2**14 float32 bit patterns, extremes and NaNs whose payload would carry over among them."""
    patterns = torch.randint(-(2**31), 2**31, (2**14,), generator=torch.Generator().manual_seed(0), dtype=torch.int64)
    patterns[:6] = torch.tensor([0x7F800000, -0x00800000, 0x7FFFFFFF, 0x7F800001, -1, 0x7F7FFFFF])
    return patterns.to(torch.int32).view(torch.float32)


def test_no_bits_truncate_and_all_bits_go_away_from_zero() -> None:
    x = _patterns()
    down = _narrowed(x, torch.zeros(x.shape, dtype=torch.int32))
    up = _narrowed(x, torch.full(x.shape, -1, dtype=torch.int32))
    nan = x.isnan()
    assert nan.sum() > 3 and down.isnan().equal(nan) and up.isnan().equal(nan)
    words = x.view(torch.int32)
    exact = (words & 0xFFFF) == 0
    assert torch.equal(down.view(torch.int16)[~nan], (words >> 16).to(torch.int16)[~nan])
    assert torch.equal(up[exact & ~nan], down[exact & ~nan])
    inexact = ~exact & ~nan
    assert torch.equal(up.view(torch.int16)[inexact], down.view(torch.int16)[inexact] + 1)


def test_the_share_that_rounds_up_is_the_dropped_fraction() -> None:
    """Exactly: over all 2**16 words that 16 bits can form."""
    bits = torch.arange(2**16, dtype=torch.int32)
    for number in (1.1, -3.14159, 1e-30):
        x = torch.full((2**16,), number)
        assert _narrowed(x, bits).double().mean() == x[0].double()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_other_dtypes_round_to_nearest(dtype: torch.dtype) -> None:
    x = torch.randn(256)
    assert torch.equal(_narrowed(x, torch.full((256,), -1, dtype=torch.int32), dtype), x.to(dtype))


def _bits(seed: int = 1, tensor: int = 0, first: int = 0, count: int = 2**14) -> Tensor:
    target = torch.empty(count, dtype=torch.int64)
    scalars = torch.tensor([seed], dtype=torch.int32), torch.tensor([tensor]), torch.tensor([first])
    _bits_kernel[(1,)](target, *scalars, N=count)
    return target


def test_each_bit_is_one_half_of_the_time_and_none_follows_another() -> None:
    drawn = _bits()
    planes = torch.stack([(drawn >> bit) & 1 for bit in range(32)]).double() * 2 - 1
    correlations = planes @ planes.T / drawn.numel()
    correlations.fill_diagonal_(0)
    limit = 5 / math.sqrt(drawn.numel())
    assert planes.mean(1).abs().max() < limit
    assert correlations.abs().max() < limit


@pytest.mark.parametrize("other", [{"seed": 2}, {"tensor": 1}, {"first": 2**14}, {"first": 2**33}, {"seed": 2**31 - 1}])
def test_seeds_tensors_and_places_draw_apart(other: dict[str, int]) -> None:
    a, b = (((drawn & 0xFFFF).double() - 32767.5) / 2**16 for drawn in (_bits(), _bits(**other)))
    assert abs((a * b).mean()) * 12 < 5 / math.sqrt(a.numel())


def test_bits_do_not_depend_on_the_block() -> None:
    whole = _bits(count=1024)
    assert torch.equal(whole, torch.cat([_bits(first=first, count=256) for first in range(0, 1024, 256)]))


@pytest.mark.parametrize(("scale", "clip", "factor"), [(None, None, 1.0), (8.0, None, 0.125), (8.0, 0.5, 0.0625)])
def test_gradient_factor(scale: float | None, clip: float | None, factor: float) -> None:
    target = torch.zeros(2)
    _factor_kernel[(1,)](target, *(None if each is None else torch.tensor(each) for each in (scale, clip)), None)
    assert target.tolist() == [factor, 1.0]


@pytest.mark.parametrize(("found_inf", "went_on"), [(0.0, 1.0), (1.0, 0.0), (float("nan"), 0.0)])
def test_a_flag_skips(found_inf: float, went_on: float) -> None:
    target = torch.zeros(2)
    _factor_kernel[(1,)](target, None, None, torch.tensor(found_inf))
    assert target[1] == went_on


def test_total_adds_what_counts_and_nothing_behind_it() -> None:
    partials = torch.arange(1.0, 65.0)
    partials[10:] = float("nan")
    target = torch.zeros(1)
    _total_kernel[(1,)](partials, 10, target, PARTIALS=64)
    assert target.item() == 55


def test_seeds_of_any_size_fit() -> None:
    words = [optimizer_parts.seed_word(seed) for seed in (0, 1, -1, 2**31, 2**70 + 5)]
    assert words == [0, 1, 2**31 - 1, 0, 5]


def test_streaming_budget_is_what_lions_kernel_was_found_to_need() -> None:
    lion = pytest.importorskip("techniques.optimizers.lion.kernel")
    for name, size in (("float32", 4), ("bfloat16", 2)):
        own = optimizer_parts.streaming_budget([size] * 3, [size] * 2, lion.BLOCK, lion.NUM_WARPS)
        assert own == lion.MANIFESTS[name].budget


def test_only_tensors_on_a_gpu_are_launchable() -> None:
    assert not optimizer_parts.launchable([])
    assert not optimizer_parts.launchable([torch.ones(3)])
