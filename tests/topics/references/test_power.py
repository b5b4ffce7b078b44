"""Controls whose effect is known: none of other seeds and of perturbed weights, a real one of half the rate."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from suite.entries.sources import code_of
from suite.judge.ruler import BUDGETS, Ruler, steps_at
from suite.measure.provenance import Heading, Progress, conditions_of
from suite.record.job import BASELINE, Job, Setting
from suite.record.numerics import off_the_clock
from suite.record.schema import Learned
from suite.record.store import Store
from suite.topics.references import power as module
from suite.topics.references.power import PERTURBATION, REFERENCE_SEEDS, SEEDS, Perturbed, other_seeds, power
from tests import factories
from tests.runs import new_run

GPT = Setting(baseline="gpt", size="pico")
SLOPE, NOISE = -0.2, 0.004


def learned(setting: Setting, seed: int, loss: float) -> Learned:
    fields: dict[str, Any] = Heading(setting, off_the_clock()).fields() | {"code": code_of(setting, BASELINE)}
    return factories.learned(BASELINE, seed, final=loss, **fields)


@pytest.fixture
def studied(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> module.PowerStudy:
    """Half the rate costs 10 % of the loss; seeds scatter by NOISE."""
    rng = np.random.default_rng(3)
    own = conditions_of(GPT).steps
    store = Store(tmp_path)

    def noisy(loss: float) -> float:
        return float(loss * math.exp(NOISE * rng.standard_normal()))

    for seed in range(REFERENCE_SEEDS):
        for share in BUDGETS if seed < SEEDS else [1]:
            setting = GPT if share == 1 else GPT.but(steps=steps_at(share, own))
            store.append(learned(setting, seed, noisy(2.0 * (conditions_of(setting).steps / own) ** SLOPE)), "here")
    for seed in range(SEEDS):
        store.append(learned(GPT.but(rate=0.5), seed, noisy(2.2)), "here")
    shares: list[float] = []

    def watched(*_: object, progress: Progress, **__: object) -> None:
        progress(0.0, "begun")
        progress(1.0, "done")

    monkeypatch.setattr(module, "measure", watched)
    monkeypatch.setattr(module, "_perturbed_loss", lambda job: noisy(2.0))
    answer = power(GPT, tmp_path, progress=lambda share, what: shares.append(share))
    assert shares == sorted(shares) and shares[0] == 0 and shares[-1] < 1
    return answer


def test_a_real_effect_stands_out_and_none_does_not(studied: module.PowerStudy) -> None:
    nothing, perturbed, half = studied.controls
    assert [each.name for each in studied.controls] == ["other seeds", "weights perturbed", "half the learning rate"]
    assert half.budget.high < 0 < perturbed.budget.high and nothing.budget.high > 0
    assert half.budget.estimate == pytest.approx(math.log(1.1) / SLOPE, abs=0.1)
    assert half.log_losses == pytest.approx([math.log(1.1)] * SEEDS, abs=5 * NOISE)


def test_the_noise_is_that_of_pairs_that_differ_in_nothing_that_matters(studied: module.PowerStudy) -> None:
    expected = NOISE * math.sqrt(2) / abs(SLOPE)
    assert 0.4 * expected < studied.seed_deviation < 2.5 * expected
    assert 0 < studied.detectable < 1
    kept = studied.evidence()
    assert kept.smallest_change == math.expm1(studied.detectable)
    assert [each.name for each in kept.controls] == [each.name for each in studied.controls]
    assert kept.controls[2].loss_ratio == pytest.approx(1.1, rel=5 * NOISE)


def test_pairs_of_seeds_stand_against_each_other_around_the_references_own_budget() -> None:
    losses = np.array([[9.0, 8.0, 7.0, 6.0], [9.1, 8.1, 7.1, np.nan], [9.2, 8.2, 7.2, 6.2], [9.3, 8.3, 7.3, 6.3]])
    theirs, ours = other_seeds(Ruler((0.5, 0.7, 1.0, 2.0), losses))
    assert (theirs, ours) == ([8.0, 8.2, 7.0, 7.2], [8.1, 8.3, 7.1, 7.3])
    theirs, ours = other_seeds(Ruler((0.35, 0.5, 0.7, 1.0), losses))
    assert (theirs, ours) == ([7.0, 7.2, 6.0], [7.1, 7.3, 6.2])  # an odd one has no other


def test_controls_that_were_not_learned_are_left_out_and_named(
    studied: module.PowerStudy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warnings: list[str] = []
    answer = power(GPT, tmp_path, ["sgd_momentum"], warn=warnings.append)
    assert [each.name for each in answer.controls] == [each.name for each in studied.controls]
    (sentence,) = warnings
    assert sentence.startswith("gpt: without the control sgd_momentum, which was not learned")


def test_a_curve_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "measure", lambda *_, **__: None)
    with pytest.raises(ValueError, match="was not learned: give it more time"):
        power(GPT, tmp_path)


def test_perturbed_weights_are_the_references_times_one_plus_noise_and_the_same_for_a_seed() -> None:
    plain, first, again = (new_run("gpt", each, size="pico") for each in ("baseline", Perturbed(), Perturbed()))
    assert all(map(torch.equal, first.model.parameters(), again.model.parameters()))
    pairs = zip(plain.model.parameters(), first.model.parameters(), strict=True)
    ratios = torch.cat([(b / a - 1)[a != 0].flatten() for a, b in pairs])
    assert ratios.std().item() == pytest.approx(PERTURBATION, rel=0.05) and abs(ratios.mean().item()) < 0.002
    assert first.job == Job(setting=GPT)
