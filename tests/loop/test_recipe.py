"""The learning-rate schedule's properties, and what a recipe refuses."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suite.loop.recipe import Recipe

RECIPES = st.builds(
    Recipe,
    steps=st.integers(1, 500),
    batch_size=st.just(8),
    learning_rate=st.floats(1e-6, 10),
    schedule=st.sampled_from(["cosine", "linear", "constant"]),
    warmup_fraction=st.floats(0, 0.99),
    final_learning_rate_ratio=st.floats(0, 1),
)


def warmup(recipe: Recipe) -> int:
    return round(recipe.warmup_fraction * recipe.steps)


@given(RECIPES)
def test_the_learning_rate_stays_between_zero_and_its_peak(recipe: Recipe) -> None:
    rates = [recipe.learning_rate_at(step) for step in range(recipe.steps)]
    assert all(0 <= rate <= recipe.learning_rate * (1 + 1e-12) for rate in rates)


@given(RECIPES)
def test_warmup_rises_linearly_to_the_peak(recipe: Recipe) -> None:
    steps = warmup(recipe)
    for step in range(steps):
        assert recipe.learning_rate_at(step) == pytest.approx(recipe.learning_rate * (step + 1) / steps)
    if steps:
        assert recipe.learning_rate_at(steps - 1) == pytest.approx(recipe.learning_rate, rel=1e-12)


@given(RECIPES)
def test_after_the_warmup_it_only_falls_and_ends_at_the_final_ratio(recipe: Recipe) -> None:
    start = warmup(recipe)
    rates = [recipe.learning_rate_at(step) for step in range(start, recipe.steps)]
    assert all(later <= earlier * (1 + 1e-12) for earlier, later in pairwise(rates))
    if rates:
        end = 1.0 if recipe.schedule == "constant" else recipe.final_learning_rate_ratio
        assert rates[-1] == pytest.approx(recipe.learning_rate * end, abs=1e-12)


@given(st.integers(2, 300), st.floats(0, 1))
def test_the_decay_has_its_formula(steps: int, floor: float) -> None:
    recipe = Recipe(steps, 8, 0.1, "cosine", warmup_fraction=0.0, final_learning_rate_ratio=floor)
    straight = replace(recipe, schedule="linear")
    for step in range(steps):
        done = (step + 1) / steps
        cosine = floor + (1 - floor) * (1 + math.cos(math.pi * done)) / 2
        assert recipe.learning_rate_at(step) == pytest.approx(0.1 * cosine, abs=1e-12)
        assert straight.learning_rate_at(step) == pytest.approx(0.1 * (1 - done * (1 - floor)), abs=1e-12)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": 0}, "steps must be positive"),
        ({"learning_rate": math.nan}, "learning_rate must be positive"),
        ({"weight_decay": -1e-3}, "weight_decay must be 0 or more"),
        ({"beta2": 1.0}, r"beta2 must lie in \[0, 1\)"),
        ({"world_size": 3}, "take 1, 2, 4 or 8 of them"),
    ],
)
def test_an_impossible_recipe_is_refused(change: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(Recipe(10, 8, 0.1), **change)  # type: ignore[arg-type]


def test_as_dict_rebuilds_the_recipe() -> None:
    recipe = Recipe(10, 8, 0.1, precision="bf16", gradient_clip=0.0)
    assert Recipe(**recipe.as_dict()) == recipe
