"""RAIS: its distribution is the minimiser of the worst case, its draws are unbiased, its rate is a bound's."""

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from torch import Tensor

from suite.entries.installed import baselines
from suite.entries.jobs import run_of
from suite.loop.data import mixed_seed
from suite.loop.run import Run
from suite.loop.sites import NotAttached
from suite.reading.recording import with_few_examples
from suite.record.job import Job, Setting
from techniques.importance_sampling.rais.robust import fitted, gain_ratio, robust_probabilities
from techniques.importance_sampling.rais.technique import Rais, Table, visit
from techniques.importance_sampling.shared.importance import importance_weights
from tests.runs import new_run

F64 = torch.float64


def positive(*shape: int, seed: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64) + 0.01


@given(st.integers(0, 10_000), st.integers(2, 12))
@settings(max_examples=30)
def test_the_distribution_is_the_saddle_point_of_the_worst_case(seed: int, examples: int) -> None:
    """sum v_i^2 / p_i is largest over the ellipsoid at v*, and at v* no p has less."""
    predicted, margin = positive(examples, seed=seed), positive(examples, seed=seed + 1)
    k = margin.mean() ** -0.5
    worst = predicted + k * margin
    p, value = worst / worst.sum(), worst.sum() ** 2
    torch.testing.assert_close((worst.square() / p).sum(), value)
    generator = torch.Generator().manual_seed(seed)
    directions = torch.randn(500, examples, generator=generator, dtype=F64)
    radius = (examples / (directions.square() / margin).sum(1, keepdim=True)).sqrt()
    others = predicted + radius * directions  # on the ellipsoid's surface
    torch.testing.assert_close(((others - predicted).square() / margin).mean(1), torch.ones(500, dtype=F64))
    assert (others.square() / p).sum(1).max() <= value * (1 + 1e-9)
    for other in (positive(examples, seed=seed + 2), torch.ones(examples, dtype=F64)):
        assert (worst.square() / (other / other.sum())).sum() >= value * (1 - 1e-9)


def test_groups_have_a_closed_form() -> None:
    """Features that say the group alone: c is its weighted mean norm, d its spread, over its share of the examples."""
    generator = torch.Generator().manual_seed(0)
    group = torch.randint(3, (90,), generator=generator)
    features = torch.nn.functional.one_hot(group, 3).double()
    norms = positive(90, seed=1) * torch.tensor([1.0, 3.0, 0.2], dtype=F64)[group]
    weights = positive(90, seed=2)
    average = torch.tensor([0.2, 0.3, 0.5], dtype=F64)
    c, d = fitted(features, norms, weights, average)
    for each in range(3):
        w, v = weights[group == each], norms[group == each]
        mean = (w * v).sum() / w.sum()
        torch.testing.assert_close(c[each], mean, rtol=1e-6, atol=0)
        spread = (w * (v - mean).square()).sum() / 90
        torch.testing.assert_close(d[each], (spread / average[each]).sqrt(), rtol=1e-6, atol=0)


def test_the_ellipsoid_is_the_constrained_problems() -> None:
    """By another solver, with the constraint as it stands and k as it follows."""
    latest = positive(60, seed=3)
    features = torch.stack([torch.ones(60, dtype=F64), latest], dim=1)
    drawn = torch.randint(60, (200,), generator=torch.Generator().manual_seed(4))
    norms = 0.7 * latest[drawn] + 0.1 + 0.3 * latest[drawn] * (positive(200, seed=5) - 0.5)
    weights = positive(200, seed=6) + 0.5
    s, v, w, mean = features[drawn].numpy(), norms.numpy(), weights.numpy(), features.mean(0).numpy()
    solution = minimize(
        lambda x: x[2:] @ mean,
        [0.1, 0.5, 0.5, 0.5],
        method="SLSQP",
        bounds=[(1e-9, None)] * 4,
        constraints={"type": "ineq", "fun": lambda x: 1 - (w * (v - s @ x[:2]) ** 2 / (s @ x[2:])).mean()},
        options={"maxiter": 1000, "ftol": 1e-15},
    )
    c, d = torch.from_numpy(solution.x[:2]), torch.from_numpy(solution.x[2:])
    worst = features @ c + (features @ d) / (features @ d).mean().sqrt()
    ours = robust_probabilities(features, *fitted(features[drawn], norms, weights, features.mean(0)), 0.0)
    torch.testing.assert_close(ours, worst / worst.sum(), rtol=1e-5, atol=0)


@pytest.mark.parametrize("seed", [32, 39, 46, 48])
def test_the_fit_ends_at_the_minimum_where_the_objective_is_flat(seed: int) -> None:
    """Norms that features say nothing of. It is convex: where nothing can fall, by autograd, is the minimum."""
    generator = torch.Generator().manual_seed(seed)
    latest, another = (torch.randn(500, generator=generator, dtype=F64).mul(0.3).exp() for _ in range(2))
    features = torch.stack([torch.ones(500, dtype=F64), latest, (latest + another) / 2], dim=1)
    norms = torch.randn(80, generator=generator, dtype=F64).mul(0.5).exp()
    c, d = (solved.requires_grad_() for solved in fitted(features[:80], norms, torch.ones(80), features.mean(0)))
    objective = ((norms - features[:80] @ c) ** 2 / (features[:80] @ d)).mean() + features.mean(0) @ d
    slopes = torch.cat(torch.autograd.grad(objective, [c, d])) * features.mean(0).repeat(2) / objective
    at_the_bound = torch.cat([c, d]) < 1e-8
    assert slopes[at_the_bound].min() > -1e-6 and slopes[~at_the_bound].abs().max() < 1e-6


@given(st.integers(0, 10_000), st.integers(2, 40))
@settings(max_examples=30)
def test_weighted_draws_are_unbiased_exactly(seed: int, examples: int) -> None:
    p = robust_probabilities(positive(examples, 3, seed=seed), positive(3, seed=seed), positive(3, seed=seed + 1), 0.1)
    values = torch.randn(examples, 2, generator=torch.Generator().manual_seed(seed), dtype=F64)
    weights = importance_weights(p, torch.arange(examples))
    torch.testing.assert_close(p.sum(), torch.tensor(1.0, dtype=F64))
    torch.testing.assert_close(((p * weights)[:, None] * values).sum(0), values.mean(0), rtol=1e-5, atol=1e-6)
    assert weights.max() <= 10 * (1 + 1e-6)


def test_the_mean_of_many_draws_is_the_mean_of_all() -> None:
    """Within five standard errors; a draw is of seed and position alone."""
    table = Table(0, positive(30, seed=0).square() / positive(30, seed=0).square().sum())
    draws = torch.stack([table.drawn(1, position, 8) for position in range(4000)])
    values = torch.randn(30, 3, generator=torch.Generator().manual_seed(0), dtype=F64)
    estimates = (importance_weights(table.p, draws.flatten()).view(4000, 8, 1) * values[draws]).mean(1)
    assert ((estimates.mean(0) - values.mean(0)).abs() < 5 * estimates.std(0) / math.sqrt(4000)).all()
    assert torch.equal(draws[7], table.drawn(1, 7, 8)) and not torch.equal(draws[7], table.drawn(2, 7, 8))


@pytest.mark.parametrize("parallel", [True, False])
def test_the_gain_ratio_is_a_lower_bound_and_exact_for_parallel_gradients(parallel: bool) -> None:
    gradients = torch.randn(40, 6, generator=torch.Generator().manual_seed(0), dtype=F64)
    norms = positive(40, seed=1).pow(3)
    gradients *= (norms / gradients.norm(dim=1))[:, None]
    if parallel:
        gradients = norms[:, None] * gradients[0] / gradients[0].norm()
    p = 0.9 * norms / norms.sum() + 0.1 / 40
    draws, batch = Table(0, p).drawn(0, 0, 400_000), 8
    whole = (batch - 1) * gradients.mean(0).square().sum()
    second = [(norms.square()).mean() + whole, (norms.square() / p).sum() / 40**2 + whole]
    truth = (second[0] / second[1]).item()
    bound = gain_ratio(norms[draws], importance_weights(p, draws).double(), batch)
    assert 1.05 < bound <= truth * 1.01
    if parallel:
        assert bound == pytest.approx(truth, rel=0.01)
    assert gain_ratio(norms, torch.ones(40, dtype=F64), batch) == 1


def test_visits_leave_the_latest_norm_and_an_average() -> None:
    features = torch.zeros(4, 3, dtype=F64)
    for indices, norms in (([0, 2], [1.0, 3.0]), ([2, 2], [5.0, 1.0])):
        visit(features, torch.tensor(indices), torch.tensor(norms, dtype=F64))
    assert features.tolist() == [[1, 1, 1], [0, 0, 0], [1, 1, 2], [0, 0, 0]]


# in a run -------------------------------------------------------------------------------------------------------------


def run_on_few(baseline: str, stack: str, examples: int = 16, steps: int = 16) -> Run:
    job = Job(setting=Setting(baseline=baseline, size="pico", recipe="classic", steps=steps), stack=stack)
    return run_of(job, baseline=with_few_examples(baselines()[baseline], examples))


def rais_of(run: Run) -> Rais:
    (technique,) = run.technique.techniques.values()  # type: ignore[attr-defined]
    return technique


@pytest.mark.parametrize("baseline", ["vit", "bert", "gpt"])
def test_draws_once_every_example_has_come_back(baseline: str) -> None:
    run, plain = run_on_few(baseline, "rais:refit=4"), run_on_few(baseline, "baseline")
    first, reference = run.train(9), plain.train(9)
    assert first == reference
    assert rais_of(run).draws.count == 0
    assert run.train(7) != plain.train(7)
    assert rais_of(run).draws.count == 7
    run.attachment.end(run)


def test_a_batch_may_be_prepared_one_step_ahead() -> None:
    """What stands at the next position is the same before a step and after it."""
    run = run_on_few("vit", "rais:refit=2")
    batch = run.recipe.batch_size
    for _ in range(14):
        ahead = run.data.batch(mixed_seed(run.seed, 2), run.position + batch, batch)[1]
        run.train(1)
        assert torch.equal(ahead, run.next_batch()[1])
    assert rais_of(run).tables


@pytest.mark.parametrize("saved_after", [5, 11, 12])
def test_a_resumed_run_draws_the_same(saved_after: int, tmp_path: Path) -> None:
    whole, resumed = (run_on_few("vit", "rais:refit=4") for _ in range(2))
    whole.train(saved_after)
    whole.save(tmp_path / "state")
    resumed.load(tmp_path / "state")
    assert resumed.train(16 - saved_after) == whole.train(16 - saved_after)
    assert resumed.probes() == whole.probes()


def test_a_run_in_which_no_example_comes_back_is_no_evidence() -> None:
    run = new_run("gpt", "rais", size="pico", recipe="classic", steps=8)
    assert run.train(8) == new_run("gpt", size="pico", recipe="classic", steps=8).train(8)
    with pytest.raises(NotAttached, match="draws by the norms"):
        run.probes()


def test_what_is_not_finite_is_not_learned_from() -> None:
    """The run diverges by its loss, and not by its draws."""
    run = run_on_few("vit", "rais:refit=2")
    run.train(8)
    technique = rais_of(run)
    table, features = technique.tables[-1], technique.features.clone()
    technique.measured = [(run.indices, torch.ones(4), torch.full((4,), math.nan))]
    technique.after_step(run)
    assert technique.tables[-1] is table and torch.equal(technique.features, features)


def test_a_loss_that_is_no_function_of_logits_is_refused() -> None:
    with pytest.raises(ValueError, match="error of its predicted classes, and the loss of mae"):
        new_run("mae", "rais", size="pico", steps=2).train(1)
