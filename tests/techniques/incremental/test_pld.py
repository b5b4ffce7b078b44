"""Progressive layer dropping: its schedule, its draws, and what a dropped block costs."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from suite.loop.run import Run
from suite.loop.stack import Stack
from suite.meters.activations import SavedActivations
from suite.model.skipping import skipping
from techniques.incremental.pld.technique import ProgressiveLayerDropping, drawn, keep_probabilities, keep_rate
from tests.model.further_models import further_run
from tests.runs import new_run


def running(pld: ProgressiveLayerDropping, baseline: str = "gpt", steps: int = 16) -> Run:
    return new_run(baseline, Stack({"pld": pld}), size="nano", recipe="classic", steps=steps)


def test_the_papers_schedule():
    assert keep_rate(0.0, 0.5, 100.0) == 1.0
    assert keep_rate(0.01, 0.5, 100.0) == pytest.approx(0.5 + 0.5 / math.e)
    assert keep_rate(1.0, 0.5, 100.0) == pytest.approx(0.5)
    assert sum(keep_probabilities(0.5, 12)) / 12 == pytest.approx(0.729, abs=5e-4)


@given(st.floats(0.01, 1), st.floats(0, 1), st.integers(1, 50))
def test_p_falls_in_depth_and_time_to_its_floor(floor: float, progress: float, depth: int):
    theta = keep_rate(progress, floor, 100.0)
    assert floor <= theta <= 1
    assert keep_rate(progress / 2, floor, 100.0) >= theta
    probabilities = keep_probabilities(theta, depth)
    assert probabilities[-1] == pytest.approx(theta)
    assert all(deeper <= shallower for shallower, deeper in pairwise([1.0, *probabilities]))


def test_draws_depend_on_seed_and_step_alone():
    assert drawn([0.5] * 64, 1, 2) == drawn([0.5] * 64, 1, 2)
    assert drawn([0.5] * 64, 1, 2) != drawn([0.5] * 64, 1, 3)
    assert drawn([0.5] * 64, 1, 2) != drawn([0.5] * 64, 2, 2)
    assert all(drawn([1.0] * 64, 1, 2))


def test_the_output_is_the_formulas():
    """Of a pre-norm ViT in float64: x' = x + A(x) / p, x'' = x' + M(x') / p."""
    pld = ProgressiveLayerDropping()
    run = running(pld, "vit")
    block = run.anatomy.blocks[1].module.double()
    x = torch.randn(2, 16, 96, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with pld.switched(run.model, [0.9, 0.8, 0.7, 0.6], [True] * 4):
        ours = block(x)
    half = x + block.attn(block.norm1(x)) / 0.8
    torch.testing.assert_close(ours, half + block.mlp(block.norm2(half)) / 0.8, rtol=1e-12, atol=1e-12)
    with pld.switched(run.model, [0.9, 0.8, 0.7, 0.6], [True, False, True, True]):
        assert block(x) is x
    torch.testing.assert_close(block(x), block.forward(x))
    assert "forward" not in vars(block)


def test_what_is_left_out_saves_nothing():
    run = new_run("vit", size="nano", recipe="classic", steps=4)
    block = run.anatomy.blocks[0].module
    x = torch.randn(2, 16, 96, requires_grad=True)
    with skipping([block]), SavedActivations() as saved:
        block(hidden_states=x)
    assert saved.saved_bytes == 0


def test_it_follows_a_model_that_another_technique_makes_deeper():
    run = new_run("gpt", "progressive_stacking+pld", size="nano", recipe="classic", steps=12)
    run.train(12)
    assert len(run.technique.techniques["pld"].blocks) == 4
    run.attachment.end(run)


@pytest.mark.parametrize(("name", "reason"), [("t5", "cannot be left out"), ("albert", "not once"), ("deit3", "scale")])
def test_what_has_no_switchable_blocks_is_refused(name: str, reason: str):
    with pytest.raises(ValueError, match=reason):
        further_run(name, ProgressiveLayerDropping())
    further_run(name, ProgressiveLayerDropping(theta=1.0)).train(1)


def test_bad_settings_say_what_to_do():
    with pytest.raises(ValueError, match="modern"):
        new_run("gpt", "pld", size="pico", recipe="compiled", steps=4)
