"""What is on the wire: messages between ranks once and whole, collectives as on a ring."""

from __future__ import annotations

import torch
import torch.distributed as dist

from suite.measure.at_scale.fake_ranks import fake_ranks
from suite.measure.traffic import Traffic, wire_bytes


def test_a_message_is_sent_whole_by_one_rank_whatever_their_number() -> None:
    for ranks in (2, 8):
        assert wire_bytes({"send": 1000, "recv_": 4000, "recv_any_source_": 9}, ranks) == 1000
        assert wire_bytes({"recv": 4000}, ranks) == 0  # as counts at paper scale call it


def test_collectives_are_an_ideal_ring_s() -> None:
    assert wire_bytes({"allreduce_": 1000, "_allgather_base_": 1000}, 4) == 1500 + 750
    assert wire_bytes({"all_reduce": 1000, "send": 10}, 4) == 1510


def test_a_step_s_messages_are_counted_where_they_are_sent() -> None:
    with fake_ranks(4) as mesh:
        assert mesh is not None
        group, values = mesh.get_group(), torch.ones(256)
        with Traffic() as traffic:
            dist.isend(values, group=group, group_dst=1, tag=3)
            dist.irecv(torch.empty(64), group=group, group_src=1, tag=4)
            dist.all_reduce(values, group=group)
    assert traffic.wire_bytes(4) == 1024 + 1536
    assert traffic.messages == 2
