"""What the folder's kernels send and remember, under the interpreter, is what torch's operators send and remember."""

import math

import pytest
import torch
from torch import Tensor

from techniques.communication.onebit_sgd.technique import OneBitSGD
from techniques.communication.shared import sparse
from techniques.communication.shared.ranks import GatheredRanks
from techniques.communication.topk_ef.technique import TopK

portable = pytest.importorskip("suite.kernels.portable")  # not every platform has Triton
one_bit_kernel = pytest.importorskip("techniques.communication.onebit_sgd.kernel")
top_k_kernel = pytest.importorskip("techniques.communication.shared.top_k_kernel")

if not portable.INTERPRET.value:
    raise pytest.UsageError("kernel tests run on the CPU: set TRITON_INTERPRET=1 before any kernel is imported")

MODULES = ("onebit_sgd.technique", "topk_ef.technique", "shared.sparse")
SHAPES = [(), (1,), (17,), (24, 16), (5, 3), (8, 3, 2, 4), (3000, 8), (40, 40)]
MADE = {"onebit": lambda **other: OneBitSGD(**other), "topk": lambda **other: TopK(ratio=0.1, **other)}


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> None:
    """CPU tensors go the way of a GPU's."""
    for module in MODULES:
        monkeypatch.setattr(f"techniques.communication.{module}.launchable", lambda x: x.numel() > 0)


def steps(technique: GatheredRanks, shape: tuple[int, ...]) -> list[tuple[Tensor, Tensor | None]]:
    """What is sent, decoded, and what is remembered, of three steps with a memory from the first on."""
    generator, error, results = torch.Generator().manual_seed(3), None, []
    for _ in range(3):
        gradient = torch.randn(shape, generator=generator)
        kept = gradient.clone()
        message, error = technique.pack(gradient, error)
        assert torch.equal(gradient, kept)
        results.append((technique.decompress(message, gradient.shape), None if error is None else error.clone()))
    return results


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("feedback", [True, False])
def test_a_kernel_packs_and_remembers_as_torch_does(
    name: str, feedback: bool, shape: tuple[int, ...], request: pytest.FixtureRequest
) -> None:
    expected = steps(MADE[name](feedback=feedback), shape)
    request.getfixturevalue("launched")
    got = steps(MADE[name](feedback=feedback), shape)
    for (sent, left), (their_sent, their_left) in zip(got, expected, strict=True):
        torch.testing.assert_close(sent, their_sent, rtol=1e-5, atol=2e-6)
        assert (left is None) == (their_left is None) == (not feedback)
        if left is not None:
            torch.testing.assert_close(left, their_left, rtol=1e-5, atol=2e-6)


@pytest.mark.usefixtures("launched")
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_messages_are_as_long_as_the_methods_say(shape: tuple[int, ...]) -> None:
    """A bit an entry and two values a column; a value and an index of each entry that is sent."""
    x = torch.randn(shape)
    columns, sent = x[0].numel() if x.ndim else 1, math.ceil(x.numel() / 10)
    (means, bits), _ = OneBitSGD().pack(x, None)
    assert (means.nbytes, bits.nbytes) == (8 * columns, math.ceil(x.numel() / 8))
    (values, indices), _ = TopK(ratio=0.1).pack(x, None)
    assert (values.nbytes, indices.nbytes, indices.dtype) == (4 * sent, 4 * sent, torch.int32)
    assert sparse.top_k(x, 0.1)[0].nbytes == 4 * sent


@pytest.mark.parametrize("count", [1, 40, 4095, 4096, 5000, 9999])
def test_of_equal_magnitudes_the_first_are_taken(count: int) -> None:
    """Small integers: most entries are equal to others; the oracle is a stable sort."""
    x = torch.randint(-4, 5, (9999,), generator=torch.Generator().manual_seed(count)).float()
    errors = torch.zeros_like(x)
    values, indices = top_k_kernel.top_k(x, errors, count)
    expected = x.abs().argsort(descending=True, stable=True)[:count].sort().values
    assert torch.equal(indices.long(), expected) and torch.equal(values, x[expected])
    assert torch.equal(errors, x.index_fill(0, expected, 0.0))


def test_what_the_kernel_does_not_take_goes_to_torch() -> None:
    """Rows of 17 and of 12 entries share bytes of bits; rows of 16 do not."""
    taken = {(5, 17): False, (5, 12): False, (5, 16): True, (5, 2, 8): True, (5, 1): True, (5,): True, (0, 8): False}
    assert {shape: one_bit_kernel.takes(torch.Size(shape)) for shape in taken} == taken
