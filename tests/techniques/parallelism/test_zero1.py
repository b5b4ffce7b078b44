"""ZeRO stage 1 on two real ranks: the same updates as data parallelism, half of the optimizer's state."""

import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from techniques.large_batch.lamb.optimizer import Lamb
from techniques.parallelism.shared.flat import Flat, pieces, state_bytes
from techniques.parallelism.zero1.technique import Zero1


def test_updates_are_data_parallelisms_to_the_bit(two_ranks):
    """Two ranks add two numbers, in whichever order. GPT-2 has tied embeddings and dropout."""
    for rank in two_ranks:
        theirs, mine = rank["ddp"], rank["zero"]
        assert torch.equal(theirs["losses"], mine["losses"])
        assert theirs["parameters"].keys() == mine["parameters"].keys()
        for name, parameter in theirs["parameters"].items():
            assert torch.equal(parameter, mine["parameters"][name]), name


def test_buckets_make_the_same_updates_to_the_bit(two_ranks):
    for rank in two_ranks:
        theirs, mine = rank["ddp"], rank["bucketed"]
        assert torch.equal(theirs["losses"], mine["losses"])
        assert all(torch.equal(each, mine["parameters"][name]) for name, each in theirs["parameters"].items())
        assert rank["zero"]["groups"] == mine["groups"], "no more padding than without buckets"


def test_a_step_takes_the_papers_bytes_and_two_buckets(two_ranks):
    """8 + 8 / N bytes a parameter for model, gradients and Adam's state (section 5.1, in fp32); 16 without shards."""
    for rank in two_ranks:
        peaks = rank["peaks"]
        assert 12 <= peaks["bucketed"] < 12.6
        assert peaks["whole"] > 15, "where the buffers of a reduction are those of the whole model"
        assert peaks["ddp"] >= 16


@given(st.lists(st.integers(1, 30), min_size=1, max_size=5), st.integers(2, 5), st.none() | st.integers(1, 40))
def test_shards_tile_the_parameters_with_less_than_one_element_of_padding_per_rank(sizes, ranks, bucket):
    values = [torch.randn(size) for size in sizes]
    whole = torch.cat(values)
    tiled = torch.full((math.ceil(whole.numel() / ranks) * ranks,), math.nan)
    for rank in range(ranks):
        flat = Flat.of([nn.Parameter(value.clone()) for value in values], rank, ranks, bucket)
        assert all(torch.equal(p, value) for p, value in zip(flat.parameters, values, strict=True))
        elements = torch.arange(flat.values.numel())
        for each in flat.buckets:
            start = each.values.storage_offset()
            own = elements[start : start + len(each.values)].view(ranks, -1)[rank]
            assert tiled[own].isnan().all(), "no element has two owners"
            tiled[own] = each.shard.detach().clone()
            each.shard.data.fill_(7.0)  # the shard is a view of the parameters
            assert (flat.values[own] == 7.0).all()
            if bucket is not None:
                assert len(each.values) <= max(bucket, ranks)
    assert torch.equal(tiled[: whole.numel()], whole)
    assert not tiled[whole.numel() :].any()
    assert tiled.numel() - whole.numel() < ranks
    assert ranks * state_bytes([whole.numel()], ranks) == 8 * tiled.numel()


@given(st.lists(st.integers(1, 30), min_size=1, max_size=5), st.integers(1, 40))
def test_buckets_have_every_element_of_every_parameter_once(sizes, bucket):
    parameters = [nn.Parameter(torch.zeros(size)) for size in sizes]
    seen = [torch.zeros(size) for size in sizes]
    number = {id(parameter): index for index, parameter in enumerate(parameters)}
    for start in range(0, sum(sizes), bucket):
        for parameter, first, place, count in pieces(parameters, start, min(start + bucket, sum(sizes))):
            offset = sum(sizes[: number[id(parameter)]])
            assert offset + first == start + place
            seen[number[id(parameter)]][first : first + count] += 1
    assert all((each == 1).all() for each in seen)


def test_an_optimizer_that_needs_whole_layers_refuses_the_shards():
    run = SimpleNamespace(rank=0, world_size=2, gradients_sharded=False)
    groups = Zero1().parameters([{"params": [nn.Parameter(torch.ones(4, 4))], "weight_decay": 0.1}], run)
    torch.optim.AdamW(groups)
    with pytest.raises(ValueError, match="Lamb needs the norms of whole layers"):
        Lamb(groups)
