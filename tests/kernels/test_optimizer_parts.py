"""Device functions that optimizers' kernels share: rounding with random bits, the bits, scalars, partial sums."""

import math

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from suite.kernels import multi_tensor, optimizer_parts
from suite.kernels.manifest import Budget


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
def _factor_kernel(target, clip, found_inf):
    tl.store(target, optimizer_parts.gradient_factor(clip))
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


@pytest.mark.parametrize(("clip", "factor"), [(None, 1.0), (0.125, 0.125)])
def test_gradient_factor(clip: float | None, factor: float) -> None:
    target = torch.zeros(2)
    _factor_kernel[(1,)](target, None if clip is None else torch.tensor(clip), None)
    assert target.tolist() == [factor, 1.0]


@pytest.mark.parametrize(("found_inf", "went_on"), [(0.0, 1.0), (1.0, 0.0), (float("nan"), 0.0)])
def test_a_flag_skips(found_inf: float, went_on: float) -> None:
    target = torch.zeros(2)
    _factor_kernel[(1,)](target, None, torch.tensor(found_inf))
    assert target[1] == went_on


def test_total_adds_what_counts_and_nothing_behind_it() -> None:
    partials = torch.arange(1.0, 65.0)
    partials[10:] = float("nan")
    target = torch.zeros(1)
    _total_kernel[(1,)](partials, 10, target, PARTIALS=64)
    assert target.item() == 55


def test_seeds_of_any_size_fit() -> None:
    words = [optimizer_parts.seed_word(seed) for seed in (0, 1, -1, 2**31, 2**70 + 5, None)]
    assert words == [0, 1, 2**31 - 1, 0, 5, None]


def test_streaming_budget_is_what_lions_kernel_was_found_to_need() -> None:
    assert optimizer_parts.streaming_budget([4] * 3, [4] * 2) == Budget(64, 0, 0, 12, 8, 7.8 * 20)
    assert optimizer_parts.streaming_budget([2, 4, 2], [2, 4]) == Budget(64, 0, 8192, 8, 6, 7.8 * 14)


@triton.jit(do_not_specialize=["tensors", "seed"])
def _halve_kernel(
    table, blocks, tensors, seed, clip, factor, DTYPES: tl.constexpr, BLOCK: tl.constexpr, PIECE: tl.constexpr
):
    """The first list becomes ``factor`` times the last, which is read through a function of two lists of three."""
    multi_tensor.over_block(_halve, (seed, factor), table, blocks, tensors, (0, 2), DTYPES, BLOCK, PIECE)


@triton.jit
def _halve(pointers, place, seed, factor):
    first, last = pointers
    optimizer_parts.store(first, place, factor * optimizer_parts.load(last, place), seed)


def _columns(dtype: torch.dtype = torch.float32) -> list[list[Tensor]]:
    sizes = (0, 3, 2048, 5000)
    generator = torch.Generator().manual_seed(0)
    return [[torch.randn(size, generator=generator).to(dtype) for size in sizes] for _ in range(3)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_step_visits_the_lists_that_a_kernel_names_and_autograd_sees_it(dtype: torch.dtype) -> None:
    first, second, last = _columns(dtype)
    kept, versions = [tensor.clone() for tensor in second], [tensor._version for tensor in (*first, *second, *last)]
    optimizer_parts.step(
        _halve_kernel, optimizer_parts.launch_tables(), (first, second), last, {"factor": 1}, seed=None, clip=None
    )
    assert all(map(torch.equal, first, last)) and all(map(torch.equal, second, kept))
    assert [tensor._version - old for tensor, old in zip((*first, *second, *last), versions)] == [1] * 8 + [0] * 4


def test_states_of_two_dtypes_and_scalars_elsewhere_are_refused() -> None:
    first, second, last = _columns()
    tables = optimizer_parts.launch_tables()
    with pytest.raises(TypeError, match="give both one dtype"):
        optimizer_parts.groups(tables, (first, second, [tensor.bfloat16() for tensor in second]), (last,))
    with pytest.raises(TypeError, match=r"knows no torch.float64: give float32 or bfloat16"):
        optimizer_parts.groups(tables, (first,), ([tensor.double() for tensor in last],))
    for scalar in (torch.ones(2), torch.tensor(1), torch.ones((), device="meta")):
        with pytest.raises(ValueError, match="give one float32 on cpu"):
            optimizer_parts.groups(tables, (first,), (last,), [None, scalar])


def test_a_manifest_describes_the_compilation_that_a_launch_makes() -> None:
    dtypes = (torch.bfloat16, torch.float32, torch.float32)
    plain = optimizer_parts.manifest(_halve_kernel, dtypes, read=(2,), written=(0,))
    assert plain.signature == {"table": "*i64", "blocks": "*i64", "tensors": "i32", "factor": "fp32"}
    assert plain.constants == {
        "DTYPES": (tl.bfloat16, tl.float32, tl.float32),
        "BLOCK": 2048,
        "PIECE": 512,
        "seed": None,
        "clip": None,
    }
    assert plain.aligned == ("table", "blocks")
    assert plain.budget == optimizer_parts.streaming_budget([4], [2])
    full = optimizer_parts.manifest(_halve_kernel, dtypes, read=(2,), written=(0,), scaled=True, seeded=True, sums=2)
    assert full.signature == {**plain.signature, "seed": "*i32", "clip": "*fp32"}
    assert full.constants.keys() == {"DTYPES", "BLOCK", "PIECE"}
    assert full.budget.shared_bytes == 8192  # the lists of two widths need more than the sums
    assert optimizer_parts.manifest(_halve_kernel, dtypes, read=(2,), written=(), sums=1).budget.shared_bytes == 1040


def test_only_tensors_on_a_gpu_are_launchable() -> None:
    assert not optimizer_parts.launchable([])
    assert not optimizer_parts.launchable([torch.ones(3)])
