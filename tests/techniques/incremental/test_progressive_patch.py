"""Progressive patch size: PI-resizing, and what goes on through a change of the patch."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from suite.loop.run import Run
from suite.loop.stack import Stack
from techniques.incremental.progressive_patch.technique import ProgressivePatch, pi_resized, resizing
from techniques.incremental.shared.grids import triangles
from tests.model.further_models import further_run
from tests.runs import new_run


def running(technique: ProgressivePatch, steps: int = 8) -> Run:
    return new_run("vit", Stack({"patch": technique}), size="nano", recipe="classic", steps=steps)


@given(st.integers(1, 9), st.integers(1, 9))
def test_resizing_is_the_definitions(old: int, new: int):
    torch.testing.assert_close(resizing(old, new), triangles(old, new), rtol=1e-12, atol=1e-12)


@given(st.integers(2, 6), st.integers(2, 12))
def test_products_with_larger_patches_are_kept(old: int, new: int):
    """<x, w> = <B x, w*>, of whole patches in float64."""
    new = max(old, new)
    random = torch.Generator().manual_seed(old + 100 * new)
    kernel = torch.randn(5, 3, old, old, generator=random, dtype=torch.float64)
    x = torch.randn(7, 3, old, old, generator=random, dtype=torch.float64)
    larger = resizing(old, new) @ x @ resizing(old, new).T
    theirs = torch.einsum("nchw,dchw->nd", larger, pi_resized(kernel, new))
    torch.testing.assert_close(theirs, torch.einsum("nchw,dchw->nd", x, kernel), rtol=1e-9, atol=1e-9)
    assert pi_resized(kernel, old) is kernel


@given(st.integers(2, 5))
def test_products_with_smaller_patches_are_the_nearest(new: int):
    """argmin over w* of E (<x, w> - <B x, w*>)^2, x standard normal: least squares over all unit pixels."""
    kernel = torch.randn(1, 1, 2 * new, 2 * new, generator=torch.Generator().manual_seed(new), dtype=torch.float64)
    matrix = torch.kron(triangles(2 * new, new), triangles(2 * new, new))
    nearest = torch.linalg.lstsq(matrix.T, kernel.flatten()[:, None]).solution
    torch.testing.assert_close(pi_resized(kernel, new).flatten(), nearest[:, 0], rtol=1e-9, atol=1e-9)


def test_plans_halve_down_to_the_patch():
    technique = ProgressivePatch(stages=3)
    assert technique.planned(8, 2) == [8, 4, 2]
    assert ProgressivePatch().planned(224, 16) == [32, 16]
    assert all(large == 2 * small for large, small in pairwise(technique.planned(32, 4)))
    with pytest.raises(ValueError, match=r"choose of 224, 112, 56, 32, 28, 16, the last 16"):
        technique.planned(224, 16)


@pytest.mark.parametrize("name", ["swin", "pvt", "beit", "xcit"])
def test_models_of_one_grid_are_refused(name: str):
    with pytest.raises(ValueError, match=r"pictures|patches"):
        further_run(name, ProgressivePatch())


def test_bad_settings_say_what_fits():
    for patches in ((3, 2), (8, 4)):
        with pytest.raises(ValueError, match="choose of 8, 4, 2, the last 2"):
            running(ProgressivePatch(patches=patches))
    with pytest.raises(ValueError, match="pictures"):
        new_run("gpt", ProgressivePatch(), size="pico", recipe="classic", steps=4)
