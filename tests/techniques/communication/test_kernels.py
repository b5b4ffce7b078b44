"""What the folder's kernels send and remember, under the interpreter, is what torch's operators send and remember."""

import math
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from techniques.communication.onebit_adam.technique import OneBitAdam
from techniques.communication.onebit_adam.two_sided import signed, signs
from techniques.communication.onebit_sgd.technique import OneBitSGD
from techniques.communication.powersgd.technique import orthogonalised
from techniques.communication.shared import sparse
from techniques.communication.shared.ranks import GatheredRanks
from techniques.communication.topk_ef.technique import TopK

portable = pytest.importorskip("suite.kernels.portable")  # not every platform has Triton
one_bit_kernel = pytest.importorskip("techniques.communication.onebit_sgd.kernel")
top_k_kernel = pytest.importorskip("techniques.communication.shared.top_k_kernel")
signs_kernel = pytest.importorskip("techniques.communication.onebit_adam.kernel")
basis_kernel = pytest.importorskip("techniques.communication.powersgd.kernel")

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


LENGTHS = (1, 7, 4096 + 5, 30, 4096, 5)  # end to end in whole bytes, and no tensor but the first begins with one


def test_a_worker_s_signs_scales_and_memory_are_torch_s_step_by_step() -> None:
    """The kernel remembers what was wanted and its scales, torch what was left out: that is what the next step adds."""
    generator = torch.Generator().manual_seed(4)
    ours, scales, theirs = torch.zeros(sum(LENGTHS)), torch.zeros(len(LENGTHS)), torch.zeros(sum(LENGTHS))
    for _ in range(3):
        x = torch.randn(sum(LENGTHS), generator=generator)
        theirs += x
        expected_scales, expected_bits = signs(theirs, LENGTHS)
        sent, bits = signs_kernel.from_worker(x, ours, scales, LENGTHS)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
        torch.testing.assert_close(sent, expected_scales, rtol=1e-5, atol=1e-6)
        assert torch.equal(bits, expected_bits) and torch.equal(sent, scales) and len(bits) == len(x) / 8
        theirs -= signed(expected_scales, expected_bits, LENGTHS)


def test_a_server_s_mean_is_of_what_was_sent_and_of_what_it_left_out() -> None:
    generator, ranks = torch.Generator().manual_seed(5), 3
    ours, scales, theirs = torch.zeros(sum(LENGTHS)), torch.zeros(len(LENGTHS)), torch.zeros(sum(LENGTHS))
    for _ in range(2):
        sent = [signs(torch.randn(sum(LENGTHS), generator=generator), LENGTHS) for _ in range(ranks)]
        theirs += torch.stack([signed(*each, LENGTHS) for each in sent]).mean(0)
        expected = signs(theirs, LENGTHS)
        messages = torch.stack([each for each, _ in sent]), torch.stack([each for _, each in sent])
        got = signs_kernel.from_server(messages, ours, scales, LENGTHS)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
        torch.testing.assert_close(signed(*got, LENGTHS), signed(*expected, LENGTHS), rtol=1e-5, atol=1e-6)
        theirs -= signed(*expected, LENGTHS)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_bases_are_orthonormal_and_span_their_matrices(rank: int) -> None:
    """Of several heights at once, one of more rows than a program has at a time; as QR's up to the sign of a column."""
    generator = torch.Generator().manual_seed(6)
    matrices = [torch.randn(height, rank, generator=generator) for height in (rank, 9, 40, basis_kernel.HELD + 3)]
    for matrix, basis in zip(matrices, basis_kernel.orthogonalised(matrices), strict=True):
        expected, got = torch.linalg.qr(matrix.double())[0], basis.double()
        torch.testing.assert_close(got.T @ got, torch.eye(rank).double(), rtol=0, atol=1e-6)
        torch.testing.assert_close((got * expected).sum(0).abs(), torch.ones(rank).double(), rtol=0, atol=1e-5)


def test_a_column_that_depends_on_others_becomes_a_direction_of_its_own() -> None:
    """Zeros, a multiple of the first, and a sum: each basis is whole, and holds what its matrix does."""
    column, other = torch.randn(2, 33, generator=torch.Generator().manual_seed(7))
    matrices = [
        torch.zeros(33, 3),
        torch.stack([column, 3 * column, other], 1),
        torch.stack([column, other, column + other], 1),
        torch.stack([torch.zeros(33), column, 1e-20 * other], 1),
    ]
    for matrix, basis in zip(matrices, basis_kernel.orthogonalised(matrices), strict=True):
        torch.testing.assert_close(basis.T @ basis, torch.eye(3), rtol=0, atol=1e-6)
        torch.testing.assert_close(basis @ (basis.T @ matrix), matrix, rtol=1e-5, atol=1e-5)


class AtOnce:
    """A run of a single rank."""

    rank = 0

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group


@pytest.fixture
def alone() -> Iterator[AtOnce]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    group = dist.group.WORLD
    assert group is not None
    yield AtOnce(group)
    dist.destroy_process_group()


def test_momenta_are_exchanged_by_kernels_as_by_torch_and_a_state_moves_between_them(
    alone: AtOnce, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU the memories are of what was wanted; a run that goes on without one makes of them what was left out."""
    there, here = OneBitAdam(), OneBitAdam()
    there.ranks = here.ranks = 1
    generator = torch.Generator().manual_seed(8)
    for step in range(4):
        momenta = [torch.randn(shape, generator=generator) for shape in ((5, 7), (40,), (3,))]
        monkeypatch.setattr("techniques.communication.onebit_adam.technique.launchable", lambda x, gpu=step < 2: gpu)
        ours = there.mean(momenta, alone)  # type: ignore[arg-type]
        monkeypatch.setattr("techniques.communication.onebit_adam.technique.launchable", lambda x: False)
        theirs = here.mean(momenta, alone)  # type: ignore[arg-type]
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
        assert (there.errors.keys() == here.errors.keys()) == (step >= 2)
    torch.testing.assert_close(there.errors, here.errors, rtol=0, atol=1e-5)


def test_bases_of_a_gpu_s_matrices_are_the_kernel_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("techniques.communication.powersgd.technique.launchable", lambda x: True)
    matrices = {name: torch.randn(height, 2) for name, height in (("a", 9), ("b", 40))}
    expected = basis_kernel.orthogonalised(list(matrices.values()))
    assert all(map(torch.equal, orthogonalised(matrices).values(), expected)) and not orthogonalised({})
