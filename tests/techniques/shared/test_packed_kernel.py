"""Packing and unpacking by the kernels, here under the interpreter, against torch's operators; and their noise."""

import math

import pytest
import torch
from torch import Tensor

from techniques.shared import packed
from techniques.shared.packed import GROUP, WIDTHS, Packed, numbers_of, packed_bytes

kernel = pytest.importorskip("techniques.shared.packed_kernel")  # not every platform has Triton
portable = pytest.importorskip("suite.kernels.portable")

if not portable.INTERPRET.value:
    raise pytest.UsageError("kernel tests run on the CPU: set TRITON_INTERPRET=1 before any kernel is imported")

every_width = pytest.mark.parametrize("bits", WIDTHS)


def drawn(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return (torch.randn(*shape, generator=torch.Generator().manual_seed(0)) * 3 + 5).to(dtype)


@every_width
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "length"), [(1, 1), (3, 7), (2, 255), (3, GROUP), (2, 5 * GROUP), (3, 4 * GROUP + 9)])
def test_rows_of_any_length_are_those_of_torchs_operators(
    bits: int, dtype: torch.dtype, rows: int, length: int
) -> None:
    x = drawn(rows, length, dtype=dtype)
    codes, least, steps = kernel.pack(x, bits, 3)
    _, least_there, steps_there = packed.codes_of(x, bits, torch.Generator())
    assert sum(each.nbytes for each in (codes, least, steps)) == packed_bytes(rows, length, bits)
    assert torch.equal(least, least_there)
    torch.testing.assert_close(steps, steps_there, rtol=2**-7, atol=0)  # where a range is a hair from a bfloat16
    back = kernel.unpack(codes, least, steps, bits, length, dtype)
    assert torch.equal(back, numbers_of(Packed(codes, least, steps, bits, length, dtype)).to(dtype))
    step = steps.float().repeat_interleave(GROUP, 1)[:, :length]
    assert ((back.float() - x.float()).abs() <= step + 2**-7 * back.float().abs()).all()


def test_each_number_is_right_on_average_and_its_neighbours_err_otherwise() -> None:
    bits, copies = 2, 200
    x = drawn(1, GROUP)
    errors, step = [], torch.zeros(())
    for seed in (1, 2):
        codes, least, steps = kernel.pack(x.expand(copies, -1).contiguous(), bits, seed)
        errors.append(kernel.unpack(codes, least, steps, bits, GROUP, torch.float32).double() - x.double())
        share, step = ((x - least[0].float()) / steps[0].float()).frac()[0].double(), steps[0, 0].double()
    assert not torch.equal(*errors)
    every = torch.cat(errors)
    between = (share > 0.02) & (share < 0.98)
    z = (every.mean(0) / ((share * (1 - share)).sqrt() * step) * math.sqrt(len(every)))[between]
    assert z.abs().max() < 5 and 0.6 < z.square().mean() < 1.4
    pairs = torch.corrcoef(every[:, between].T).fill_diagonal_(0)
    assert pairs.abs().max() < 6 / math.sqrt(len(every))
    assert 0.8 < pairs.square().sum().item() * len(every) / (len(pairs) * (len(pairs) - 1)) < 1.2


def test_no_rows_launch_nothing() -> None:
    codes, least, steps = kernel.pack(torch.empty(0, 512), 2, 0)
    assert codes.shape == (0, 128) and least.shape == steps.shape == (0, 2)
    assert kernel.unpack(codes, least, steps, 2, 512, torch.float32).shape == (0, 512)


def test_packing_by_kernel_is_packing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The seed follows from the run's generator."""
    monkeypatch.setattr(packed, "launchable", lambda rows, dtype=None: True)
    x = drawn(2, 700)
    one, same, other = (packed.pack(x, 4, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert torch.equal(one.codes, same.codes) and not torch.equal(one.codes, other.codes)
    assert (packed.unpack(one) - x).abs().max() <= 1.01 * one.steps.float().max()
