"""Deep Gradient Compression against Algorithm 4 by hand, against momentum SGD, and its warm-up."""

import math

import pytest
import torch

from suite.loop.recipe import Recipe
from techniques.communication.dgc.technique import DGC, corrected, ratio_at
from tests.techniques.communication.given import RANKS, SHAPES, STEPS, gradients, mean_gradients

MOMENTUM = 0.9


def test_trajectory_is_algorithm_4s(two_ranks):
    """Written once more, in float64; vectors have plain momentum."""
    u = [{name: torch.zeros(shape).double() for name, shape in SHAPES.items()} for _ in range(RANKS)]
    v = [{name: torch.zeros(shape).double() for name, shape in SHAPES.items()} for _ in range(RANKS)]
    for step in range(STEPS):
        for name, shape in SHAPES.items():
            total = torch.zeros(shape).double()
            for rank in range(RANKS):
                u[rank][name] = MOMENTUM * u[rank][name] + gradients(step, rank)[name].double()
                v[rank][name] = v[rank][name] + u[rank][name]
                magnitudes = v[rank][name].abs()
                count = magnitudes.numel() if len(shape) < 2 else max(1, math.ceil(0.1 * magnitudes.numel()))
                sent = magnitudes >= magnitudes.flatten().sort().values[-count]
                total += v[rank][name] * sent
                v[rank][name] *= ~sent
                u[rank][name] *= ~sent if len(shape) > 1 else 1
            if len(shape) > 1:
                got = two_ranks[0]["dgc"]["means"][step][name].double()
                torch.testing.assert_close(got, total / RANKS, rtol=1e-5, atol=1e-5)


def test_vectors_get_plain_momentum(two_ranks):
    velocity = torch.zeros(SHAPES["vector"]).double()
    for step, means in enumerate(two_ranks[0]["dgc"]["means"]):
        velocity = MOMENTUM * velocity + mean_gradients(step)["vector"]
        torch.testing.assert_close(means["vector"].double(), velocity, rtol=1e-5, atol=1e-6)


def test_where_all_is_sent_nothing_is_added_up_or_carried_on(two_ranks):
    """Masking leaves SGD without momentum at a ratio of 1: each velocity is sent, and begins at 0."""
    for step, means in enumerate(two_ranks[0]["dgc_whole"]["means"]):
        torch.testing.assert_close(means["matrix"].double(), mean_gradients(step)["matrix"], rtol=1e-6, atol=1e-6)


def test_an_entry_that_is_sent_late_has_moved_as_momentum_sgd_would_have_moved_it():
    """Momentum correction: until it is sent, what is pending is the sum of the velocities."""
    velocity, pending = torch.zeros(2, 2), torch.zeros(2, 2)
    by_hand_velocity = by_hand = 0.0
    for step in range(5):
        gradient = torch.tensor([[100.0, 1.0 + step], [0.0, 0.0]])
        values, indices = corrected(gradient, velocity, pending, MOMENTUM, 0.25)
        by_hand_velocity = MOMENTUM * by_hand_velocity + 1.0 + step
        by_hand += by_hand_velocity
        assert indices.tolist() == [0] and values.tolist() == [100.0]  # masked: never more than its gradient
    assert pending[0, 1].item() == pytest.approx(by_hand) and velocity[0, 1].item() == pytest.approx(by_hand_velocity)
    assert not pending[0, 0] and not velocity[0, 0]


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


def test_a_rank_sends_eight_bytes_an_entry_and_reduces_vectors(two_ranks):
    counts = [max(1, math.ceil(0.1 * torch.Size(shape).numel())) for shape in SHAPES.values() if len(shape) > 1]
    assert two_ranks[0]["dgc"]["ring_bytes"] == STEPS * (8 * sum(counts) + 4 * 17)
