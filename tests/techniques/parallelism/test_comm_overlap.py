"""Overlapped reductions on two real ranks: data parallelism's gradients to the bit, whenever they are reduced."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from techniques.parallelism.comm_overlap.technique import buckets_of


def test_overlapped_and_serial_are_data_parallelism_to_the_bit(two_ranks):
    for rank in two_ranks:
        theirs = rank["counted"]["dp_ddp"]
        for name in ("comm_overlap", "comm_overlap:overlapped=false"):
            mine = rank["counted"][name]
            assert torch.equal(mine["values"], theirs["values"]) and mine["losses"] == theirs["losses"]
            assert mine["communication_bytes"] == 4 * mine["parameter_count"]
            assert mine["state_bytes"] == 16 * mine["parameter_count"]


@given(st.lists(st.integers(1, 30), min_size=1, max_size=8), st.integers(1, 200))
def test_buckets_have_every_parameter_once_the_last_first(sizes, size_bytes):
    parameters = [nn.Parameter(torch.zeros(size)) for size in sizes]
    buckets = buckets_of(parameters, size_bytes)
    assert [each for bucket in buckets for each in bucket] == parameters[::-1]
    assert all(len(bucket) == 1 or 4 * sum(each.numel() for each in bucket) <= size_bytes for bucket in buckets)


def test_a_bucket_is_of_one_type():
    kinds = [torch.float32, torch.float32, torch.bfloat16]
    assert [len(each) for each in buckets_of([nn.Parameter(torch.zeros(2, dtype=kind)) for kind in kinds], 1e9)] == [
        1,
        2,
    ]
