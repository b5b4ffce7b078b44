"""Values that leave for a second tier in the hooks of blocks: gradients to the bit, whoever else holds them."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from suite.chain.engine import scheduled
from suite.chain.moving import MoveError, Moving
from suite.chain.rerun import Reruns
from suite.chain.schedule import TURN, Op, Schedule, backs, tidied
from suite.chain.tiers import HostTier
from tests.chain.schedules import schedules
from tests.chain.test_rerun import LOOPS, blocks_of, passed, same


def all_leave(depth: int, items: int = 1) -> Schedule:
    """Each block's first values leave behind it."""
    there = [[Op("save", i), *(Op("offload", i, item) for item in range(items))] for i in range(depth)]
    return tidied(depth, [*(op for each in there for op in each), TURN, *backs(range(depth))])


@contextmanager
def moving(blocks: list[nn.Module], schedule: Schedule) -> Iterator[HostTier]:
    tier = HostTier()
    with scheduled(blocks, schedule, tier):
        yield tier


@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(1, 6), st.sampled_from(sorted(LOOPS)))
def test_gradients_are_plain_ones_whatever_leaves(data: st.DataObject, depth: int, name: str) -> None:
    schedule = data.draw(schedules(depth))
    forward_only = not any(op.kind == "offload" for op in schedule.backward)
    blocks, _ = blocks_of(depth)
    if name != "in_a_row" and not forward_only:
        return  # the executor's, which wants a chain
    expected = passed(blocks, LOOPS[name])
    with moving(list(blocks), schedule) as tier:
        assert same(passed(blocks, LOOPS[name]), expected)
    assert tier.bytes_out == tier.bytes_in and tier.held_bytes == 0


def test_what_leaves_a_block_by_another_way_has_its_gradient() -> None:
    blocks, _ = blocks_of(3)

    def loss(x: Tensor) -> Tensor:
        beside = x.new_zeros(())
        for block in blocks:
            x, more = block(x, None, "two")
            beside = beside + more.pow(3).sum()
        return x.square().sum() + beside

    x = torch.ones(3, 4)
    torch.manual_seed(1)
    expected = torch.autograd.grad(loss(x), list(nn.ModuleList(blocks).parameters()))
    with moving(list(blocks), all_leave(3, 4)) as tier:
        torch.manual_seed(1)
        ours = torch.autograd.grad(loss(x), list(nn.ModuleList(blocks).parameters()))
    assert same(list(ours), list(expected)) and tier.bytes_out > 0


def test_a_second_backward_pass_finds_what_came_back() -> None:
    blocks, _ = blocks_of(3)
    weights = list(nn.ModuleList(blocks).parameters())
    with moving(list(blocks), all_leave(3)):
        value = LOOPS["in_a_row"](blocks, torch.ones(3, 4)).square().sum()
        first = torch.autograd.grad(value, weights, retain_graph=True)
        assert same(list(torch.autograd.grad(value, weights)), list(first))


def test_a_pass_that_nobody_goes_back_through_leaves_nothing_in_the_tier() -> None:
    blocks, _ = blocks_of(3)
    with moving(list(blocks), all_leave(3)) as tier:
        value = LOOPS["in_a_row"](blocks, torch.ones(3, 4))
        assert tier.held_bytes > 0
        del value
        gc.collect()
        assert tier.held_bytes == 0


class Overwrites(nn.Module):
    """Writes to what it has saved, as autograd would notice."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x).exp()
        z = y * 2
        y.add_(1)
        return z


def test_a_write_in_place_to_a_saved_value_is_noticed() -> None:
    blocks = [Overwrites(), Overwrites()]
    with moving(blocks, all_leave(2, 2)), pytest.raises(RuntimeError, match="modified by an inplace operation"):
        blocks[1](blocks[0](torch.ones(2, 4))).sum().backward()


def test_a_value_that_is_not_there_is_named() -> None:
    blocks, _ = blocks_of(2)
    with moving(list(blocks), all_leave(2, 99)), pytest.raises(MoveError, match="block 0 saved fewer values"):
        LOOPS["in_a_row"](blocks, torch.ones(3, 4))


def test_a_tier_is_asked_for_and_each_that_leaves_is_told() -> None:
    blocks, _ = blocks_of(2)
    with pytest.raises(ValueError, match="pass one"):
        scheduled(list(blocks), all_leave(2))
    with pytest.raises(ValueError, match="of 3 blocks does not fit the stack of 2"):
        scheduled(list(blocks), all_leave(3))
    left: list[int] = []
    schedule = all_leave(2)
    watched = Moving(schedule, HostTier(), lambda: left.append(1))
    with Reruns(blocks, (0, 1), moving=watched).installed():
        passed(blocks, LOOPS["in_a_row"])
    assert len(left) == 2
