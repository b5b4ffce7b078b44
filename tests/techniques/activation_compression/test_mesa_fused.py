"""LayerNorm, GELU and softmax with their codes, under the interpreter: outputs against float64, codes to the bit
against those of a pass of their own, ranges, and gradients against float64 at what the codes stand for."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from techniques.activation_compression.mesa.codes import LEVELS, decode, ranges, scales
from tests.runs import new_run

fused = pytest.importorskip("techniques.activation_compression.mesa.fused_kernel")  # not every platform has Triton
codes_kernel = pytest.importorskip("techniques.activation_compression.mesa.codes_kernel")

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SEED = torch.tensor([5], dtype=torch.int32)
ROUNDINGS = 16  # of float32, of a value's own size or its row's: sums are trees of at most 14 levels
kinds = st.sampled_from(DTYPES)


def drawn(*shape: int, dtype: torch.dtype, scale: float = 2.0) -> Tensor:
    return (torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))) * scale).to(dtype)


def forth(clip: Tensor) -> Tensor:
    return torch.stack([clip[0], scales(clip)])


def back(clip: Tensor) -> Tensor:
    return torch.stack([clip[0], clip[1] / LEVELS])


def close(ours: Tensor, exact: Tensor, size: Tensor | float = 0.0, roundings: int = ROUNDINGS) -> None:
    """Within one rounding to the dtype and so many of float32, relative to the value, and to ``size``."""
    least = torch.finfo(ours.dtype).smallest_normal
    own = torch.finfo(ours.dtype).eps * (exact.abs() + least)
    bound = own + roundings * torch.finfo(torch.float32).eps * (exact.abs() + size)
    assert bool(((ours.double() - exact).abs() <= bound).all())


def gradients(layer: Callable[..., Tensor], dy: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
    leaves = [each.double().requires_grad_() for each in inputs]
    return torch.autograd.grad(layer(*leaves), leaves, dy.double())


@settings(max_examples=14, deadline=None)
@given(
    st.integers(1, 40),
    st.sampled_from([1, 2, 3, 12]),
    st.sampled_from([1, 5, 64, 300]),
    kinds,
    st.booleans(),
    st.sampled_from([0.1, 2.0, 30.0]),
)
def test_gelu(outer: int, groups: int, inner: int, dtype: torch.dtype, tanh: bool, scale: float) -> None:
    x = drawn(outer, groups, inner, dtype=dtype, scale=scale)
    clip = ranges(x) * torch.tensor([[1.0], [0.8]])  # the largest are clipped
    y, codes, now = fused.gelu(x, tuple(x.shape), forth(clip), SEED, tanh)
    layer = lambda v: F.gelu(v, approximate="tanh" if tanh else "none")  # noqa: E731
    close(y, layer(x.double()), x.double().abs())
    assert torch.equal(codes, codes_kernel.encode(x, forth(clip), SEED)) and torch.equal(now, ranges(x.float()))
    dy = drawn(outer, groups, inner, dtype=dtype)
    (exact,) = gradients(layer, dy, decode(codes, clip))
    # a rounding of the tanh's argument, 0.8 x^3, turns it by as much
    at = decode(codes, clip).double().abs()
    close(fused.gelu_back(codes, dy, tuple(x.shape), back(clip), tanh), exact, dy.double().abs() * (1 + at) ** 2)


@settings(max_examples=12, deadline=None)
@given(
    st.integers(1, 3),
    st.sampled_from([1, 2, 3]),
    st.integers(1, 9),
    st.sampled_from([1, 7, 64, 130, 2500]),
    kinds,
    st.sampled_from([0.1, 2.0, 1000.0]),
)
def test_softmax(outer: int, groups: int, rows: int, length: int, dtype: torch.dtype, scale: float) -> None:
    x = drawn(outer, groups, rows, length, dtype=dtype, scale=scale)
    x[..., length // 2 + 1 :] = -torch.inf  # as masks leave it
    sizes = outer, groups, rows * length
    clip = torch.stack([torch.zeros(groups), torch.linspace(0.5, 1.0, groups)])
    y, codes, now = fused.softmax(x, sizes, forth(clip), SEED)
    top = x.double().amax(-1, keepdim=True)
    close(y, x.double().softmax(-1), x.double().softmax(-1) * (top - x.double()).nan_to_num(posinf=0.0))
    grouped = y.view(sizes)
    assert torch.equal(codes.view(sizes), codes_kernel.encode(grouped, forth(clip), SEED))
    assert torch.equal(now, ranges(grouped.float()))
    dy = drawn(*x.shape, dtype=dtype)
    share = decode(codes.view(sizes), clip).double().view(x.shape)
    met = (share * dy.double()).sum(-1, keepdim=True)
    size = share * (dy.double().abs() + (share * dy.double().abs()).sum(-1, keepdim=True))
    close(fused.softmax_back(codes, dy, sizes, back(clip)), share * (dy.double() - met), size)


@settings(max_examples=12, deadline=None)
@given(
    st.integers(1, 70),
    st.sampled_from([1, 3, 4]),
    st.sampled_from([2, 5, 64, 90]),
    kinds,
    st.sampled_from([0.01, 2.0, 1000.0]),
)
def test_layer_norm(rows: int, groups: int, inner: int, dtype: torch.dtype, scale: float) -> None:
    width = groups * inner
    x, weight, bias = drawn(rows, width, dtype=dtype, scale=scale), torch.rand(width) + 0.5, torch.randn(width)
    sizes = rows, groups, inner
    clip = ranges(x.view(sizes)) * torch.tensor([[1.0], [0.8]])
    epsilon = 1e-5
    y, means, inverse, codes, now = fused.layer_norm(x, weight, bias, epsilon, groups, forth(clip), SEED, dtype)
    layer = lambda v, w, b: F.layer_norm(v, (width,), w, b, epsilon)  # noqa: E731
    exact = x.double()
    mean, deviation = exact.mean(-1, keepdim=True), (exact.var(-1, correction=0, keepdim=True) + epsilon).sqrt()
    largest = exact.abs().amax(-1, keepdim=True) / deviation  # the mean's roundings, in units of the output
    close(y, layer(exact, weight.double(), bias.double()), bias.double().abs() + weight.double() * (1 + largest))
    assert torch.equal(codes.view(sizes), codes_kernel.encode(x.view(sizes), forth(clip), SEED))
    assert torch.equal(now, ranges(x.float().view(sizes)))
    close(means, mean[:, 0], exact.abs().amax(-1))
    dy = drawn(rows, width + 1, dtype=dtype)[:, 1:].contiguous()
    value = decode(codes.view(sizes), clip).double().view(rows, width)
    normal, d = (value - mean) / deviation, dy.double() * weight.double()
    of_x = (d - d.mean(-1, keepdim=True) - normal * (d * normal).mean(-1, keepdim=True)) / deviation
    got = fused.layer_norm_back(codes, dy, weight, means, inverse, groups, back(clip), dtype)
    size = d.abs().amax(-1, keepdim=True) * (1 + normal.abs().amax(-1, keepdim=True)) ** 2 / deviation * (1 + largest)
    close(got[0], of_x, size)
    close(got[1], (dy.double() * normal).sum(0), (dy.double().abs() * (normal.abs() + largest)).sum(0))
    close(got[2], dy.double().sum(0), dy.double().abs().sum(0))


def test_what_is_not_finite_spoils_the_output() -> None:
    for value in (torch.nan, torch.inf):
        x = drawn(3, 2, 8, dtype=torch.float32)
        x[1, 1, 3] = value
        clip = torch.tensor([[-1.0, -1.0], [2.0, 2.0]])
        y, _, now = fused.gelu(x, (3, 2, 8), forth(clip), SEED, False)
        assert not y[1, 1, 3].isfinite() and int((~y.isfinite()).sum()) == 1 and bool(now[:, 0].isfinite().all())
        assert bool(now[:, 1].isfinite().all()) == (value != torch.inf)  # NaN is of no range
        normed, *_ = fused.layer_norm(
            x.view(3, 16), torch.ones(16), torch.zeros(16), 1e-5, 2, forth(clip), SEED, x.dtype
        )
        assert bool(normed[1].isnan().all()) and bool(normed[[0, 2]].isfinite().all())
        shares, *_ = fused.softmax(x, (1, 1, 48), forth(clip[:, :1]), SEED)
        assert int(shares.isnan().sum()) == 8 and bool(shares[1, 1].isnan().all())


def test_a_model_trains_with_fused_layers_as_without(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the second step on, and under the names that hooks give: a run may go on elsewhere."""
    called: list[str] = []

    def counted(name: str, original: Callable[..., object]) -> Callable[..., object]:
        def count(*arguments: object) -> object:
            called.append(name)
            return original(*arguments)

        return count

    for name in ("gelu", "softmax", "layer_norm"):
        monkeypatch.setattr(fused, name, counted(name, getattr(fused, name)))
    runs = []
    for launched in (True, False):
        for module in ("technique", "codes", "fused"):
            monkeypatch.setattr(
                f"techniques.activation_compression.mesa.{module}.launchable",
                lambda x, launched=launched: launched and x.is_contiguous(),
            )
        run = new_run("vit", "mesa", size="pico", recipe="classic", steps=8)
        run.train(1)
        assert not called
        losses = run.train(2)
        (own,) = run.technique.techniques.values()  # type: ignore[attr-defined]
        runs.append((losses, {name: each.shape for name, each in own.statistics.items()}))
        if launched:
            assert {name: called.count(name) for name in set(called)} == {
                "gelu": 2 * run.anatomy.depth,
                "softmax": 2 * run.anatomy.depth,
                "layer_norm": 4 * run.anatomy.depth,
            }
            called.clear()
    assert not called and runs[0][1] == runs[1][1]
    assert runs[0][0] == pytest.approx(runs[1][0], rel=1e-3) and runs[0][0] != runs[1][0]
