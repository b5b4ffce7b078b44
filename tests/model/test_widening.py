"""Wider MLPs: what stays, what is drawn, and that the sum keeps its spread."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch

from suite.loop.data import generator
from suite.model.anatomy import anatomy, in_features, out_features, weight_matrix
from suite.model.pruning import attention_heads, mlp_neurons
from suite.model.widening import deviation, widen
from tests.model.further_models import logits, make
from tests.runs import new_run


@pytest.mark.parametrize(("baseline", "times"), [("bert", 2), ("gpt", 3), ("mae", 2), ("vit", 3)])
def test_the_first_neurons_stay_and_the_sum_keeps_its_spread(baseline: str, times: int) -> None:
    plain, run = (new_run(baseline, size="nano", recipe="classic", steps=4) for _ in range(2))
    for units in mlp_neurons(run.anatomy, partial(run.trial, run.model)):
        widen(run.model, units, times, generator(0))
    for block, whole in zip(anatomy(run.model).every_block, plain.anatomy.every_block, strict=True):
        (first, last), (old_first, old_last) = (
            [weight_matrix(part.module) for part in each.mlp_linears] for each in (block, whole)
        )
        count = len(old_first)
        assert first.shape == (times * count, old_first.shape[1]) and last.shape == (len(old_last), times * count)
        assert torch.equal(first[:count], old_first)
        torch.testing.assert_close(last[:, :count] * math.sqrt(times), old_last)
        assert float((deviation(first[count:]) / deviation(old_first)).detach()) == pytest.approx(1, abs=0.05)
        hidden = torch.randn(500, times * count, generator=generator(1))
        sums = hidden @ last.T, hidden[:, :count] @ old_last.T
        assert float((deviation(sums[0]) / deviation(sums[1])).detach()) == pytest.approx(1, abs=0.15)
        assert block.mlp_output and in_features(block.mlp_output.module) == times * count
        assert out_features(block.mlp_linears[0].module) == times * count
    run.adopt(run.model)
    assert all(math.isfinite(loss) for loss in run.train(2))


def test_both_layers_of_a_gated_mlp_grow() -> None:
    model: Any = make("gemma2")
    for units in mlp_neurons(anatomy(model), partial(logits, model, "gemma2")):
        widen(model, units, 2, generator(0))
    sizes = [[tuple(part.module.weight.shape) for part in block.mlp_linears] for block in anatomy(model).blocks]
    assert sizes == [[(128, 32), (128, 32), (32, 128)]] * 4
    assert logits(model, "gemma2").isfinite().all()


def test_what_cannot_be_widened_is_refused() -> None:
    model = make("phi3")
    (units, *_) = mlp_neurons(anatomy(model), partial(logits, model, "phi3"))
    with pytest.raises(ValueError, match="not one for each neuron"):
        widen(model, units, 2, generator(0))
    model = make("gpt2")
    (units, *_) = attention_heads(anatomy(model), partial(logits, model, "gpt2"))
    with pytest.raises(ValueError, match="only neurons"):
        widen(model, units, 2, generator(0))
