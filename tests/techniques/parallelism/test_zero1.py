"""ZeRO stage 1 on two real ranks: the same updates as data parallelism, half of the optimizer's state."""

import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from techniques.large_batch.lamb.optimizer import Lamb
from techniques.parallelism.zero1.technique import Flat, Zero1, state_bytes


@pytest.mark.parametrize("baseline", ["vit", "gpt"])
def test_updates_are_data_parallelisms_to_the_bit(two_ranks, baseline):
    """Two ranks add two numbers, in whichever order. GPT-2 has tied embeddings and dropout."""
    for rank in two_ranks:
        theirs, mine = rank[f"ddp_{baseline}"], rank[f"zero_{baseline}"]
        assert torch.equal(theirs["losses"], mine["losses"])
        assert theirs["parameters"].keys() == mine["parameters"].keys()
        for name, parameter in theirs["parameters"].items():
            assert torch.equal(parameter, mine["parameters"][name]), name


def test_clipping_uses_the_norm_of_all_shards(two_ranks):
    for rank in two_ranks:
        theirs, mine = rank["ddp_clipped"], rank["zero_clipped"]
        assert not torch.equal(theirs["losses"], rank["ddp_vit"]["losses"])  # the norm is small enough to matter
        torch.testing.assert_close(theirs["parameters"], mine["parameters"], rtol=1e-5, atol=1e-6)


def test_ranks_stay_equal_to_the_bit(two_ranks):
    first, second = (rank["zero_clipped"]["parameters"] for rank in two_ranks)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_optimizer_state_is_half_and_as_the_formula_says(two_ranks):
    for rank in two_ranks:
        whole, shard = rank["ddp_vit"], rank["zero_vit"]
        assert shard["groups"] == [math.ceil(count / 2) for count in whole["groups"]]
        formula = state_bytes(whole["groups"], ranks=2)
        assert formula == rank["zero_probes"]["parallel.adam_state_bytes_formula"]
        steps = 4 * len(shard["groups"])  # AdamW's step counters
        assert formula <= shard["state_bytes"] <= formula + steps


def test_reduce_scatter_and_all_gather_move_the_model_once_each(two_ranks):
    size = sum(2 * count for count in two_ranks[0]["zero_vit"]["groups"])
    moved = two_ranks[0]["zero_bytes"]
    assert moved["alltoall_base_"] == 4 * size
    assert moved["_allgather_base_"] == 4 * size
    assert "allreduce_" not in moved
    assert "_reduce_scatter_base_" not in moved  # gloo's sends twice the ideal volume


def test_reduce_scatter_gives_each_rank_its_part_of_the_mean(two_ranks):
    mean = torch.arange(6.0) * 1.5
    assert torch.equal(torch.cat([rank["reduce_scatter"] for rank in two_ranks]), mean)


def test_a_resumed_rank_continues_to_the_bit(two_ranks):
    for rank in two_ranks:
        whole, again = rank["resumed"]
        assert whole == again


@given(st.lists(st.integers(1, 30), min_size=1, max_size=5), st.integers(2, 5))
def test_shards_tile_the_parameters_with_less_than_one_element_of_padding_per_rank(sizes, ranks):
    values = [torch.randn(size) for size in sizes]
    whole = torch.cat(values)
    parts = []
    for rank in range(ranks):
        flat = Flat.of([nn.Parameter(value.clone()) for value in values], rank, ranks)
        assert all(torch.equal(p, value) for p, value in zip(flat.parameters, values, strict=True))
        parts.append(flat.shard.detach().clone())
        flat.shard.data.fill_(7.0)  # the shard is a view of the parameters
        own = [index for index in range(whole.numel()) if index // flat.shard.numel() == rank]
        assert (torch.cat([p.flatten() for p in flat.parameters])[own] == 7.0).all()
    padded = torch.cat(parts)
    assert torch.equal(padded[: whole.numel()], whole)
    assert not padded[whole.numel() :].any()
    assert padded.numel() - whole.numel() < ranks
    assert ranks * state_bytes([whole.numel()], ranks) == 8 * padded.numel()


def test_bad_settings_say_what_to_do():
    with pytest.raises(ValueError, match="2 ranks or more"):
        Zero1(ranks=1)


def test_an_optimizer_that_needs_whole_layers_refuses_the_shards():
    run = SimpleNamespace(rank=0, world_size=2, gradients_sharded=False)
    groups = Zero1().parameters([{"params": [nn.Parameter(torch.ones(4, 4))], "weight_decay": 0.1}], run)
    torch.optim.AdamW(groups)
    with pytest.raises(ValueError, match="Lamb needs the norms of whole layers"):
        Lamb(groups)
