"""Order and batches are functions of (seed, position): epochs are permutations, any way to ask gives one answer."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from suite.loop.data import Batch, Data, Examples, generator, mixed_seed, shuffled

SEEDS = st.integers(0, 2**62)


@given(st.integers(1, 50), SEEDS, st.integers(0, 5))
def test_each_epoch_is_a_permutation(examples: int, seed: int, epoch: int) -> None:
    order = shuffled(examples, seed, epoch * examples, examples)
    assert sorted(order.tolist()) == list(range(examples))


@given(st.integers(1, 40), SEEDS, st.integers(0, 100), st.lists(st.integers(1, 30), min_size=1, max_size=8))
def test_any_split_of_a_range_gives_the_same_indices(examples: int, seed: int, start: int, counts: list[int]) -> None:
    parts, position = [], start
    for count in counts:
        parts.append(shuffled(examples, seed, position, count))
        position += count
    assert torch.cat(parts).tolist() == shuffled(examples, seed, start, sum(counts)).tolist()


def test_epochs_and_seeds_have_their_own_orders() -> None:
    orders = {tuple(shuffled(20, seed, 20 * epoch, 20).tolist()) for seed in range(10) for epoch in range(10)}
    assert len(orders) == 100


def test_a_caller_that_changes_its_indices_changes_nobody_elses() -> None:
    first = shuffled(20, 1, 0, 20)
    kept = first.clone()
    shuffled(20, 1, 0, 20).add_(1)
    assert shuffled(20, 1, 0, 20).tolist() == kept.tolist()


@given(st.lists(st.tuples(SEEDS, st.integers(0, 2**31)), min_size=2, max_size=50, unique=True))
def test_mixed_seeds_are_distinct(parts: list[tuple[int, int]]) -> None:
    seeds = [mixed_seed(*each) for each in parts]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_mixed_seeds_depend_on_order_and_number_of_the_parts_and_flip_half_their_bits() -> None:
    assert len({mixed_seed(1, 2), mixed_seed(2, 1), mixed_seed(1), mixed_seed(1, 2, 0), mixed_seed(3)}) == 5
    flips = [(mixed_seed(7, n) ^ mixed_seed(7, n + 1)).bit_count() for n in range(1000)]
    assert 31 < sum(flips) / len(flips) < 32  # 63 bits


def test_mixed_seed_is_splitmix64() -> None:
    # the reference implementation's first three outputs from seed 0: seeds mixed of 0 and of its second state
    assert mixed_seed(0) == 0xE220A8397B1DCDAF >> 1


def noisy(batch: Batch, noise: torch.Generator) -> Batch:
    return {"x": batch["x"] + torch.rand(batch["x"].shape, generator=noise)}


@pytest.fixture
def data() -> Data:
    examples = Examples({"x": torch.arange(10.0)})
    held_out = Examples({"x": torch.arange(7.0)})
    return Data("numbers", "0" * 64, examples, held_out, held_out, noisy)


def test_a_batch_depends_on_its_position_alone(data: Data) -> None:
    batch, indices = data.batch(3, 4, 4)
    data.batch(3, 8, 4), generator(0)
    again, same = data.batch(3, 4, 4)
    assert torch.equal(batch["x"], again["x"])
    assert torch.equal(indices, same)
    assert not torch.equal(batch["x"], data.batch(3, 14, 4)[0]["x"])


def test_held_out_batches_hold_every_example_once_and_never_change(data: Data) -> None:
    first, second = data.held_out("test", 3), data.held_out("test", 3)
    assert [len(batch["x"]) for batch in first] == [3, 3, 1]
    assert torch.cat([batch["x"] for batch in first]).floor().tolist() == list(range(7))
    assert all(torch.equal(one["x"], two["x"]) for one, two in zip(first, second, strict=True))


def test_a_subset_keeps_its_examples_only(data: Data) -> None:
    kept = data.subset(torch.tensor([9, 2]))
    assert kept.train.tensors["x"].tolist() == [9.0, 2.0]
    assert len(kept.test) == 7


@pytest.mark.parametrize("tensors", [{}, {"x": torch.zeros(0)}, {"x": torch.zeros(2), "y": torch.zeros(3)}])
def test_unequal_or_no_examples_are_refused(tensors: dict[str, torch.Tensor]) -> None:
    with pytest.raises(ValueError, match="tensors of one length"):
        Examples(tensors)
