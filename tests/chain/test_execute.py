"""Any schedule gives the plain model's loss and gradients to the bit, on any model whose blocks are a chain."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from suite.chain.execute import executed
from suite.chain.plan import from_the_input
from suite.chain.relay import Relay
from suite.chain.schedule import TURN, Op, Schedule, backs, every_input, plain, segmented, tidied
from suite.chain.tiers import FileTier, HostTier, Tier, TierFull
from suite.loop.sites import Act
from suite.model.anatomy import anatomy
from suite.model.segments import SegmentError
from techniques.offloading.shared.away import sent_away
from tests.chain.schedules import schedules
from tests.chain.weights import Moved
from tests.model.transformer_models import BUILDERS, build, gradients, loss

SUMS = {
    "t5"
}  # all its decoder blocks read the encoder's outputs, whose gradients a plain pass adds up in another order
SCHEDULES = {
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


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_whatever_weights_come_and_go_meanwhile(data: st.DataObject) -> None:
    schedule = data.draw(schedules(4, weights=True))
    check_loaded("gpt2", schedule, HostTier(), HostTier())


@pytest.mark.parametrize("name", ["gpt2", "t5", "mae"])
@pytest.mark.parametrize("kind", ["host", "paced", "file"])
def test_so_it_is_where_blocks_are_loaded_one_by_one(name: str, kind: str, tmp_path: Path) -> None:
    tier = FileTier(tmp_path) if kind == "file" else HostTier(link_bytes_per_s=1e9 if kind == "paced" else None)
    model = build(name)
    inside = sum(each.nbytes for block in anatomy(model).every_block for each in block.module.parameters())
    check_loaded(name, one_by_one, tier, HostTier())
    assert tier.bytes_in == 3 * inside, "for the forward pass, for the backward pass, and gradients for this test"
    assert tier.bytes_out == 2 * inside


def one_by_one(depth: int) -> Schedule:
    """Each block's weights come for its forward pass, which keeps its graph, and again for its backward pass."""
    there = [op for i in range(depth) for op in (Op("load", i), Op("save", i), Op("free", i))]
    back = [op for i in reversed(range(depth)) for op in (Op("load", i), Op("back", i), Op("free", i))]
    return tidied(depth, [*there, TURN, *back])


def check_loaded(name: str, schedule: object, weights: Tier, tier: Tier) -> None:
    expected_loss, expected = gradients(build(name), name)
    model = build(name)
    moved = Moved(model, weights)
    with ExitStack() as contexts:
        for stack, units in zip(anatomy(model).stacks, moved.units, strict=True):
            blocks = [block.module for block in stack.blocks]
            own = schedule(len(blocks)) if callable(schedule) else schedule
            contexts.enter_context(executed(blocks, own, tier, weights=units))
        actual_loss = loss(model, name)
        actual_loss.backward()
        assert moved.loaded == 0
    actual = moved.gradients()
    assert torch.equal(actual_loss, expected_loss)
    assert actual.keys() == expected.keys()
    for key, ours in actual.items():
        assert torch.dist(ours, expected[key]) <= (1e-6 * expected[key].norm() if name in SUMS else 0)


def test_a_pass_that_fails_leaves_no_weights_behind() -> None:
    model = build("gpt2")
    moved = Moved(model, HostTier())
    blocks = [block.module for block in anatomy(model).blocks]

    def broken(*_: object) -> None:
        raise RuntimeError("broken")

    blocks[2].register_forward_hook(broken)
    with pytest.raises(RuntimeError, match="broken"), executed(blocks, one_by_one(4), weights=moved.units[0]):
        loss(model, "gpt2")
    assert moved.loaded == 0


def test_micro_batches_inside_give_what_they_give_one_after_the_other() -> None:
    """Sums of gradients in the same order, weights that cross the link once for all, on blocks that draw at random."""
    layers = [nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5)) for _ in range(3)]
    plain, model = nn.ModuleList(copy.deepcopy(layers)), nn.ModuleList(layers)
    given, directions = torch.randn(2, 5, 3), torch.randn(2, 5, 3)
    torch.manual_seed(3)
    masks: list[list[Tensor]] = [[], []]
    hidden = list(given)
    for layer in plain:  # draws in the order of a relay
        for number in range(2):
            kept = torch.nn.functional.dropout(torch.ones(5, 3), 0.5)
            hidden[number] = layer[0](hidden[number]) * kept
            masks[number].append(kept)
    torch.autograd.backward(hidden, list(directions))

    tier = HostTier()
    units, _ = sent_away(model, model, tier)
    relay = Relay(list(model), one_by_one(3), None, units)
    torch.manual_seed(3)
    for each in given:
        relay.enter(each, list(model))
    outputs, sums = relay.there(), list(directions)
    relay.back(sums)
    assert all(map(torch.equal, outputs, hidden))
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(ours.grad, theirs.grad, rtol=1e-6)
    assert tier.bytes_in == 2 * sum(each.nbytes for each in plain.parameters())


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


def test_a_weight_that_blocks_share_is_cast_by_each_run_for_itself() -> None:
    """As in a plain pass under autocast without its cache, to the bit; the cache adds such gradients in bfloat16."""

    def of(schedule_of: object, cache: bool) -> list[Tensor]:
        model = build("gpt2")
        blocks = [block.module for block in anatomy(model).blocks]
        for block in blocks[1:]:
            block.mlp = blocks[0].mlp
        with ExitStack() as contexts:
            if schedule_of is not None:
                contexts.enter_context(running(model, schedule_of))
            with torch.autocast("cpu", torch.bfloat16, cache_enabled=cache):
                value = loss(model, "gpt2")
            value.backward()
        return [p.grad for p in model.parameters() if p.grad is not None]

    anew, once = of(None, False), of(None, True)
    for schedule_of in SCHEDULES.values():
        assert all(map(torch.equal, of(schedule_of, True), anew))
    assert not all(map(torch.equal, anew, once))
    for mine, theirs in zip(anew, once, strict=True):
        assert torch.dist(mine, theirs) <= 2**-7 * theirs.norm()


@pytest.mark.parametrize("schedule_of", [plain, every_input, from_the_input])
def test_a_second_backward_pass_is_refused(schedule_of: object) -> None:
    model = build("gpt2")
    with running(model, schedule_of):
        value = loss(model, "gpt2")
        value.backward(retain_graph=True)
        with pytest.raises(SegmentError, match="keeps nothing for a second backward pass; run the forward pass again"):
            value.backward()


class Writing(nn.Linear):
    """Changes what it gets, which a plain pass allows."""

    def forward(self, hidden: Tensor) -> Tensor:
        return super().forward(hidden.add_(1))


@pytest.mark.parametrize("schedule_of", [every_input, from_the_input])
def test_a_block_that_writes_in_place_to_what_it_gets_is_refused(schedule_of: object) -> None:
    model = nn.Sequential(nn.Linear(4, 4), *(Writing(4, 4) for _ in range(3)))
    model(torch.ones(2, 4)).sum().backward()
    with (
        executed(list(model)[1:], schedule_of(3)),  # type: ignore[operator]
        pytest.raises(SegmentError, match="block 0 of the stack writes in place to what it gets"),
    ):
        model(torch.ones(2, 4))


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
    """Once on the way there, and as often on the way back as whoever counts hears."""
    model, acted = build("gpt2"), Act()
    blocks = [block.module for block in anatomy(model).blocks]
    with executed(blocks, from_the_input(4), acted=acted):
        loss(model, "gpt2").backward()
    assert acted.count == from_the_input(4).extra_forwards == 10


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


@pytest.mark.parametrize("schedule_of", [plain, every_input, from_the_input])
@pytest.mark.parametrize("inside", ["mlp", "ln_2"])
def test_what_leaves_a_block_by_another_way_is_met_before_any_update(schedule_of: object, inside: str) -> None:
    model = build("gpt2")
    left: list[Tensor] = []
    place = getattr(anatomy(model).blocks[1].module, inside)
    handle = place.register_forward_hook(lambda _, __, output: left.append(output))
    with running(model, schedule_of):
        value = loss(model, "gpt2") + left[0].square().mean()
        with pytest.raises(SegmentError, match="a tensor left a block by another way than its output"):
            value.backward()
    handle.remove()
    model.zero_grad()
    with running(model, schedule_of):
        loss(model, "gpt2").backward()


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
    with pytest.raises(ValueError, match="pass those of all 1 blocks, not of 0"), executed(blocks, one_by_one(1)):
        pass
