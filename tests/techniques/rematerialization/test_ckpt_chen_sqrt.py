"""Recomputed segments: equal gradients to the bit, the formulas of the square-root rule, and what is run again."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from suite.contract.run import Run
from suite.contract.stack import Stack
from suite.meters.counters import Counters, count_step
from techniques.rematerialization.ckpt_chen_sqrt.technique import ChenSqrt, peak_slots, segments
from tests.runs import new_run


def running(technique: ChenSqrt | None, baseline: str = "gpt") -> Run:
    stack = Stack({} if technique is None else {"ckpt": technique})
    return new_run(baseline, stack, size="nano", recipe="classic", steps=6)


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
    assert peak_slots(depth, math.isqrt(depth)) == least


@pytest.mark.parametrize("baseline", ["bert", "gpt", "mae", "vit"])
def test_trajectory_is_the_baselines_to_the_bit_with_dropout(baseline):
    runs = []
    for technique in (ChenSqrt(keep_last=False), None):
        runs.append(running(technique, baseline))
        dropouts = [module for module in runs[-1].model.modules() if isinstance(module, torch.nn.Dropout)]
        assert dropouts, "the CPU sizes drop nothing out, and have the modules for it"
        for module in dropouts:
            module.p = 0.1
        runs[-1].train(2)
    for mine, plain in zip(*(run.model.parameters() for run in runs), strict=True):
        assert torch.equal(mine, plain)
        if plain.grad is not None:  # fixed position embeddings have none
            assert torch.equal(mine.grad, plain.grad)


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
    kept = counted(ChenSqrt(count=2, early_stop=False))
    again = sum(end - start for start, end in ChenSqrt(count=2).recomputed(depth))
    assert again == depth - math.ceil(depth / 2)
    assert kept.flops - plain.flops == blocks * again // depth
    stopped = counted(ChenSqrt(count=2))
    assert plain.flops < stopped.flops <= kept.flops


def test_memory_falls():
    plain, mine = counted(None), counted(ChenSqrt())
    assert mine.saved_activation_bytes < 0.8 * plain.saved_activation_bytes
    assert mine.peak_tensor_bytes < plain.peak_tensor_bytes


def test_no_segments_is_the_baseline():
    assert counted(ChenSqrt(count=0)) == counted(None)


def test_bad_settings_say_what_to_do():
    with pytest.raises(ValueError, match="0 for no recomputation"):
        ChenSqrt(count=-1)
