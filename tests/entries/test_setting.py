"""A setting that cannot be is refused before anything runs."""

from __future__ import annotations

import pytest

from baselines.gpt import Gpt
from suite.entries.setting import setting_of


def test_a_size_that_the_baseline_lacks_is_refused_with_those_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Gpt.recipe

    def small(self: Gpt, size: str, *others: str) -> object:
        return {each: whole(self, each, *others) for each in ("pico", "nano")}[size]  # type: ignore[arg-type]

    monkeypatch.setattr(Gpt, "recipe", small)
    assert setting_of(baseline="gpt", size="nano").size == "nano"
    with pytest.raises(ValueError, match="baseline gpt has no size mini; it has: pico, nano"):
        setting_of(baseline="gpt", size="mini")
