"""Early-bird tickets: how often masks come, and what the card says of rates of zero."""

from __future__ import annotations

import pytest

from suite.loop.stack import Stack
from techniques.sparse_training.early_bird.technique import EarlyBird
from tests.runs import new_run


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
