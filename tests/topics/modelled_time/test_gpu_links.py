"""What ranks send, against arithmetic by hand, and what must grow."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suite.topics.modelled_time.devices import devices
from suite.topics.modelled_time.gpu_links import (
    FABRICS,
    OF_GPU,
    REACHED_ACROSS,
    REACHED_INSIDE,
    Collective,
    fabric_of,
    meeting_s,
    seconds,
    sent,
)

A100 = FABRICS["A100"]
GATHER = Collective("all-gather", "forward", 8e9, 8)


def test_a_ring_in_a_node_by_hand() -> None:
    assert seconds(GATHER, A100) == pytest.approx(7 * 4e-6 + 7e9 / (300e9 * REACHED_INSIDE))
    reduced = replace(GATHER, name="all-reduce")
    assert seconds(reduced, A100) == pytest.approx(2 * seconds(GATHER, A100))
    assert seconds(replace(GATHER, ranks=1), A100) == 0


def test_a_ring_across_nodes_has_the_cards_of_its_ranks_in_a_node() -> None:
    whole_nodes = replace(GATHER, ranks=16)
    one_a_node = replace(GATHER, ranks=2, stride=8)
    assert whole_nodes.crosses_nodes(A100) and one_a_node.crosses_nodes(A100) and not GATHER.crosses_nodes(A100)
    assert seconds(whole_nodes, A100) == pytest.approx(4 * 15e-6 + 7.5e9 / (8 * 25e9 * REACHED_ACROSS))
    assert seconds(one_a_node, A100) == pytest.approx(15e-6 + 4e9 / (25e9 * REACHED_ACROSS))


@given(
    st.sampled_from(["all-gather", "reduce-scatter", "all-reduce", "all-to-all", "broadcast", "send"]),
    st.integers(2, 512),
    st.sampled_from([1, 2, 4, 8]),
    st.floats(0, 1e12),
)
def test_more_bytes_and_more_ranks_take_no_less(name: str, ranks: int, stride: int, nbytes: float) -> None:
    some = Collective(name, "forward", nbytes, ranks, stride)  # type: ignore[arg-type]
    for fabric in FABRICS.values():
        assert seconds(replace(some, nbytes=2 * nbytes), fabric) >= seconds(some, fabric)
        assert seconds(replace(some, ranks=8 * ranks), fabric) >= 0.99 * seconds(some, fabric) or stride > 1


def test_a_step_s_collectives_by_phase_and_by_place() -> None:
    far = Collective("all-reduce", "optimizer", 1e9, 16, times=3, hidden=False)
    ways = sent([GATHER, far], A100)
    assert ways.hidden["forward", False] == seconds(GATHER, A100) and ways.hidden["forward", True] == 0
    assert ways.waited["optimizer", True] == 3 * seconds(far, A100)


def test_what_is_waited_for_meets_first_once_for_each_node() -> None:
    waited = replace(GATHER, hidden=False)
    assert meeting_s(GATHER, A100) == 0 and meeting_s(waited, A100) == pytest.approx(1e-6 * A100.meet_us)
    assert meeting_s(replace(waited, ranks=64), A100) == pytest.approx(8e-6 * A100.meet_us)
    assert meeting_s(replace(waited, ranks=4, stride=8), A100) == pytest.approx(4e-6 * A100.meet_us)
    assert sent([replace(waited, times=3)], A100).met["forward"] == pytest.approx(3e-6 * A100.meet_us)


def test_a_rack_of_72_gpus_is_one_node() -> None:
    rack, gather = FABRICS["GB200"], replace(GATHER, ranks=64)
    assert not gather.crosses_nodes(rack) and gather.nodes(rack) == 1
    assert seconds(gather, rack) == pytest.approx(14 * 4e-6 + 8e9 * 63 / 64 / (900e9 * REACHED_INSIDE))
    assert replace(gather, ranks=128).crosses_nodes(rack) and replace(gather, ranks=128).nodes(rack) == 2


def test_every_gpu_has_links() -> None:
    assert OF_GPU.keys() <= devices().keys()
    assert fabric_of(devices()["H100-SXM"]) == FABRICS["H100"]
    assert fabric_of(devices()["L40S"]).inside_gb_s == devices()["L40S"].link_gb_s
