"""Runs of blocks on autograd's own graph: gradients to the bit in any tree, and as many forward passes as it says."""

from __future__ import annotations

import gc
import itertools
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from suite.chain import rerun
from suite.chain.chain import Chain
from suite.chain.plan import from_the_input
from suite.chain.rerun import RerunError, Reruns
from suite.chain.schedule import TURN, Op, Schedule, every_input, plain, segmented, tidied
from suite.chain.tree import Item, NotNested, Span, nested
from techniques.rematerialization.rotor.technique import fastest
from techniques.rematerialization.shared.divided import binomial, divided
from techniques.shared.persistent import persistent
from tests.chain.chains import chains
from tests.chain.schedules import schedules

WIDTH = 4


class Block(nn.Module):
    """Reads one tensor or two, gives one, two or a dictionary, and counts its forward passes."""

    def __init__(self, counts: Counter[int], number: int) -> None:
        super().__init__()
        self.one, self.two, self.drop = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Dropout(0.3)
        self.count = lambda: counts.update([number])

    def forward(self, x: Tensor, other: Tensor | None = None, gives: str = "one") -> Any:
        self.count()
        more = self.one(x).tanh() if other is None else other
        x = x + self.two(self.drop(self.one(x + more.sin()).tanh()))
        return x if gives == "one" else (x, more) if gives == "two" else {"x": x, "others": [more, gives]}


Blocks = Sequence[Block]
Loop = Callable[[Blocks, Tensor], Tensor]


def in_a_row(blocks: Blocks, x: Tensor) -> Tensor:
    for block in blocks:
        x = block(x)
    return x


def down_and_up(blocks: Blocks, x: Tensor) -> Tensor:
    """The first half's outputs go to the second half, too, the last one first."""
    half = len(blocks) // 2
    skipped = [x]
    for block in blocks[:half]:
        skipped.append(block(skipped[-1]))
    x = skipped[-1]
    for block in blocks[half:]:
        x = block(x, skipped.pop() if skipped else None)
    return x


def biased(blocks: Blocks, x: Tensor) -> Tensor:
    """The first block makes what all others read and hand on, as T5's position bias."""
    bias = None
    for block in blocks:
        x, bias = block(x, bias, gives="two")
    return x * bias


def in_dictionaries(blocks: Blocks, x: Tensor) -> Tensor:
    given, collected = {"x": x}, []
    for block in blocks:
        given = block(given["x"], gives="dictionary")
        collected.append(given["others"][0])
    return given["x"] + sum(collected)


def by_name(blocks: Blocks, x: Tensor) -> Tensor:
    for block in blocks:
        x = block(other=None, x=x)
    return x


def changed_between(blocks: Blocks, x: Tensor) -> Tensor:
    for number, block in enumerate(blocks):
        x = block(x * 1.5 if number % 2 else x, other=x.detach() if number % 3 else x.tanh())
    return x


def written_between(blocks: Blocks, x: Tensor) -> Tensor:
    for block in blocks:
        x = block(x)
        x += 0.5
    return x


def with_some_left_out(blocks: Blocks, x: Tensor) -> Tensor:
    left = torch.randint(0, len(blocks), (2,)).tolist()
    for number, block in enumerate(blocks):
        if number not in left:
            x = block(x) + x
    return x


def with_a_side_output(blocks: Blocks, x: Tensor) -> Tensor:
    collected = []
    hooks = [block.drop.register_forward_hook(lambda _, __, output: collected.append(output)) for block in blocks]
    for block in blocks:
        x = block(x)
    for hook in hooks:
        hook.remove()
    return x + sum(each.square() for each in collected)


LOOPS = {
    each.__name__: each
    for each in (
        in_a_row,
        down_and_up,
        biased,
        in_dictionaries,
        by_name,
        changed_between,
        written_between,
        with_some_left_out,
        with_a_side_output,
    )
}


@st.composite
def trees(draw: st.DrawFn, start: int, end: int) -> tuple[Item, ...]:
    """Any tree over calls ``start`` to ``end`` - 1."""
    items: list[Item] = []
    while start < end:
        stop = draw(st.integers(start, end))
        items.append(start if stop == start else Span(start, stop, draw(trees(start, stop))))
        start = max(stop, start + 1)
    return tuple(items)


def blocks_of(depth: int) -> tuple[list[Block], Counter[int]]:
    torch.manual_seed(0)
    counts = Counter[int]()
    return [Block(counts, number) for number in range(depth)], counts


def passed(blocks: Blocks, loop: Loop) -> list[Tensor]:
    """The output, the inputs' gradient and the weights', of one pass."""
    x = torch.ones(3, WIDTH).requires_grad_()
    leaves = [x, *nn.ModuleList(blocks).parameters()]
    for leaf in leaves:
        leaf.grad = None
    torch.manual_seed(1)
    output = loop(blocks, x * 1.0)
    output.square().mean().backward()
    return [output.detach(), *(torch.zeros(()) if leaf.grad is None else leaf.grad for leaf in leaves)]


def same(ours: list[Tensor], theirs: list[Tensor]) -> bool:
    return all(map(torch.equal, ours, theirs))


def runs_of(items: Sequence[Item], end: int) -> Counter[int]:
    """Forward passes behind the first, of calls to ``end``: a rerun ends where its last value is there."""
    found = Counter[int]()
    for item in items:
        if isinstance(item, Span):
            last = item.items[-1]
            found.update(range(item.start, last.start if isinstance(last, Span) else item.end))
            found += runs_of(item.items, item.end)
    return found


@settings(max_examples=100, deadline=None)
@given(st.data(), st.integers(2, 8), st.sampled_from(sorted(LOOPS)))
def test_gradients_are_plain_ones_in_any_tree(data: st.DataObject, depth: int, name: str) -> None:
    tree = data.draw(trees(0, depth))
    blocks, counts = blocks_of(depth)
    expected, random = passed(blocks, LOOPS[name]), torch.get_rng_state()
    once = Counter(counts)
    counts.clear()
    with Reruns(blocks, tree).installed():
        assert same(passed(blocks, LOOPS[name]), expected)
        assert torch.equal(torch.get_rng_state(), random)
    if name == "in_a_row":
        assert counts == once + runs_of(tree, depth)
    assert not any("forward" in vars(block) for block in blocks)


@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(1, 8))
def test_a_schedule_s_tree_runs_each_block_as_often_as_it_does(data: st.DataObject, depth: int) -> None:
    schedule = data.draw(schedules(depth, moves=False))
    blocks, counts = blocks_of(depth)
    expected = passed(blocks, in_a_row)
    counts.clear()
    with Reruns(blocks, nested(schedule)).installed():
        assert same(passed(blocks, in_a_row), expected)
    assert [counts[number] for number in range(depth)] == [schedule.runs(number) for number in range(depth)]


def test_one_block_may_be_all_calls() -> None:
    (block,), counts = blocks_of(1)
    expected = passed([block] * 5, in_a_row)
    counts.clear()
    with Reruns([block] * 5, [0, Span(1, 4, (1, Span(2, 3, (2,)), 3)), 4]).installed():
        assert same(passed([block] * 5, in_a_row), expected)
    assert counts[0] == 5 + 3 + 1


def test_a_pass_that_ended_in_an_exception_is_over() -> None:
    """Although the block has more calls to come."""
    (block,), counts = blocks_of(1)
    expected = passed([block] * 5, in_a_row)

    def stumbles(*_: Any) -> None:
        if counts[0] == 3:
            raise ZeroDivisionError

    with Reruns([block] * 5, [0, Span(1, 4, (1, 2, 3)), 4]).installed():
        hook = block.drop.register_forward_hook(stumbles)
        counts.clear()
        with pytest.raises(ZeroDivisionError):
            passed([block] * 5, in_a_row)
        hook.remove()
        counts.clear()
        assert same(passed([block] * 5, in_a_row), expected)
    assert counts[0] == 5 + 3


class Cache:
    """Of keys and values, as transformers' have it."""

    def __init__(self) -> None:
        self.values: list[Tensor] = []

    def update(self, value: Tensor) -> None:
        self.values.append(value)

    def get_seq_length(self) -> int:
        return len(self.values)


class Remembers(nn.Linear):
    def forward(self, x: Tensor, cache: Cache, reads: bool) -> Tensor:
        x = super().forward(x * (1 + reads * cache.get_seq_length())).tanh()
        cache.update(x)
        return x


def test_a_rerun_finds_the_cache_of_its_first_time_and_fills_none() -> None:
    torch.manual_seed(0)
    blocks, caches = [Remembers(WIDTH, WIDTH) for _ in range(3)], []

    def loop(blocks: Any, x: Tensor) -> Tensor:
        caches.append(Cache())
        for number, block in enumerate(blocks):
            x = block(x, cache=caches[-1], reads=number == 0)
        return x

    expected = passed(blocks, loop)
    with Reruns(blocks, [Span(0, 1, (0,)), 1, 2]).installed():
        assert same(passed(blocks, loop), expected)
    assert [len(cache.values) for cache in caches] == [3, 2]


def test_a_second_backward_pass_runs_again_and_a_graph_outlives_what_is_installed() -> None:
    blocks, counts = blocks_of(3)
    expected = passed(blocks, in_a_row)[2:]
    torch.manual_seed(1)
    with Reruns(blocks, [Span(0, 2, (0, 1)), 2]).installed():
        value = in_a_row(blocks, torch.ones(3, WIDTH)).square().mean()
    counts.clear()
    leaves = list(nn.ModuleList(blocks).parameters())
    for keep in (True, False):
        assert same(list(torch.autograd.grad(value, leaves, retain_graph=keep)), expected)
    assert counts == {0: 2, 1: 2}


def test_no_frame_lives_longer_than_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor waits for the garbage collector."""
    alive: list[weakref.ref[Any]] = []
    for name in ("_Frame", "_Refill", "_Holder", "_Pass"):
        kind = getattr(rerun, name)

        def begin(self: Any, *args: Any, own: Any = kind.__init__, **kwargs: Any) -> None:
            own(self, *args, **kwargs)
            alive.append(weakref.ref(self))

        monkeypatch.setattr(kind, "__init__", begin)
    blocks, _ = blocks_of(6)
    gc.disable()
    try:
        with Reruns(blocks, [Span(0, 4, (Span(0, 2, (0, 1)), 2, 3)), Span(4, 5, (4,)), 5]).installed():
            value = down_and_up(blocks, torch.ones(3, WIDTH)).mean()
            assert any(each() is not None for each in alive)
            value.backward()
            assert len(alive) > 10 and not any(each() is not None for each in alive)
            del value
            in_a_row(blocks, torch.ones(3, WIDTH))  # nobody asks for gradients
        assert not any(each() is not None for each in alive)
    finally:
        gc.enable()


# what cannot run again ------------------------------------------------------------------------------------------------


class Odd(nn.Module):
    """Does something else each time."""

    def __init__(self, does: Callable[[Tensor, int], Tensor]) -> None:
        super().__init__()
        self.one, self.times = nn.Linear(WIDTH, WIDTH), itertools.count(1)
        self.does = lambda x: does(self.one(x), next(self.times))

    def forward(self, x: Tensor) -> Tensor:
        return self.does(x)


def other_shapes(x: Tensor, time: int) -> Tensor:
    return x.sin()[: 4 - time].exp().mean(0, keepdim=True)


def other_types(x: Tensor, time: int) -> Tensor:
    return (x.sin() if time == 1 else x.double().sin()).float()


def fewer(x: Tensor, time: int) -> Tensor:
    return x.sin().cos() if time == 1 else x


def writes(x: Tensor, time: int) -> Tensor:
    y = x.exp()
    z = y.tanh()
    y += 1
    return z * y.detach()


ERRORS = {
    other_shapes: r"block 1 \(Odd\) saved \[2, 4\] of torch.float32 when it ran again, and \[3, 4\] of torch.float32",
    other_types: "saved .* of torch.float64 when it ran again, and .* of torch.float32 at first",
    fewer: "block 1 .Odd. saved fewer tensors when it ran again",
    writes: "block 1 .Odd. writes in place to a value that a rerun reads",
}


@pytest.mark.parametrize("does", ERRORS)
def test_what_differs_on_a_rerun_is_said_and_never_computed_with(does: Callable[[Tensor, int], Tensor]) -> None:
    torch.manual_seed(0)
    blocks = [nn.Linear(WIDTH, WIDTH), Odd(does), nn.Linear(WIDTH, WIDTH)]
    with Reruns(blocks, [0, Span(1, 2, (1,)), 2]).installed():
        value = in_a_row(blocks, torch.ones(3, WIDTH)).mean()
    with pytest.raises(RerunError, match=ERRORS[does]) as caught:
        value.backward()
    assert str(caught.value).endswith(rerun.SAME) and "\n" not in str(caught.value)


class Writes(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.add_(1))


def test_a_write_in_place_to_what_a_run_was_given_is_noticed() -> None:
    torch.manual_seed(0)
    blocks = [nn.Linear(WIDTH, WIDTH), Writes(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)]
    with Reruns(blocks, [0, Span(1, 2, (1,)), 2]).installed():
        value = in_a_row(blocks, torch.ones(3, WIDTH)).mean()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        value.backward()


# trees of schedules ---------------------------------------------------------------------------------------------------


def operations(items: Sequence[Item], turn: Sequence[Op] = ()) -> list[Op]:
    """What a tree computes, in order; ``turn`` comes between forward and backward."""
    forward, backward = [], []
    for item in items:
        if isinstance(item, Span):
            forward += [Op("run", block) for block in range(item.start, item.end)]
            backward.insert(0, operations(item.items))
        else:
            forward.append(Op("save", item))
            backward.insert(0, [Op("back", item)])
    return [*forward, *turn, *(op for ops in backward for op in ops)]


def computed(schedule: Schedule) -> list[Op]:
    return [op for op in schedule.ops if op.computes or op == TURN]


@pytest.mark.parametrize("depth", [1, 2, 5, 9])
def test_plain_segmented_and_divided_schedules_are_trees(depth: int) -> None:
    found = {
        plain(depth): tuple(range(depth)),
        every_input(depth): tuple(Span(block, block + 1, (block,)) for block in range(depth)),
        segmented(depth, [(0, depth)]): (Span(0, depth, tuple(range(depth))),),
    }
    for schedule, tree in found.items():
        assert nested(schedule) == tree
    for schedule in (*found, from_the_input(depth), *(divided(depth, slots, binomial) for slots in range(1, depth))):
        assert operations(nested(schedule), [TURN]) == computed(schedule)


@settings(max_examples=40, deadline=None)
@given(chains(most=6, any_ends=True), st.integers(0, 300))
def test_rotor_s_schedules_are_trees(chain: Chain, more_bytes: int) -> None:
    schedule = fastest(chain, persistent(chain).least_bytes + more_bytes)
    assert operations(nested(schedule), [TURN]) == computed(schedule)


@given(st.data(), st.integers(1, 8))
def test_any_nesting_is_a_tree(data: st.DataObject, depth: int) -> None:
    schedule = data.draw(schedules(depth, moves=False))
    assert operations(nested(schedule), [TURN]) == computed(schedule)


def read(text: str) -> list[Op]:
    kinds = {"f": "run", "F": "save", "B": "back", ">": "offload"}
    return [TURN if each == "|" else Op(kinds[each[0]], int(each[1:])) for each in text.split()]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("f0 f1 F2 | B2 f0 F1 F0 B1 B0", "back 1 is due, and F0 comes"),
        ("f0 f1 f2 F3 | B3 F0 f1 F2 B2 f0 F1 B1 B0", "block 1 is due, and no run that ends there begins"),
        ("f0 F1 | B1 >0 F0 B0", "moves weights, or what runs again"),
    ],
)
def test_what_saves_early_or_moves_is_no_tree(text: str, why: str) -> None:
    ops = read(text)
    schedule = tidied(max(op.block for op in ops) + 1, ops)
    with pytest.raises(NotNested, match=why):
        nested(schedule)
