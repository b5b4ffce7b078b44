"""RAIS: its fit where the objective is flat, draws that are prepared ahead or resumed, and what is not finite."""

import math
from pathlib import Path

import pytest
import torch

from suite.entries.installed import baselines
from suite.entries.jobs import run_of
from suite.loop.data import mixed_seed
from suite.loop.run import Run
from suite.loop.sites import NotAttached
from suite.reading.recording import with_few_examples
from suite.record.job import Job, Setting
from techniques.importance_sampling.rais.robust import fitted
from techniques.importance_sampling.rais.technique import Rais
from tests.runs import new_run

F64 = torch.float64


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


# in a run -------------------------------------------------------------------------------------------------------------


def run_on_few(baseline: str, stack: str, examples: int = 16, steps: int = 16) -> Run:
    job = Job(setting=Setting(baseline=baseline, size="pico", recipe="classic", steps=steps), stack=stack)
    return run_of(job, baseline=with_few_examples(baselines()[baseline], examples))


def rais_of(run: Run) -> Rais:
    (technique,) = run.technique.techniques.values()  # type: ignore[attr-defined]
    return technique


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
