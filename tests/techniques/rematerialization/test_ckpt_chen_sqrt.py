"""Recomputed segments: equal gradients to the bit, the formulas of the square-root rule, and what is run again."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from suite.loop.run import Run
from suite.loop.sites import NotAttached
from suite.loop.stack import Stack
from suite.meters.counters import Counters, count_step
from techniques.rematerialization.ckpt_chen_sqrt.technique import ChenSqrt, peak_slots, segments
from tests.model.further_models import further_run
from tests.runs import new_run


def running(technique: ChenSqrt | None, baseline: str = "gpt") -> Run:
    stack = Stack({} if technique is None else {"ckpt": technique})
    return new_run(baseline, stack, size="pico", recipe="classic", steps=6)


@given(st.integers(1, 200), st.data())
def test_segments_cover_the_blocks_once_and_differ_by_one_at_most(depth, data):
    count = data.draw(st.integers(1, depth))
    ranges = segments(depth, count)
    assert [block for start, end in ranges for block in range(start, end)] == list(range(depth))
    lengths = [end - start for start, end in ranges]
    assert len(lengths) == count
    assert max(lengths) - min(lengths) <= 1
    assert lengths[-1] == max(lengths) == math.ceil(depth / count)


@pytest.mark.parametrize(("depth", "least"), [(12, 7), (24, 10), (48, 14), (96, 20)])
def test_the_square_root_is_the_best_number_of_segments(depth, least):
    assert min(peak_slots(depth, count) for count in range(1, depth + 1)) == least
    assert peak_slots(depth, math.ceil(math.sqrt(depth))) == least


def counted(technique: ChenSqrt | None) -> Counters:
    run = running(technique)
    run.train(2)
    return count_step(lambda: run.train(1), run.model, run.optimizer, {})


def block_forward_flops() -> int:
    """FLOPs of all blocks' forward passes, from runs of different segments without early stop."""
    everything = counted(ChenSqrt(count=1, keep_last=False, early_stop=False))
    return everything.flops - counted(None).flops


def test_flops_grow_by_the_recomputed_blocks_and_early_stop_saves_a_part():
    plain, blocks = counted(None), block_forward_flops()
    depth = running(None).anatomy.depth
    kept = counted(ChenSqrt(count=2, keep_last=True, early_stop=False))
    again = sum(end - start for start, end in ChenSqrt(count=2, keep_last=True).recomputed([(0, depth)]))
    assert again == depth - math.ceil(depth / 2)
    assert kept.flops - plain.flops == blocks * again // depth
    stopped = counted(ChenSqrt(count=2, keep_last=True))
    assert plain.flops < stopped.flops <= kept.flops


def runs_of_attention(run: Run) -> list[int]:
    """How often each block's attention output runs, from now on."""
    blocks = run.anatomy.every_block
    counts = [0] * len(blocks)
    for number, block in enumerate(blocks):

        def count(*_: object, number: int = number) -> None:
            counts[number] += 1

        block.attention_output.module.register_forward_hook(count)
    return counts


@pytest.mark.parametrize(
    ("name", "once", "sites"),
    [("albert", 4, 1), ("swin", 1, 4), ("swinv2", 1, 4), ("t5", 1, 6), ("cait", 1, 4), ("gpt2", 1, 2)],
)
def test_every_block_runs_again_and_the_trajectory_is_the_plain_one(name, once, sites):
    """A block that is called again and again, stages of two blocks, and a first block that gets other arguments."""
    plain = further_run(name, ChenSqrt(count=0))
    expected = plain.train(2)
    run = further_run(name, ChenSqrt(early_stop=False))
    assert len(run.attachment.sites) == sites
    losses = run.train(1)
    counts = runs_of_attention(run)
    losses += run.train(1)
    assert counts == [2 * once] * len(counts)
    assert losses == expected
    for mine, other in zip(run.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.equal(mine, other)


def test_growing_stacks_are_planned_anew():
    run = further_run("gpt_neox", "progressive_stacking:fractions=0.2/0.4+ckpt_chen_sqrt", steps=10)
    run.train(10)
    (stack,) = run.anatomy.stacks
    plan = run.technique.techniques["ckpt_chen_sqrt"].plan(run, stack)
    assert plan == [(0, 2), (2, 4)] and stack.depth == 4


def test_nothing_to_recompute_is_an_error():
    with pytest.raises(NotAttached, match="names no site"):
        further_run("albert", ChenSqrt(keep_last=True))
