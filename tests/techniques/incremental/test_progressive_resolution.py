"""Progressive resolution: the sizes that come, the positions in between, and that nothing of the model is lost."""

from copy import deepcopy
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from suite.loop.run import Run
from suite.loop.stack import Stack
from techniques.incremental.progressive_resolution.technique import ProgressiveResolution, resized
from techniques.incremental.shared.any_size import resampled
from techniques.incremental.shared.grids import cubics, triangles
from techniques.incremental.shared.stages import planned_sizes, stage_at
from tests.model.further_models import further_run
from tests.runs import new_run


def running(technique: ProgressiveResolution, baseline: str = "vit", steps: int = 8, size: str = "nano") -> Run:
    return new_run(baseline, Stack({"resolution": technique}), size=size, recipe="classic", steps=steps)


def test_the_papers_spacing():
    assert planned_sizes(300, 1, 128 / 300, 4) == [128, 185, 243, 300]  # S_0 + (S_e - S_0) i / 3
    assert planned_sizes(224, 16, 0.5, 4) == [112, 144, 192, 224]
    assert planned_sizes(8, 2, 0.5, 4) == [4, 6, 6, 8]


@given(st.integers(1, 40), st.integers(1, 16), st.floats(0.01, 1), st.integers(1, 8))
def test_sizes_rise_to_the_whole_in_whole_patches(patches: int, unit: int, smallest: float, stages: int):
    sizes = planned_sizes(patches * unit, unit, smallest, stages)
    assert len(sizes) == stages
    assert sizes[-1] == patches * unit
    assert all(size % unit == 0 and size > 0 for size in sizes)
    assert all(small <= large for small, large in pairwise(sizes))


def test_stages_are_equally_long_and_the_last_goes_on():
    assert [stage_at(position, 12, 4) for position in range(14)] == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 5


@given(st.integers(1, 9), st.integers(1, 9))
def test_resampling_is_the_matrices(old: int, new: int):
    generator = torch.Generator().manual_seed(10 * old + new)
    table = torch.randn(1, 1 + old * old, 5, generator=generator)
    matrix = cubics(old, new)
    picture = torch.einsum("ai,bj,ijc->abc", matrix, matrix, table[0, 1:].double().reshape(old, old, 5))
    ours = resampled(table, 1, new)
    assert torch.equal(ours[:, 0], table[:, 0])
    torch.testing.assert_close(ours[0, 1:].double(), picture.reshape(new * new, 5), rtol=1e-5, atol=1e-5)
    assert resampled(table, 1, old) is table


@given(st.integers(2, 16), st.integers(1, 16))
def test_resizing_is_the_matrices(old: int, new: int):
    new = min(old, new)
    pictures = torch.rand(2, 3, old, old, generator=torch.Generator().manual_seed(old))
    noise = torch.rand(2, 16)
    small = resized({"pixels": pictures, "noise": noise, "labels": torch.arange(2)}, new, 9, 16)
    shrink = triangles(old, new)
    torch.testing.assert_close(small["pixels"].double(), shrink @ pictures.double() @ shrink.T, rtol=1e-5, atol=1e-5)
    assert torch.equal(small["noise"], noise[:, :9])
    assert torch.equal(small["labels"], torch.arange(2))


def test_half_a_masked_autoencoders_patches_are_seen_at_every_size():
    run = running(ProgressiveResolution(), "mae")
    seen: list[int] = []
    run.anatomy.blocks[0].module.register_forward_pre_hook(lambda _, args: seen.append(args[0].shape[1]))
    run.train(8)
    assert seen == [1 + 2, 1 + 2, 1 + 4, 1 + 4, 1 + 4, 1 + 4, 1 + 8, 1 + 8]


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


@pytest.mark.parametrize("name", ["swin", "pvt", "beit", "xcit"])
def test_models_of_one_size_are_refused(name: str):
    with pytest.raises(ValueError, match=r"pictures|patches"):
        further_run(name, ProgressiveResolution())


def test_bad_settings_say_what_fits():
    for sizes in ((3, 8), (4, 6)):
        with pytest.raises(ValueError, match="multiples of the patch, 2, up to 8"):
            running(ProgressiveResolution(sizes=sizes))
    with pytest.raises(ValueError, match="up to 32"):
        running(ProgressiveResolution(sizes=(16, 64)), "gpt")
    with pytest.raises(ValueError, match="modern"):
        new_run("vit", "progressive_resolution", size="pico", recipe="compiled", steps=4)


@pytest.mark.parametrize("stack", ["progressive_resolution+progressive_patch", "autoprog+progressive_resolution"])
def test_one_technique_alone_changes_the_grid(stack: str):
    with pytest.raises(ValueError, match="keep one of them"):
        new_run("vit", stack, size="pico", recipe="classic", steps=4)
