"""Any schedule gives the plain model's loss and gradients to the bit, on any model whose blocks are a chain."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from suite.chain.execute import Pass, executed
from suite.chain.plan import from_the_input
from suite.chain.schedule import TURN, Op, Schedule, backs, every_input, plain, segmented, tidied
from suite.chain.tiers import FileTier, HostTier, Tier, TierFull
from suite.model.anatomy import anatomy
from suite.model.segments import SegmentError
from tests.chain.schedules import schedules
from tests.model.transformer_models import BUILDERS, build, gradients, loss

SUMS = {
    "t5"
}  # all its decoder blocks read the encoder's outputs, whose gradients a plain pass adds up in another order
SCHEDULES = {
    "plain": plain,
    "inputs": every_input,
    "pairs": lambda depth: segmented(depth, [(i, min(i + 2, depth)) for i in range(0, depth, 2)]),
    "least": from_the_input,
}


def everything_leaves(depth: int) -> Schedule:
    """Every input leaves, and the first tensor of every graph."""
    there = [op for i in range(depth) for op in (Op("save", i), Op("offload", i), Op("offload", i, 0))]
    return tidied(depth, [*there, TURN, *backs(range(depth))])


@contextmanager
def running(model: nn.Module, schedule_of: object, tier: Tier | None = None) -> Iterator[None]:
    with ExitStack() as contexts:
        for stack in anatomy(model).stacks:
            blocks = [block.module for block in stack.blocks]
            contexts.enter_context(executed(blocks, schedule_of(len(blocks)), tier))  # type: ignore[operator]
        yield


def check(name: str, schedule_of: object, tier: Tier | None = None) -> None:
    expected_loss, expected = gradients(build(name), name)
    model = build(name)
    with running(model, schedule_of, tier):
        actual_loss, actual = gradients(model, name)
    assert torch.equal(actual_loss, expected_loss)
    assert actual.keys() == expected.keys()
    for key, ours in actual.items():
        assert torch.dist(ours, expected[key]) <= (1e-6 * expected[key].norm() if name in SUMS else 0)


@pytest.mark.parametrize("name", BUILDERS)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_gradients_are_the_plain_models(name: str, schedule: str) -> None:
    check(name, SCHEDULES[schedule])


@pytest.mark.parametrize("name", ["gpt2", "t5", "mae"])
@pytest.mark.parametrize("kind", ["host", "paced", "file"])
def test_so_they_are_where_values_leave_for_the_second_tier(name: str, kind: str, tmp_path: Path) -> None:
    tier = FileTier(tmp_path) if kind == "file" else HostTier(link_bytes_per_s=1e9 if kind == "paced" else None)
    check(name, everything_leaves, tier)
    assert tier.bytes_out == tier.bytes_in > 0
    assert tier.held_bytes == 0


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_any_schedule_will_do(data: st.DataObject) -> None:
    check("gpt2", lambda depth: data.draw(schedules(depth)), HostTier())


def test_a_block_that_runs_again_sees_the_autocast_of_its_first_run() -> None:
    def of(model: nn.Module) -> list[torch.Tensor]:
        with torch.autocast("cpu", torch.bfloat16):
            value = loss(model, "gpt2")
        value.backward()
        return [p.grad for p in model.parameters() if p.grad is not None]

    expected = of(build("gpt2"))
    model = build("gpt2")
    with running(model, every_input):
        actual = of(model)
    assert all(map(torch.equal, actual, expected))


def test_frozen_embeddings_and_blocks_change_nothing() -> None:
    def frozen() -> nn.Module:
        model = build("gpt2")
        for block in anatomy(model).blocks[:2]:
            block.module.requires_grad_(False)
        for part in anatomy(model).embeddings:
            part.module.requires_grad_(False)
        return model

    _, expected = gradients(frozen(), "gpt2")
    model = frozen()
    with running(model, every_input):
        _, actual = gradients(model, "gpt2")
    assert actual.keys() == expected.keys() and all(torch.equal(actual[key], expected[key]) for key in expected)


def test_two_passes_may_be_under_way_at_once() -> None:
    model = build("gpt2")
    two = loss(model, "gpt2", 1) + loss(model, "gpt2", 2)
    two.backward()
    expected = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    with running(model, every_input):
        (loss(model, "gpt2", 1) + loss(model, "gpt2", 2)).backward()
    for parameter, each in zip(model.parameters(), expected, strict=True):
        assert torch.allclose(parameter.grad, each, rtol=1e-4, atol=1e-6)  # two sums, in another order


def test_blocks_run_as_often_as_the_schedule_says() -> None:
    model, ran = build("gpt2"), Counter[str]()

    def around(op: Op, one: Pass) -> ExitStack:
        ran[op.kind] += 1
        return ExitStack()

    blocks = [block.module for block in anatomy(model).blocks]
    with executed(blocks, from_the_input(4), around=around):
        loss(model, "gpt2").backward()
    assert ran["run"] + ran["save"] == 4 + 10 and ran["back"] == 4


def test_without_gradients_blocks_run_as_ever_and_nothing_stays_patched() -> None:
    model = build("gpt2")
    before = [block.module.forward for block in anatomy(model).blocks]
    with running(model, every_input), torch.no_grad():
        assert torch.equal(loss(model, "gpt2"), loss(build("gpt2"), "gpt2"))
    assert [block.module.forward for block in anatomy(model).blocks] == before


def test_blocks_out_of_order_are_refused() -> None:
    model = build("gpt2")
    blocks = [block.module for block in anatomy(model).blocks]
    with executed(list(reversed(blocks)), plain(4)), pytest.raises(SegmentError, match="out of order"):
        loss(model, "gpt2")


def test_blocks_that_are_no_chain_are_refused() -> None:
    blocks = nn.ModuleList(copy.deepcopy(nn.Linear(2, 2)) for _ in range(2))
    with executed(list(blocks), plain(2)), pytest.raises(SegmentError, match="no chain"):
        blocks[1](blocks[0](torch.ones(1, 2)) * 2)


def test_a_tier_too_small_ends_the_pass_with_what_would_fit() -> None:
    model = build("gpt2")
    with running(model, everything_leaves, HostTier(capacity_bytes=100)), pytest.raises(TierFull, match="100"):
        loss(model, "gpt2").backward()


def test_a_schedule_that_does_not_fit_is_refused() -> None:
    blocks = [nn.Linear(2, 2)]
    with pytest.raises(ValueError, match="of 2 blocks does not fit"), executed(blocks, plain(2)):
        pass
    with pytest.raises(ValueError, match="second tier"), executed(blocks, everything_leaves(1)):
        pass
