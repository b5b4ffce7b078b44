"""Progressive patch size: the plans of patches."""

from itertools import pairwise

import pytest

from techniques.incremental.progressive_patch.technique import ProgressivePatch


def test_plans_halve_down_to_the_patch():
    technique = ProgressivePatch(stages=3)
    assert technique.planned(8, 2) == [8, 4, 2]
    assert ProgressivePatch().planned(224, 16) == [32, 16]
    assert all(large == 2 * small for large, small in pairwise(technique.planned(32, 4)))
    with pytest.raises(ValueError, match=r"choose of 224, 112, 56, 32, 28, 16, the last 16"):
        technique.planned(224, 16)
