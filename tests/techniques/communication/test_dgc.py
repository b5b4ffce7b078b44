"""Deep Gradient Compression: the stages of its warm-up, and the recipe that it makes."""

import math

import pytest

from suite.loop.recipe import Recipe
from techniques.communication.dgc.technique import DGC, ratio_at


def test_the_warm_up_sends_a_quarter_of_the_stage_before():
    ratios = [ratio_at(progress, 0.001, 0.2) for progress in (0.0, 0.049, 0.051, 0.11, 0.16, 0.2, 0.9)]
    assert ratios == [0.25, 0.25, 0.25**2, 0.25**3, 0.25**4, 0.001, 0.001]
    assert ratio_at(0.0, 0.001, 0.0) == 0.001
    assert ratio_at(0.19, 0.1, 0.2) == 0.1, "never fewer than afterwards"


def test_clipping_is_local_and_the_rate_is_sgds():
    technique = DGC()
    recipe = technique.recipe(Recipe(steps=10, batch_size=4, learning_rate=1e-3, gradient_clip=1.0, weight_decay=0.1))
    assert technique.largest_norm == pytest.approx(1 / math.sqrt(2))
    assert (recipe.gradient_clip, recipe.learning_rate, recipe.world_size) == (0.0, pytest.approx(0.1), 2)
    assert recipe.learning_rate * recipe.weight_decay == pytest.approx(1e-4), "what the decay takes off stays"
