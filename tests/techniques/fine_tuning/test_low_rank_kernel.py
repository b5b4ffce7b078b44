"""y += s (x A^T) B^T and W += s B A by the kernels, here under the interpreter, against float64; their machine code."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from suite.kernels import gates
from suite.loop.data import generator
from techniques.fine_tuning.shared import low_rank
from tests.kernels import compiled

kernel = pytest.importorskip("techniques.fine_tuning.shared.low_rank_kernel")  # not every platform has Triton
portable = pytest.importorskip("suite.kernels.portable")

if not portable.INTERPRET.value:
    raise pytest.UsageError("kernel tests run on the CPU: set TRITON_INTERPRET=1 before any kernel is imported")

F32, BF16 = torch.float32, torch.bfloat16
TILE = kernel.TOKENS


def drawn(*shape: int, dtype: torch.dtype = F32) -> Tensor:
    return torch.randn(shape, generator=generator(*shape)).to(dtype)


def close(ours: Tensor, exact: Tensor) -> None:
    """Within a rounding of the result and some of what is summed."""
    eps = torch.finfo(ours.dtype).eps
    torch.testing.assert_close(ours.double(), exact, rtol=2 * eps, atol=16 * eps)


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize(
    ("tokens", "d_in", "d_out", "rank"), [(1, 1, 1, 1), (TILE, TILE, TILE, 16), (TILE + 3, 70, 130, 5), (7, 200, 9, 33)]
)
def test_the_update_is_the_formula_in_float64(
    tokens: int, d_in: int, d_out: int, rank: int, dtype: torch.dtype
) -> None:
    x, a, b = drawn(tokens, d_in, dtype=dtype), drawn(rank, d_in, dtype=dtype) / 8, drawn(d_out, rank, dtype=dtype) / 8
    y = drawn(tokens, d_out, dtype=dtype)
    before = y.double()
    low = kernel.add_update(y, x, a, b, 2.0)
    assert low.dtype == dtype
    close(low, x.double() @ a.double().T)
    close(y, before + 2.0 * low.double() @ b.double().T)  # low is rounded, as torch's product is


def test_only_the_columns_of_a_view_change() -> None:
    y, x = drawn(10, 96), drawn(10, 24)
    before, a, b = y.clone(), drawn(4, 24), drawn(32, 4)
    kernel.add_update(y[:, 64:], x, a, b, 0.5)
    assert torch.equal(y[:, :64], before[:, :64])
    close(y[:, 64:], before[:, 64:].double() + 0.5 * (x.double() @ a.double().T) @ b.double().T)


def test_no_token_changes_nothing() -> None:
    y = drawn(0, 8)
    assert kernel.add_update(y, drawn(0, 6), drawn(2, 6), drawn(8, 2), 1.0).shape == (0, 2)


def test_what_is_not_finite_spoils_its_own_token_alone() -> None:
    y, x, a, b = drawn(5, 8), drawn(5, 6), drawn(2, 6), drawn(8, 2)
    x[3, 2] = float("nan")
    kernel.add_update(y, x, a, b, 1.0)
    assert y[3].isnan().all() and y[[0, 1, 2, 4]].isfinite().all()


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("transposed", [False, True])
@settings(max_examples=8, deadline=None)
@given(st.integers(1, 140), st.integers(1, 140), st.integers(1, 20), st.sampled_from([-1.0, 0.5]))
def test_merging_is_the_formula_in_float64(
    dtype: torch.dtype, transposed: bool, d_out: int, d_in: int, rank: int, scale: float
) -> None:
    a, b = drawn(rank, d_in, dtype=dtype) / 4, drawn(d_out, rank, dtype=dtype) / 4
    weight = drawn(d_in, d_out, dtype=dtype).T if transposed else drawn(d_out, d_in, dtype=dtype)
    exact = weight.double() + scale * b.double() @ a.double()
    kernel.add_to_weight(weight, a, b, scale)
    close(weight, exact)


def test_a_layer_learns_with_the_kernel_as_without(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward and backward pass of the graph's node, as on a GPU."""

    def gradients() -> list[Tensor]:
        leaves = [drawn(3, 5, 12), drawn(4, 12), drawn(9, 4)]
        for leaf in leaves:
            leaf.requires_grad_()
        output = low_rank.add_update(torch.zeros(3, 5, 20), *leaves, 1.5, slice(4, 13))
        return [output.detach(), *torch.autograd.grad(output.square().sum(), leaves)]

    without = gradients()
    monkeypatch.setattr(low_rank, "_accumulate", kernel.add_update)
    for one, other in zip(gradients(), without, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-3)


def test_what_the_kernels_do_not_take() -> None:
    x, a, b = drawn(4, 8), drawn(2, 8), drawn(6, 2)
    assert kernel.launchable(x, a, b)
    assert not kernel.launchable(x.to(BF16), a, b)
    assert not kernel.launchable(x.double(), a.double(), b.double())
    assert not kernel.launchable(drawn(8, 4).T, a, b)
    assert not kernel.launchable(drawn(65, 300), drawn(300, 65))


def test_machine_code_for_hopper_is_within_budget() -> None:
    codes = compiled.machine_code("techniques.fine_tuning.shared.low_rank_kernel")
    manifests = kernel.MANIFESTS
    assert codes.keys() == manifests.keys()
    violations = {name: gates.check(code, manifests[name].budget) for name, code in codes.items()}
    assert not any(violations.values()), violations
