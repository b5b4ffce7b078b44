"""Pruning by magnitude, quantisation, and what the study compares."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from suite.record.job import Setting
from suite.topics.studies.lab import Lab
from techniques.overparameterization.train_large_compress import study
from techniques.overparameterization.train_large_compress.technique import (
    largest,
    quantised,
    sparsity_after,
)


@given(st.integers(0, 2**31), st.floats(0, 0.99))
def test_the_smallest_of_all_matrices_go(seed: int, sparsity: float) -> None:
    random = torch.Generator().manual_seed(seed)
    weights = {name: torch.randn(size, 3, generator=random) for name, size in (("a", 2), ("b", 5))}
    masks = largest(weights, sparsity)
    assert {name: mask.shape for name, mask in masks.items()} == {name: each.shape for name, each in weights.items()}
    gone = torch.cat([weights[name][~mask].abs() for name, mask in masks.items()])
    every = torch.cat([each.abs().flatten() for each in weights.values()])
    assert sorted(gone.tolist()) == sorted(every.tolist())[: round(sparsity * 21)]


@given(st.integers(0, 2**31), st.integers(2, 10))
def test_a_weight_goes_to_the_nearest_level_of_its_row(seed: int, bits: int) -> None:
    weight = torch.randn(4, 9, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    levels = torch.linspace(-1, 1, 2**bits - 1, dtype=torch.float64) * weight.abs().amax(1, keepdim=True)
    nearest = (weight[:, :, None] - levels[:, None]).abs().argmin(2)
    torch.testing.assert_close(quantised(weight, bits), levels.gather(1, nearest))


def test_zeros_and_a_row_of_zeros_stay() -> None:
    weight = torch.tensor([[0.0, 0.0], [0.0, 3.0]])
    assert torch.equal(quantised(weight, 4), weight)


def test_every_round_keeps_the_same_share() -> None:
    kept = [1 - sparsity_after(done, 4, 0.75) for done in range(5)]
    assert kept == pytest.approx([1, 0.25**0.25, 0.5, 0.25**0.75, 0.25])


# the study ----------------------------------------------------------------------------------------------------------


def test_widths_cost_the_same_and_compression_leaves_the_model_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study, "WIDTHS", (1, 2))
    setting = Setting(baseline="gpt", size="pico", recipe="classic", steps=30)
    lab = SimpleNamespace(setting=setting, seeds=1, progress=lambda share, label: None)
    sizes, points = study.study(cast(Lab, lab))
    (_, small, steps, *_), (_, large, fewer, *_) = sizes.rows
    assert steps == 30
    assert fewer == round(30 * small / large)
    whole = [row for row in points.rows if row[1:3] == (0.0, 32)]
    assert [row[3] for row in whole] == [4 * small, 4 * large]
    assert [row[4] for row in whole] == [row[4] for row in sizes.rows]
    assert [row[3] for row in points.rows if row[1:3] == (0.5, 8)] == [round(0.5 * n) for n in (small, large)]
    assert len(study.plot([sizes, points]).axes[0].lines) == 3


def test_the_best_have_none_below_them() -> None:
    rows = study.front([(1, 0, 32, 4.0, 1.0), (1, 0, 8, 1.0, 2.0), (2, 0, 8, 3.0, 0.5), (2, 0, 4, 2.0, 3.0)])
    assert [row[-1] for row in rows] == [False, True, True, False]


def test_the_share_at_which_a_loss_is_reached() -> None:
    losses = [2.0] * 40 + [0.0] * 40
    assert study.share_to(losses, 1.0) == 50 / 80
    assert study.share_to(losses, -1.0) == 2.0
