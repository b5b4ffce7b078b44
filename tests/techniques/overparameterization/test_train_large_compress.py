"""Rows of zeros stay, and what the study compares."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest
import torch

from suite.record.job import Setting
from suite.topics.studies.lab import Lab
from techniques.overparameterization.train_large_compress import study
from techniques.overparameterization.train_large_compress.technique import (
    quantised,
)


def test_zeros_and_a_row_of_zeros_stay() -> None:
    weight = torch.tensor([[0.0, 0.0], [0.0, 3.0]])
    assert torch.equal(quantised(weight, 4), weight)


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
