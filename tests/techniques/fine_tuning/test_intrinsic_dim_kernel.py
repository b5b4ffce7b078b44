"""The Walsh-Hadamard transform by the kernel, here under the interpreter, against float64 and torch's operators."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from suite.kernels import gates
from suite.loop.data import generator
from techniques.fine_tuning.intrinsic_dim import hadamard
from techniques.fine_tuning.intrinsic_dim.technique import fastfood
from tests.kernels import compiled

hadamard_kernel = pytest.importorskip("techniques.fine_tuning.intrinsic_dim.hadamard_kernel")  # needs Triton
portable = pytest.importorskip("suite.kernels.portable")

if not portable.INTERPRET.value:
    raise pytest.UsageError("kernel tests run on the CPU: set TRITON_INTERPRET=1 before any kernel is imported")


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=generator(shape[-1]))


BITS = (0, 1, 5, 10, 11, 12, 14)


@pytest.mark.parametrize(("bits", "block"), [*((bits, hadamard_kernel.BLOCK) for bits in BITS), (12, 64)])
def test_each_number_of_passes_is_the_transform(bits: int, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the bit torch's, as it adds the same pairs, and in float64 to a rounding for each of the stages. Of small
    blocks few numbers take four passes."""
    monkeypatch.setattr(hadamard_kernel, "BLOCK", block)
    x = drawn(2, 1 << bits)
    ours = hadamard_kernel.walsh_hadamard(x)
    assert torch.equal(ours, hadamard.butterflies(x))
    exact = hadamard.butterflies(x.double())
    assert (ours - exact).abs().max() <= (bits + 1) * torch.finfo(torch.float32).eps * exact.abs().max()


@given(st.integers(0, 30))
def test_passes_are_all_stages_of_tiles_that_fill_a_program(bits: int) -> None:
    plan = hadamard_kernel.passes(bits)
    assert sum(stages for stages, _, _ in plan) == bits
    done = 0
    for stages, columns, inner in plan:
        assert inner == 1 << done and inner % columns == 0
        assert columns << stages == hadamard_kernel.BLOCK or len(plan) == 1
        assert columns >= hadamard_kernel.COLUMNS or inner == 1
        done += stages


@settings(max_examples=10)
@given(st.integers(1, 3), st.integers(1, 3), st.integers(0, 6))
def test_any_leading_shape(one: int, other: int, bits: int) -> None:
    x = drawn(one, other, 1 << bits)
    assert torch.equal(hadamard_kernel.walsh_hadamard(x), hadamard.butterflies(x))


def test_no_rows_launch_nothing() -> None:
    assert hadamard_kernel.walsh_hadamard(torch.empty(0, 8)).shape == (0, 8)


def test_what_is_not_finite_spoils_all_of_its_row_and_no_other() -> None:
    x = drawn(2, 4096)
    x[0, 77] = float("nan")
    ours = hadamard_kernel.walsh_hadamard(x)
    assert ours[0].isnan().all() and torch.equal(ours[1], hadamard.butterflies(x)[1])


def test_the_input_is_left_alone() -> None:
    x = drawn(1 << 12)
    before = x.clone()
    hadamard_kernel.walsh_hadamard(x)
    assert torch.equal(x, before)


def test_fastfood_and_its_gradient_go_through_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    count, size = 20, 3000
    signs = 2.0 * torch.randint(2, (count,), generator=generator(0)) - 1
    places = (torch.randperm(4096, generator=generator(0)) % 32).int()
    gains, z, back = drawn(4096), drawn(count).requires_grad_(), drawn(size)
    results = []
    for taken in (False, True):
        monkeypatch.setattr(hadamard, "launchable", lambda x, taken=taken: taken)
        moved = fastfood(z, signs, places, gains, size)
        results.append((moved.detach(), *torch.autograd.grad(moved, z, back)))
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)


def test_machine_code_for_hopper_is_within_budget() -> None:
    codes = compiled.machine_code("techniques.fine_tuning.intrinsic_dim.hadamard_kernel")
    manifests = hadamard_kernel.MANIFESTS
    assert codes.keys() == manifests.keys()
    violations = {name: gates.check(code, manifests[name].budget) for name, code in codes.items()}
    assert not any(violations.values()), violations
