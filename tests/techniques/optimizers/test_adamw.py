"""AdamW against torch's to the bit, and its study of rate and decay."""

import copy
import math
from pathlib import Path

import pytest
import torch
from torch import nn

from suite.loop.recipe import Recipe
from suite.record.job import Setting
from suite.topics.studies.lab import Lab
from techniques.optimizers.adamw.study import Decayed, plot, tables
from techniques.optimizers.adamw.technique import AdamW, AdamWTechnique
from techniques.shared.adam import Decay


def models() -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(7, 11), nn.GELU(), nn.Linear(11, 3))
    return model, copy.deepcopy(model)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> None:
    x = torch.randn(5, 7, generator=torch.Generator().manual_seed(seed))
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()


@pytest.mark.parametrize("fused", [False, True])
def test_update_by_update_torch_to_the_bit(fused: bool) -> None:
    own, other = models()
    ours = AdamW(own.parameters(), lr=3e-3, betas=(0.8, 0.95), weight_decay=0.3, fused=fused)
    theirs = torch.optim.AdamW(
        other.parameters(), lr=3e-3, betas=(0.8, 0.95), weight_decay=0.3, fused=fused, foreach=False
    )
    for number in range(6):
        step(own, ours, number)
        step(other, theirs, number)
        assert all(torch.equal(a, b) for a, b in zip(own.parameters(), other.parameters()))


# the study ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("decay", "strength"), [("decoupled", 0.2 / 3e-4), ("coupled", 0.2)])
def test_the_studys_decay_is_the_papers_lambda_or_the_coefficient_of_l2(decay: Decay, strength: float) -> None:
    """What torch's decoupled form multiplies by the learning rate is then lambda at every rate."""
    recipe = Decayed(decay, rate=0.3, strength=0.2).recipe(Recipe(steps=10, batch_size=1, learning_rate=1e-3))
    assert (recipe.learning_rate, recipe.weight_decay) == (pytest.approx(3e-4), pytest.approx(strength))


def test_a_ridge_correlates_a_basin_does_not_and_a_divergence_is_never_best() -> None:
    decays = (1e-4, 1e-3, 1e-2)
    rows = [("ridge", r, d, 1, 1 + abs(math.log(r * d * 1e3))) for r in (0.1, 1.0, 10.0) for d in decays]
    rows += [("basin", r, d, 1, math.inf if d < 1e-3 else 1 + d) for r in (0.1, 1.0, 10.0) for d in decays]
    made = tables(rows)
    best = {row[:2]: row[2:] for row in made[1].rows}
    assert best["ridge", 10.0] == (1.0, 1e-4, 1e-4)
    assert best["basin", 10.0] == (1.001, 1e-3, 1e-2)
    assert made[2].rows == [("ridge", pytest.approx(-1), pytest.approx(-1)), ("basin", None, None)]
    assert len(plot(made).axes) == 3


def test_the_study_trains_both_sides_and_stops_at_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    from techniques.optimizers.adamw import study

    monkeypatch.setattr(study, "RATES", (1.0, 1e6))
    monkeypatch.setattr(study, "DECAYS", (1e-2,))
    warnings: list[str] = []
    setting = Setting(baseline="vit", size="pico", recipe="classic", steps=2)
    lab = Lab(setting, Path("nowhere"), seeds=2, minutes=0, warn=warnings.append)
    losses, *_ = study.study(lab)
    assert [row[:4] for row in losses.rows] == [
        (side, rate, 1e-2, 1) for side in ("AdamW", "Adam with L2") for rate in (1.0, 1e6)
    ]
    assert losses.rows[0][4] < 3 < losses.rows[1][4]
    assert warnings == ["the budget of 0 minutes is enough for 1 of 2 seeds"]


def test_a_group_with_a_rate_of_its_own_decays_as_much() -> None:
    """The paper's decay follows the schedule alone: eta_t lambda a step, whatever the rate is."""
    weight = torch.nn.Parameter(torch.ones(3))
    recipe = Recipe(steps=4, batch_size=1, learning_rate=0.01, weight_decay=0.1)
    for scale in (1.0, 0.5):
        groups = [{"params": [weight], "weight_decay": 0.1, "learning_rate_scale": scale}]
        (group,) = AdamWTechnique(normalised=0.2).optimizer(groups, recipe).param_groups
        assert group["weight_decay"] * 0.01 * scale == pytest.approx(0.1)  # 0.2 over the root of 4 steps
