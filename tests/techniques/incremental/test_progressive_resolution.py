"""Progressive resolution: the sizes that come, and that nothing of the model is lost."""

from copy import deepcopy
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from suite.loop.run import Run
from suite.loop.stack import Stack
from techniques.incremental.progressive_resolution.technique import ProgressiveResolution
from techniques.incremental.shared.stages import planned_sizes, stage_at
from tests.runs import new_run


def running(technique: ProgressiveResolution, baseline: str = "vit", steps: int = 8, size: str = "nano") -> Run:
    return new_run(baseline, Stack({"resolution": technique}), size=size, recipe="classic", steps=steps)


@given(st.integers(1, 40), st.integers(1, 16), st.floats(0.01, 1), st.integers(1, 8))
def test_sizes_rise_to_the_whole_in_whole_patches(patches: int, unit: int, smallest: float, stages: int):
    sizes = planned_sizes(patches * unit, unit, smallest, stages)
    assert len(sizes) == stages
    assert sizes[-1] == patches * unit
    assert all(size % unit == 0 and size > 0 for size in sizes)
    assert all(small <= large for small, large in pairwise(sizes))


def test_stages_are_equally_long_and_the_last_goes_on():
    assert [stage_at(position, 12, 4) for position in range(14)] == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 5


@pytest.mark.parametrize("baseline", ["vit", "mae"])
def test_the_model_and_its_copies_are_whole_outside_of_a_pass(baseline: str):
    run = running(ProgressiveResolution(), baseline)
    plain = new_run(baseline, size="nano", recipe="classic", steps=8)
    shapes = {name: each.shape for name, each in plain.model.named_parameters()}
    run.train(3)
    assert {name: each.shape for name, each in run.model.named_parameters()} == shapes
    copied = deepcopy(run.model)
    batch, _ = run.next_batch()
    with torch.no_grad():
        ours, theirs = (run.baseline.forward(each.eval(), batch).logits for each in (run.model, copied))
    assert torch.equal(ours, theirs)
    assert {name: each.shape for name, each in copied.named_parameters()} == shapes
    plain.model.load_state_dict(run.model.state_dict())
    assert run.evaluate() == plain.evaluate()


def test_a_pass_that_fails_leaves_the_model_as_it_was():
    run = running(ProgressiveResolution())
    with pytest.raises(RuntimeError):
        run.model(torch.zeros(1, 3, 4, 4))
    assert isinstance(run.model.pos_embed, torch.nn.Parameter)
    assert run.model.patch_embed.img_size == (8, 8)
