"""Early-bird tickets: the distance, when the mask has settled, and what the draw leaves of the function."""

from __future__ import annotations

from collections import deque

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from suite.loop.stack import Stack
from techniques.sparse_training.early_bird.technique import EarlyBird, distance, emerged
from tests.runs import new_run


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=40))
def test_the_distance_is_the_share_of_different_entries(pairs: list[tuple[bool, bool]]) -> None:
    one, other = (torch.tensor(each) for each in zip(*pairs, strict=True))
    assert distance(one, other) == pytest.approx(sum(a != b for a, b in pairs) / len(pairs))
    assert distance(one, other) == distance(other, one)
    assert distance(one, one) == 0


def test_random_masks_of_halves_are_half_apart() -> None:
    random = torch.Generator().manual_seed(0)
    one, other = (torch.rand(100_000, generator=random) < 0.5 for _ in range(2))
    assert distance(one, other) == pytest.approx(0.5, abs=0.01)


@given(st.lists(st.lists(st.booleans(), min_size=8, max_size=8), max_size=9), st.integers(2, 5))
def test_a_ticket_emerges_by_the_newest_mask_against_those_before(masks: list[list[bool]], memory: int) -> None:
    """Written a second time, one entry at a time; older masks than the memory holds say nothing."""
    queue = deque((torch.tensor(each) for each in masks), maxlen=memory)
    recent = masks[-memory:]
    differences = [sum(a != b for a, b in zip(recent[-1], each, strict=True)) / 8 for each in recent[:-1]]
    assert emerged(queue, memory, 0.25) == (len(recent) == memory and max(differences) <= 0.25)


def test_the_mask_comes_once_an_epoch_of_the_papers() -> None:
    assert EarlyBird().steps_between(16_000) == 100
    assert EarlyBird().steps_between(20) == 1
    assert EarlyBird(interval=7).steps_between(16_000) == 7


def test_a_rate_of_zero_settles_at_once() -> None:
    """The limitation that the card names: masks of equal coefficients never differ."""
    own = EarlyBird()
    run = new_run("gpt", Stack({"early_bird": own}), size="pico", recipe="classic", steps=24, rate=1e-30)
    run.train(4)
    assert not own.ticket
    run.train(1)
    assert own.ticket


def test_a_model_too_narrow_is_refused() -> None:
    with pytest.raises(ValueError, match=r"0\.2 of the 2 heads"):
        new_run("gpt", "early_bird:share=0.2", size="pico", recipe="classic", steps=8)
