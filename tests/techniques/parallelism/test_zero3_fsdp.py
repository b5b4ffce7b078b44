"""ZeRO stage 3 on two real ranks, and every counted rank of a fake world beside a real one."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from suite.measure.at_scale.full_size import Scale, counted
from suite.record.job import Setting
from techniques.parallelism.zero3_fsdp.technique import Zero3, even_placement

STACKS = [
    "dp_ddp",
    "zero3_fsdp",
    "comm_overlap",
    "zero1:mixed_precision=true",
    "zero2:mixed_precision=true",
    "zero3_fsdp:mixed_precision=true",
]


def test_updates_are_data_parallelisms_up_to_rounding(two_ranks):
    for rank in two_ranks:
        theirs, mine = rank["counted"]["dp_ddp"], rank["counted"]["zero3_fsdp"]
        torch.testing.assert_close(mine["losses"], theirs["losses"], rtol=1e-5, atol=1e-6)
        off = (mine["values"] - theirs["values"]).norm() / theirs["values"].norm()
        assert off < 1e-4  # Adam makes whole steps of what should be no gradient


@pytest.mark.parametrize("stack", STACKS)
def test_a_rank_of_a_fake_world_counts_what_a_real_one_does(two_ranks, stack):
    fake = counted(stack, Scale(Setting(baseline="gpt", size="pico", recipe="classic", steps=2)))
    assert fake.counters is not None, fake.unavailable
    real = two_ranks[0]["counted"][stack]
    assert fake.ranks == 2
    assert fake.state_bytes == real["state_bytes"]
    assert fake.counters.communication_bytes == real["communication_bytes"]
    assert fake.counters.optimizer_state_bytes == real["optimizer_state_bytes"]
    assert fake.counters.parameter_count == real["parameter_count"]


def test_a_parameter_is_divided_where_it_divides():
    assert even_placement(nn.Parameter(torch.ones(6, 5)), 3).dim == 0
    assert even_placement(nn.Parameter(torch.ones(7, 6)), 3).dim == 1
    assert even_placement(nn.Parameter(torch.ones(7, 5)), 3).dim == 0
    with pytest.raises(ValueError, match="2 ranks or more"):
        Zero3(ranks=1)
