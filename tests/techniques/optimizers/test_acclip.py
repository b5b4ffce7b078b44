"""ACClip's study: measures of a tail on known distributions, and of a model's noise."""

from pathlib import Path

import pytest
import torch

from suite.record.job import Setting
from suite.topics.studies.lab import Lab, StudyTable
from suite.topics.studies.rate_grid import GridRow
from techniques.optimizers.acclip.study import hill, kurtosis, plot


def test_measures_of_a_tail_on_known_distributions() -> None:
    generator = torch.Generator().manual_seed(0)
    normal = torch.randn(100_000, generator=generator, dtype=torch.float64)
    pareto = torch.rand(100_000, generator=generator, dtype=torch.float64) ** (-1 / 2.5)
    assert kurtosis(normal) == pytest.approx(3, abs=0.1)
    assert kurtosis(pareto) > 30
    assert hill(pareto) == pytest.approx(2.5, rel=0.05)


def test_the_noise_of_a_model_is_that_of_its_gradients_around_their_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    from techniques.optimizers.acclip import study

    monkeypatch.setattr(study, "MODELS", {"mlp": "vit"})
    lab = Lab(Setting(baseline="gpt", recipe="classic", size="pico", steps=4), Path("nowhere"), seeds=1, minutes=1.0)
    noise, survival = study.study(lab, batches=20)
    assert noise.rows == study.study(lab, batches=20)[0].rows
    assert noise.rows[0][:2] == ("mlp", 20) and noise.rows[0][2] > 0
    levels = [level for _, level in survival.rows]
    assert levels == sorted(levels) and levels[2] == pytest.approx(1)
    grid = StudyTable("rates", GridRow._fields, [tuple(GridRow("AdamW", 1, 1.0, 1, 2.0, 2.0, None, None))])
    assert [len(axes.lines) for axes in plot([grid, survival]).axes] == [1, 1]
