"""ACClip against its formula in float64, its identities, and heavy-tailed noise that SGD suffers from more."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from suite.loop.recipe import Recipe
from suite.record.job import Setting
from suite.topics.studies.lab import Lab, StudyTable
from suite.topics.studies.rate_grid import GridRow
from techniques.optimizers.acclip.optimizer import ACClip, acclip_step, clipped
from techniques.optimizers.acclip.study import hill, kurtosis, plot
from techniques.optimizers.acclip.technique import ACClipTechnique

HYPER = {"learning_rate": 0.1, "beta1": 0.9, "beta2": 0.99, "eps": 1e-5, "alpha": 1.0}


def gradients(count: int, scale: float = 1.0) -> list[Tensor]:
    """Heavy-tailed, as the method is for."""
    generator = torch.Generator().manual_seed(0)
    return [scale * torch.randn(31, 7, generator=generator).pow(3) for _ in range(count)]


@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0])
def test_algorithm_2_in_float64(alpha: float) -> None:
    parameter = nn.Parameter(torch.ones(31, 7))
    optimizer = ACClip([parameter], lr=0.1, betas=(0.8, 0.95), eps=1e-3, alpha=alpha, weight_decay=0.2)
    p, m, power = (torch.full((31, 7), value, dtype=torch.float64) for value in (1.0, 0.0, 0.0))
    for gradient in gradients(8):
        parameter.grad = gradient
        optimizer.step()
        g = gradient.double()
        m, power = 0.8 * m + 0.2 * g, 0.95 * power + 0.05 * g.abs() ** alpha
        scale = torch.minimum(power ** (1 / alpha) / (m.abs() + 1e-3), torch.ones(()))
        p = p * (1 - 0.1 * 0.2) - 0.1 * scale * m
        torch.testing.assert_close(parameter.double(), p, rtol=1e-5, atol=1e-6)
    assert (scale < 1).any()
    assert (scale == 1).any()


def test_where_nothing_is_clipped_it_is_sgd_along_the_averaged_gradient_to_the_bit() -> None:
    momentum, power, parameter = (torch.randn(200, generator=torch.Generator().manual_seed(i)) for i in range(3))
    gradient, power = torch.randn(200), power.abs()
    expected_momentum = momentum.lerp(gradient, 0.1)
    expected = parameter.add(expected_momentum, alpha=-0.1)
    free = expected_momentum.abs() + 1e-5 <= power.lerp(gradient.abs(), 1 - 0.99)
    acclip_step(parameter, gradient, momentum, power, **HYPER)
    assert torch.equal(momentum, expected_momentum)
    assert 20 < free.sum() < 180
    assert torch.equal(parameter[free], expected[free])
    assert not torch.isclose(parameter[~free], expected[~free], rtol=1e-6).any()


def test_the_threshold_is_the_root_of_what_is_kept() -> None:
    """With alpha = 2 the buffer holds squares: comparing them would clip a momentum of 3 to 16 and not to 4."""
    step = clipped(torch.tensor([3.0, -8.0]), torch.tensor([16.0, 16.0]), eps=1e-9, alpha=2.0)
    torch.testing.assert_close(step, torch.tensor([3.0, -4.0]))


def test_a_coordinate_without_gradients_stays() -> None:
    parameter = nn.Parameter(torch.ones(3))
    parameter.grad = torch.zeros(3)
    ACClip([parameter]).step()
    assert torch.equal(parameter, torch.ones(3))


# heavy tails --------------------------------------------------------------------------------------------------------


def stable(alpha: float, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Symmetric alpha-stable noise (Chambers, Mallows & Stuck 1976): infinite variance for alpha < 2."""
    u = (torch.rand(shape, generator=generator, dtype=torch.float64) - 0.5) * math.pi
    w = -torch.rand(shape, generator=generator, dtype=torch.float64).log()
    return (alpha * u).sin() / u.cos() ** (1 / alpha) * (((1 - alpha) * u).cos() / w) ** ((1 - alpha) / alpha)


def final_errors(method: Callable[[Tensor, Tensor, float], None], rate: float) -> Tensor:
    """||x||^2 of 256 independent runs after 400 steps on f(x) = ||x||^2 / 2 from ones, with rates of order 1 / k."""
    generator = torch.Generator().manual_seed(0)
    x = torch.ones(256, 10, dtype=torch.float64)
    for k in range(400):
        method(x, x + stable(1.5, (256, 10), generator), rate / (1 + k * rate))
    return x.square().sum(1)


def best(new: Callable[[], Callable[[Tensor, Tensor, float], None]]) -> Tensor:
    """The errors at the rate with the least mean, of one grid for every method."""
    return min((final_errors(new(), rate) for rate in (0.03, 0.1, 0.3)), key=lambda errors: errors.mean())


def test_heavy_tailed_noise_hurts_sgd_more_than_clipping() -> None:
    def sgd(x: Tensor, gradient: Tensor, rate: float) -> None:
        x -= rate * gradient

    def gclip(x: Tensor, gradient: Tensor, rate: float) -> None:
        x -= rate * gradient * (5 / gradient.norm(dim=1, keepdim=True)).clamp(max=1)

    def acclip() -> Callable[[Tensor, Tensor, float], None]:
        momentum, power = torch.zeros(2, 256, 10, dtype=torch.float64)
        return lambda x, gradient, rate: acclip_step(x, gradient, momentum, power, **HYPER | {"learning_rate": rate})

    plain, one_threshold, adaptive = best(lambda: sgd), best(lambda: gclip), best(acclip)
    assert plain.mean() > 2 * adaptive.mean()
    assert plain.max() > 3 * adaptive.max()
    assert plain.mean() > 2 * plain.median(), "the mean is made by rare runs: it has no limit"
    assert plain.mean() > 10 * one_threshold.mean()


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
    lab = Lab(Setting(baseline="gpt", recipe="classic", steps=4), Path("nowhere"), seeds=1, minutes=1.0)
    noise, survival = study.study(lab, batches=20)
    assert noise.rows == study.study(lab, batches=20)[0].rows
    assert noise.rows[0][:2] == ("mlp", 20) and noise.rows[0][2] > 0
    levels = [level for _, level in survival.rows]
    assert levels == sorted(levels) and levels[2] == pytest.approx(1)
    grid = StudyTable("rates", GridRow._fields, [tuple(GridRow("AdamW", 1, 1.0, 1, 2.0, 2.0, None, None))])
    assert [len(axes.lines) for axes in plot([grid, survival]).axes] == [1, 1]


# the optimizer and the technique ------------------------------------------------------------------------------------


def test_the_recipe_keeps_the_strength_of_the_decay_and_leaves_clipping_to_the_method() -> None:
    before = Recipe(steps=10, batch_size=1, learning_rate=1e-3, weight_decay=0.1)
    after = ACClipTechnique(factor=20.0).recipe(before)
    assert after.learning_rate * after.weight_decay == pytest.approx(1e-3 * 0.1)
    assert (after.learning_rate, after.beta1, after.beta2, after.gradient_clip) == (pytest.approx(0.02), 0.9, 0.99, 0)
