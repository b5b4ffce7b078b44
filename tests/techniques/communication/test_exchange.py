"""What all ways to compress gradients share: messages, means, buckets, local clipping."""

import pytest
import torch

from techniques.communication.shared.exchange import buckets, clipped


def same(first, second) -> bool:
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(same(first[name], second[name]) for name in first)
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(same, first, second))
    return first.dtype == second.dtype and torch.equal(first, second)


def test_messages_come_back_to_the_bit_whatever_their_lengths(two_ranks):
    for rank in two_ranks:
        assert same(rank["messages"]["there_and_back"], rank["messages"]["own"])


def test_every_rank_gets_every_ranks_messages(two_ranks):
    everyones = [rank["messages"]["own"] for rank in two_ranks]
    assert all(same(rank["messages"]["gathered"], everyones) for rank in two_ranks)
    assert all(rank["messages"]["none"] == [[], []] for rank in two_ranks), "a model without matrices sends none"


def test_means_are_of_each_dtype_and_shape(two_ranks):
    for rank in two_ranks:
        assert same(rank["messages"]["mean"], {"a": torch.full((2, 2), 1.5), "b": torch.full((), 2.0).double()})


@pytest.mark.parametrize("name", ["topk_ef", "onebit_sgd", "qsgd"])
def test_a_step_makes_one_collective(two_ranks, name):
    assert list(two_ranks[0][name]["collectives"]) == ["_allgather_base_"]


def test_buckets_hold_each_tensor_once_in_its_order():
    sizes = [3, 4, 1, 9, 2, 2]
    tensors = {str(number): torch.zeros(size) for number, size in enumerate(sizes)}
    tensors["wide"] = torch.zeros(1, dtype=torch.float64)
    groups = list(buckets(tensors, most=4 * 8))
    assert [list(group) for group in groups] == [["0", "1", "2"], ["3"], ["4", "5"], ["wide"]]
    assert not list(buckets({}))


def test_local_clipping_makes_no_gradient_longer():
    gradients = {"a": torch.tensor([3.0, 0.0]), "b": torch.tensor(4.0)}
    assert sum(each.square().sum() for each in clipped(gradients, 0.5).values()).sqrt() == pytest.approx(0.5, rel=1e-5)
    (name, *others) = gradients
    apart = clipped(gradients, 0.5, {name})
    assert apart[name].norm() == pytest.approx(min(0.5, gradients[name].norm().item()), rel=1e-5)
    without = clipped({other: gradients[other] for other in others}, 0.5)
    assert all(torch.equal(apart[other], without[other]) for other in others)
    assert same(clipped(gradients, 6.0), gradients)
