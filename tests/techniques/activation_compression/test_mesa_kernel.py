"""Mesa's codes by the kernel, here under the interpreter, against float64, and in models."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from techniques.activation_compression.mesa.codes import LEVELS, decode, ranges, scales
from tests.runs import new_run

kernel = pytest.importorskip("techniques.activation_compression.mesa.codes_kernel")  # not every platform has Triton
portable = pytest.importorskip("suite.kernels.portable")

if not portable.INTERPRET.value:
    raise pytest.UsageError("kernel tests run on the CPU: set TRITON_INTERPRET=1 before any kernel is imported")

F32, BF16 = torch.float32, torch.bfloat16
BLOCK = kernel.BLOCK


def drawn(*shape: int, dtype: torch.dtype = F32) -> Tensor:
    """Each group has a place and a range of its own."""
    generator = torch.Generator().manual_seed(shape[0])
    groups = torch.arange(shape[1]).view(1, -1, 1)
    return (torch.randn(shape, generator=generator) * (1 + groups) + 10 * groups).to(dtype)


def coded(x: Tensor, clip: Tensor, seed: int = 1) -> Tensor:
    codes: Tensor = kernel.encode(x, torch.stack([clip[0], scales(clip)]), torch.tensor([seed], dtype=torch.int32))
    return codes


def back(codes: Tensor, clip: Tensor, dtype: torch.dtype = F32) -> Tensor:
    x: Tensor = kernel.decode(codes, torch.stack([clip[0], clip[1] / LEVELS]), dtype)
    return x


@settings(max_examples=15, deadline=None)
@given(
    st.integers(1, 30),
    st.sampled_from([1, 2, 3, 12]),
    st.sampled_from([1, 5, 16, 64, 700]),
    st.sampled_from([F32, BF16]),
)
def test_codes_are_one_of_the_two_next_to_the_formula_in_float64(
    outer: int, groups: int, inner: int, dtype: torch.dtype
) -> None:
    x = drawn(outer, groups, inner, dtype=dtype)
    clip = ranges(x) * torch.tensor([[1.0], [0.8]])  # the largest are clipped
    exact = LEVELS * (x.double() - clip[0].double()[:, None]) / clip[1].double()[:, None]
    exact = torch.where(clip[1].double()[:, None] > 0, exact, 0.0).clamp(0, LEVELS)
    codes = coded(x, clip)
    assert codes.dtype == torch.uint8 and codes.shape == x.shape
    assert bool(((codes.double() - exact).abs() < 1 + 1e-3).all())
    expected = decode(codes, clip)
    torch.testing.assert_close(back(codes, clip), expected, rtol=1e-6, atol=1e-6)
    assert torch.equal(back(codes, clip, BF16), back(codes, clip).bfloat16())


def test_rounding_has_no_bias_and_differs_from_seed_to_seed_and_element_to_element() -> None:
    x = torch.full((BLOCK + 100, 1, 1), 100.3 / LEVELS)
    clip = torch.tensor([[0.0], [1.0]])
    codes = torch.stack([coded(x, clip, seed).flatten().double() for seed in range(20)])
    assert set(codes.unique().tolist()) == {100.0, 101.0}
    deviation = (0.3 * 0.7 / codes.numel()) ** 0.5
    assert abs(codes.mean().item() - 100.3) < 4 * deviation
    assert not torch.equal(codes[0], codes[1]) and len(codes[:, :50].T.unique(dim=0)) > 40


def test_a_group_without_a_range_comes_back_to_the_bit() -> None:
    x = torch.full((9, 2, 5), 0.7)
    clip = ranges(x)
    assert torch.equal(back(coded(x, clip), clip), x)


def test_what_is_not_finite_spoils_its_group_alone() -> None:
    for value in (float("nan"), float("inf"), float("-inf")):
        x = drawn(7, 3, 4)
        x[2, 1, 3] = value
        restored = back(coded(x, ranges(x)), ranges(x))
        assert bool(restored[:, 1].isnan().all()) and bool(restored[:, [0, 2]].isfinite().all())


def test_no_elements_launch_nothing() -> None:
    assert coded(torch.empty(1, 1, 0), torch.zeros(2, 1)).shape == (1, 1, 0)


def test_a_model_trains_with_the_kernels_as_without(monkeypatch: pytest.MonkeyPatch) -> None:
    """In bfloat16; beside fused layers it is in float32."""
    runs = []
    for launched in (True, False):
        for module in ("technique", "codes", "fused"):
            monkeypatch.setattr(
                f"techniques.activation_compression.mesa.{module}.launchable",
                lambda x, launched=launched: launched and x.dtype in (F32, BF16) and x.is_contiguous(),
            )
        run = new_run("vit", "mesa", size="pico", recipe="modern", steps=8)
        runs.append(run.train(3))
    assert runs[0] == pytest.approx(runs[1], rel=1e-3)
    assert runs[0][0] == runs[1][0] and runs[0] != runs[1]
