"""Importance sampling by gradient norms: scores that say nothing, and other techniques' terms."""

import math

import pytest
import torch
from scipy.stats import spearmanr
from torch import Tensor

from techniques.importance_sampling.grand.technique import gradient_norms
from techniques.importance_sampling.is_gradnorm.technique import probabilities, variance_reduction
from techniques.importance_sampling.shared.importance import scores_of
from tests.runs import new_run


def test_what_says_nothing_is_drawn_uniformly() -> None:
    for scores in (torch.zeros(4), torch.tensor([1.0, math.nan]), torch.tensor([1.0, math.inf])):
        assert probabilities(scores).tolist() == [1 / len(scores)] * len(scores)


def test_other_techniques_terms_stay_in_the_loss() -> None:
    """SAF stores the outputs of the examples that were drawn, under their own indices."""
    run = new_run("vit", "is_gradnorm:threshold=0+saf", size="pico", recipe="classic", steps=8)
    run.train(8)
    visits = run.technique.techniques["saf"].past.visits  # type: ignore[attr-defined]
    assert visits[run.indices].all()


def second_moment(norms: Tensor, s: Tensor) -> float:
    """Of the weighted gradient of one example that is drawn with probabilities ``s``: the mean of |g / (n s)|^2."""
    return (norms.square() / (len(s) ** 2 * s)).sum().item()


@pytest.mark.parametrize("steps", [1, 40])
def test_scores_rank_examples_as_whole_gradients_do_and_shrink_their_variance(steps: int) -> None:
    """The premise (section 3.2): the norm in the last pre-activations stands for that in all weights. At the start as
    the model learns, when examples are alike, and later."""
    run = new_run("vit", size="nano", recipe="classic", steps=80)
    run.train(steps)
    rows = torch.arange(128)
    batch = run.data.transform(run.data.train[rows], torch.Generator().manual_seed(0))
    s = probabilities(scores_of(run, batch).detach())
    model = run.model.eval()
    norms = gradient_norms(
        model, lambda model, each: run.baseline.losses(run.baseline.forward(model, each), each), batch
    ).double()
    uniform, sampled, best = (
        second_moment(norms, each) for each in (torch.full_like(s, 1 / 128), s, probabilities(norms))
    )
    assert spearmanr(s, norms).statistic > 0.7
    assert best <= sampled < uniform
    assert uniform / best == pytest.approx(variance_reduction(probabilities(norms)) ** 2)
