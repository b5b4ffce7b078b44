"""x + s b by the kernel, here under the interpreter, against float64 and against torch's operators; and in models."""

from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from suite.loop.run import Run
from techniques.shared import scaled_sum
from techniques.shared.scaled_sum import Pending, ScaledSum
from tests.runs import new_run

residual_kernel = pytest.importorskip("techniques.shared.residual_kernel")  # not every platform has Triton
residual_vector_kernel = pytest.importorskip("techniques.shared.residual_vector_kernel")
portable = pytest.importorskip("suite.kernels.portable")

if not portable.INTERPRET.value:
    raise pytest.UsageError("kernel tests run on the CPU: set TRITON_INTERPRET=1 before any kernel is imported")

F32, BF16 = torch.float32, torch.bfloat16
BLOCK = residual_kernel.BLOCK


def always(*tensors: Tensor) -> bool:
    """CPU tensors go the way of a GPU's."""
    return all(each.dtype in (F32, BF16) and each.is_contiguous() for each in tensors)


def drawn(elements: int, *dtypes: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(elements)
    return [torch.randn(elements, generator=generator).to(dtype) for dtype in dtypes]


def passes(stream: Tensor, branch: Tensor, scale: Tensor, gradient: Tensor) -> dict[str, Tensor]:
    """The sum and its gradients."""
    leaves = [each.clone().requires_grad_() for each in (stream, branch, scale)]
    output = ScaledSum.apply(*leaves)
    gradients = torch.autograd.grad(output, leaves, gradient.to(output.dtype))
    return dict(zip(("output", "stream", "branch", "scale"), (output.detach(), *gradients)))


@pytest.mark.parametrize("dtypes", [(F32, F32), (BF16, BF16), (F32, BF16), (BF16, F32)])
@pytest.mark.parametrize("elements", [1, 15, BLOCK - 1, BLOCK, BLOCK + 77, 3 * BLOCK])
def test_both_passes_are_the_formula_in_float64(dtypes: tuple[torch.dtype, torch.dtype], elements: int) -> None:
    x, b, dy = drawn(elements, *dtypes, F32)
    s = torch.tensor([0.7])
    dy = dy.to(torch.promote_types(*dtypes))
    ours = passes(x, b, s, dy)
    exact = {
        "output": x.double() + s.double() * b.double(),
        "stream": dy.double(),
        "branch": s.double() * dy.double(),
        "scale": (dy.double() * b.double()).sum().view(1),
    }
    assert {name: each.dtype for name, each in ours.items()} == {
        "output": torch.promote_types(*dtypes),
        "stream": dtypes[0],
        "branch": dtypes[1],
        "scale": F32,
    }
    for name, each in ours.items():
        rtol, atol = (4 * torch.finfo(each.dtype).eps, 1e-6) if name != "scale" else (1e-5, 1e-6 * elements**0.5)
        torch.testing.assert_close(each.double(), exact[name], rtol=rtol, atol=atol)


def test_in_float32_sum_and_gradient_are_torchs_to_the_bit() -> None:
    x, b, dy = drawn(BLOCK + 5, F32, F32, F32)
    s = torch.tensor([0.3])
    ours = passes(x, b, s, dy)
    assert torch.equal(ours["output"], x + s * b) and torch.equal(ours["branch"], s * dy)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 3), st.integers(1, 40), st.integers(1, 40), st.floats(-2, 2))
def test_any_shape_and_any_number(batch: int, tokens: int, width: int, value: float) -> None:
    x, b, dy = (each.view(batch, tokens, width) for each in drawn(batch * tokens * width, F32, F32, F32))
    s = torch.tensor([value])
    ours = passes(x, b, s, dy)
    torch.testing.assert_close(ours["output"], x + s * b, rtol=0, atol=0)
    torch.testing.assert_close(ours["scale"], (dy * b).sum().view(1), rtol=1e-4, atol=1e-4)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 3), st.integers(1, 40), st.sampled_from([2, 5, 64, 65, 130]))
def test_a_vector_scales_each_column(batch: int, tokens: int, width: int) -> None:
    x, b, dy = (each.view(batch, tokens, width) for each in drawn(batch * tokens * width, F32, F32, F32))
    (s,) = drawn(width, F32)
    ours = passes(x, b, s, dy)
    assert torch.equal(ours["output"], x + s * b) and torch.equal(ours["branch"], s * dy)
    torch.testing.assert_close(ours["scale"], (dy.double() * b.double()).sum((0, 1)).float(), rtol=1e-4, atol=1e-4)


def test_no_elements_launch_nothing() -> None:
    x, b = torch.empty(0), torch.empty(0)
    ours = passes(x, b, torch.ones(1), x)
    assert ours["output"].shape == (0,) and ours["scale"].item() == 0


def test_what_is_not_finite_spoils_what_it_spoils_in_torch() -> None:
    x, b, dy = drawn(40, F32, F32, F32)
    b[3], dy[7], x[9] = float("nan"), float("inf"), float("-inf")
    ours = passes(x, b, torch.tensor([0.0]), dy)
    torch.testing.assert_close(ours["output"], x + 0.0 * b, equal_nan=True)
    torch.testing.assert_close(ours["branch"], 0.0 * dy, equal_nan=True)
    assert ours["scale"].isnan()


def test_a_second_derivative_is_refused_and_not_wrong() -> None:
    x, b, s = (each.requires_grad_() for each in (*drawn(8, F32, F32), torch.ones(1)))
    (gradient,) = torch.autograd.grad(ScaledSum.apply(x, b, s).square().sum(), b, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


# a pending product ----------------------------------------------------------------------------------------------------


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """As on a GPU; the elements of each launch forth."""
    seen: list[int] = []

    def counted(forth: Any, stream: Tensor, branch: Tensor, scale: Tensor) -> Tensor:
        seen.append(stream.numel())
        summed: Tensor = forth(stream, branch, scale)
        return summed

    for kernel in (residual_kernel, residual_vector_kernel):
        monkeypatch.setattr(kernel, "scaled_sum", partial(counted, kernel.scaled_sum))
    monkeypatch.setattr(scaled_sum, "launchable", always)
    return seen


def test_a_sum_from_either_side_launches_once(launches: list[int]) -> None:
    x, b = drawn(30, F32, F32)
    s = torch.tensor([0.5])
    for added in (x + Pending(b, s), Pending(b, s) + x, torch.add(x, Pending(b, s)), x.add(Pending(b, s))):  # type: ignore[call-overload]
        assert torch.equal(added, x + 0.5 * b)
    assert launches == [30] * 4


def test_a_transposed_stream_is_put_in_order(launches: list[int]) -> None:
    x, b = drawn(30, F32, F32)
    stream, branch, s = x.view(5, 6).t(), b.view(6, 5), torch.tensor([0.5])
    assert torch.equal(stream + Pending(branch, s), stream + 0.5 * branch)
    assert launches == [30]


def test_dropout_passes_it_on_and_drops_the_same(launches: list[int]) -> None:
    x, b = drawn(300, F32, F32)
    s = torch.tensor([0.5])
    torch.manual_seed(0)
    ours = x + nn.Dropout(0.3)(Pending(b, s))
    torch.manual_seed(0)
    torch.testing.assert_close(ours, x + F.dropout(s * b, 0.3), rtol=1e-6, atol=1e-6)
    assert launches == [300]


USES = [
    lambda p: p.sum(),
    lambda p: F.gelu(p),
    lambda p: p.view(5, 6),
    lambda p: 2 * p[3:] - 1,
    lambda p: -p,
    lambda p: p + 1.0,
    lambda p: p + torch.ones(5, 30),
    lambda p: torch.stack([p, p]),
    lambda p: p.shape,
]


@pytest.mark.parametrize("use", USES)
def test_all_else_sees_the_product(launches: list[int], use: Any) -> None:
    (b,) = drawn(30, F32)
    s = torch.tensor([0.5])
    ours, expected = use(Pending(b, s)), use(s * b)
    assert torch.equal(ours, expected) if isinstance(ours, Tensor) else ours == expected
    assert not launches


@pytest.mark.parametrize(
    ("baseline", "technique"), [("bert", "layerscale"), ("gpt", "rezero"), ("vit", "layerscale"), ("mae", "fixup")]
)
def test_models_train_with_the_kernel_as_without(
    baseline: str, technique: str, launches: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    with_kernel, losses = trained(baseline, technique)
    blocks = sum(len(stack.blocks) for stack in with_kernel.anatomy.stacks)
    assert len(launches) == 4 * 2 * blocks  # every branch in every step
    monkeypatch.setattr(scaled_sum, "launchable", lambda *tensors: False)
    without, expected = trained(baseline, technique)
    assert losses == pytest.approx(expected, rel=2e-5)
    ours, theirs = (dict(run.model.named_parameters()) for run in (with_kernel, without))
    for path in (path for path in ours if path.endswith(".scale")):
        torch.testing.assert_close(ours[path], theirs[path], rtol=1e-3, atol=2e-5)


def trained(baseline: str, technique: str) -> tuple[Run, list[float]]:
    """The run, and its losses: keys' biases, whose true gradients are 0, move by roundings under Adam."""
    run = new_run(baseline, technique, size="pico", recipe="classic", steps=8)
    return run, run.train(4)
