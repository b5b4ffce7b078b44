"""SET: its drop written a second time, its graphs' densities, and its interval."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from suite.loop.run import Run
from suite.loop.stack import Stack
from techniques.shared.sparse.masks import masked
from techniques.sparse_training.set.technique import Set, core
from tests.runs import new_run


def running(technique: Set, steps: int = 12, baseline: str = "gpt") -> Run:
    return new_run(baseline, Stack({"set": technique}), size="pico", recipe="classic", steps=steps)


@settings(max_examples=60)
@given(st.integers(2, 60), st.integers(0, 2**31), st.floats(0.01, 1))
def test_each_sign_loses_its_weights_nearest_to_zero_one_at_a_time(size, seed, zeta):
    random = torch.Generator().manual_seed(seed)
    weight = torch.randn(size, generator=random)
    mask = torch.rand(size, generator=random) < 0.6
    weight[mask & (torch.rand(size, generator=random) < 0.1)] = 0.0

    kept = set()
    for sign in (1, -1):
        side = {index for index in range(size) if mask[index] and sign * weight[index] > 0}
        for _ in range(int(zeta * len(side))):
            side.remove(min(side, key=lambda index: abs(weight[index].item())))
        kept |= side
    assert {index for index in range(size) if core(weight, mask, zeta)[index]} == kept


def test_epsilon_draws_equation_1():
    run = running(Set(epsilon=6.0))
    for weight, mask in masked(run.anatomy):
        n, m = weight.shape
        mean = 6 * (n + m)
        assert abs(int(mask.sum()) - mean) < 5 * math.sqrt(mean * (1 - mean / (n * m)))


def test_an_interval_is_an_epoch_or_a_25th_of_a_short_run():
    run = running(Set(), steps=8)
    epoch = math.ceil(len(run.data.train) / run.recipe.batch_size)
    assert Set().steps_between(run) == 2
    long = running(Set(), steps=25 * epoch + 7)
    assert Set().steps_between(long) == epoch
    assert Set().steps_between(running(Set(), steps=100)) == 4
    assert Set(interval=5).steps_between(long) == 5


def test_two_techniques_of_sparse_training_are_refused():
    with pytest.raises(ValueError, match="keep one"):
        new_run("gpt", "set+rigl", size="pico", recipe="classic", steps=8)


def test_bad_settings_say_what_fits():
    with pytest.raises(ValueError, match=r"choose one below 25\.6"):
        new_run("gpt", "set:epsilon=30", size="pico", steps=8)
