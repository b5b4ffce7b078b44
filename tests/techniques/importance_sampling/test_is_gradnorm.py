"""Importance sampling by gradient norms: scores that say nothing, and other techniques' terms."""

import math

import torch

from techniques.importance_sampling.is_gradnorm.technique import probabilities
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
