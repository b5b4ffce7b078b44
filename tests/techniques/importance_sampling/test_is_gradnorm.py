"""Importance sampling by gradient norms: unbiased, of a smaller variance, gated, and paid for."""

import itertools
import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from techniques.importance_sampling.is_gradnorm.technique import (
    drawn,
    probabilities,
    variance_reduction,
)
from techniques.importance_sampling.shared.error_norms import losses_and_scores
from techniques.importance_sampling.shared.importance import importance_weights, scores_of
from tests.runs import new_run

SCORES = st.lists(st.floats(1e-3, 10), min_size=2, max_size=50).map(torch.tensor)


@given(SCORES)
@settings(max_examples=30)
def test_tau_is_the_papers_formula_and_the_root_of_the_variance_reduction(scores: Tensor) -> None:
    s = probabilities(scores)
    u = 1 / len(s)
    formula = 1 - ((s - u).square().sum() / s.square().sum()).item()
    assert variance_reduction(s) == pytest.approx(1 / math.sqrt(formula))
    assert variance_reduction(s) ** 2 == pytest.approx(scores.double().square().mean() / scores.double().mean() ** 2)
    assert variance_reduction(s) >= 1 - 1e-12


def test_what_says_nothing_is_drawn_uniformly() -> None:
    for scores in (torch.zeros(4), torch.tensor([1.0, math.nan]), torch.tensor([1.0, math.inf])):
        assert probabilities(scores).tolist() == [1 / len(scores)] * len(scores)


@given(SCORES)
@settings(max_examples=30)
def test_weighted_draws_are_unbiased_exactly(scores: Tensor) -> None:
    """Over all examples that one draw may give: sum s_i w_i g_i is the mean of g."""
    s = probabilities(scores)
    everything = torch.arange(len(s))
    gradients = torch.randn(len(s), 3, dtype=torch.float64, generator=torch.Generator().manual_seed(len(s)))
    expectation = (s * importance_weights(s, everything))[:, None] * gradients
    torch.testing.assert_close(expectation.sum(0), gradients.mean(0), rtol=1e-6, atol=1e-6)


def test_every_batch_of_a_tiny_pool_enumerated() -> None:
    """All 4^2 ordered batches: their mean, and their variance by the textbook, and below that of uniform batches."""
    gradients = torch.tensor([[3.0, -1.0], [0.1, 0.2], [-0.5, 0.3], [0.2, 0.2]], dtype=torch.float64)
    norms = gradients.norm(dim=1)
    moments = {}
    for name, s in {"by norm": probabilities(norms), "uniform": probabilities(torch.ones(4))}.items():
        mean, square = torch.zeros(2, dtype=torch.float64), 0.0
        for batch in itertools.product(range(4), repeat=2):
            chosen = torch.tensor(batch)
            chance = s[chosen].prod().item()
            estimate = (importance_weights(s, chosen).double()[:, None] * gradients[chosen]).mean(0)
            mean += chance * estimate
            square += chance * estimate.square().sum().item()
        torch.testing.assert_close(mean, gradients.mean(0), rtol=1e-6, atol=1e-7)
        moments[name] = square - mean.square().sum().item()
    whole = gradients.mean(0).square().sum().item()
    assert moments["by norm"] == pytest.approx((norms.mean().item() ** 2 - whole) / 2, rel=1e-5)
    assert moments["uniform"] == pytest.approx((norms.square().mean().item() - whole) / 2, rel=1e-5)
    assert moments["by norm"] < moments["uniform"]


def test_the_mean_of_many_draws_is_the_pools_mean() -> None:
    """Within five standard errors, in each of its numbers."""
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(24, 5, generator=generator, dtype=torch.float64)
    s = probabilities(torch.rand(24, generator=generator) ** 3)
    draws = torch.stack([drawn(s, 8, 1, step) for step in range(4000)])
    estimates = (importance_weights(s, draws.flatten()).view(4000, 8, 1) * values[draws]).mean(1)
    error = estimates.std(0) / math.sqrt(4000)
    assert ((estimates.mean(0) - values.mean(0)).abs() < 5 * error).all()


def test_the_score_ranks_as_the_whole_gradient_and_lowers_its_variance() -> None:
    """Of a ViT that has learned a little, by 64 gradients of single examples."""
    run = new_run("vit", size="nano", recipe="classic", steps=40)
    run.train(40)
    batch, _ = run.next_batch()
    scores = scores_of(run, batch).double()
    parameters = list(run.model.parameters())
    norms = torch.stack(
        [
            torch.nn.utils.get_total_norm(torch.autograd.grad(loss, parameters, retain_graph=True))
            for loss in run.baseline.losses(run.baseline.forward(run.model, batch), batch)
        ]
    ).double()
    ranks = torch.stack([each.argsort().argsort().double() for each in (norms, scores)])
    assert torch.corrcoef(ranks)[0, 1] > 0.7
    by_score = scores.mean() * (norms.square() / scores).mean()  # sum over i of s_i (w_i ||g_i||)^2
    assert by_score < 0.95 * norms.square().mean()


def test_a_run_opens_its_gate_when_few_examples_are_left_to_learn() -> None:
    """Scores of a network that errs in few examples: most near 0."""
    run = new_run("vit", "is_gradnorm:momentum=0", size="nano", recipe="classic", steps=8)
    run.train(1)
    (technique,) = run.technique.techniques.values()  # type: ignore[attr-defined]
    assert technique.tau < 2
    few = torch.cat([torch.full((60,), 1e-3), torch.ones(4)])
    technique.tau = variance_reduction(probabilities(few))
    assert technique.tau > 2
    run.train(1)
    assert technique.sampled == 1 and technique.tau < 2


def test_other_techniques_terms_stay_in_the_loss() -> None:
    """SAF stores the outputs of the examples that were drawn, under their own indices."""
    run = new_run("vit", "is_gradnorm:threshold=0+saf", size="pico", recipe="classic", steps=8)
    run.train(8)
    visits = run.technique.techniques["saf"].past.visits  # type: ignore[attr-defined]
    assert visits[run.indices].all()


def test_losses_are_the_baselines_to_the_bit_and_scores_take_no_graph_from_them() -> None:
    logits = torch.randn(6, 5, requires_grad=True)
    run = new_run("vit", size="pico", recipe="classic", steps=1)
    batch = {"labels": torch.arange(6) % 5}
    losses, scores = losses_and_scores(run.baseline, SimpleNamespace(logits=logits), batch)
    assert torch.equal(losses, run.baseline.losses(SimpleNamespace(logits=logits), batch))
    assert not scores.requires_grad
    (gradient,) = torch.autograd.grad(losses.sum(), logits)
    errors = logits.detach().double().softmax(-1) - F.one_hot(batch["labels"], 5)
    torch.testing.assert_close(gradient.double(), errors, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(scores.double(), errors.norm(dim=-1), rtol=1e-5, atol=1e-6)


def test_a_loss_that_is_no_function_of_logits_is_refused() -> None:
    with pytest.raises(ValueError, match="error of its predicted classes, and the loss of mae"):
        new_run("mae", "is_gradnorm", size="pico", steps=2).train(1)
