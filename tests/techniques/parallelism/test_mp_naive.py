"""Layers on several ranks: what cannot be is refused."""

from __future__ import annotations

import pytest

from techniques.parallelism.mp_naive.technique import NaiveModelParallel
from tests.runs import new_run


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match="not compiled: take the recipe"):
        new_run("vit", NaiveModelParallel(), size="pico", recipe="compiled")
