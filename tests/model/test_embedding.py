"""The embedding of whole examples: the last block's tokens on average, of a masked auto-encoder with nothing hidden."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from suite.model.anatomy import NoBlocks
from suite.model.embedding import embedded, nothing_hidden
from tests.runs import new_run


@pytest.mark.parametrize("baseline", ["mae", "bert"])
def test_the_mean_over_the_last_blocks_tokens(baseline: str) -> None:
    run = new_run(baseline, size="pico", steps=4)
    batch, _ = run.next_batch()
    ours = embedded(run.model, lambda: run.baseline.forward(run.model, batch))
    with nothing_hidden(run.model), torch.no_grad():
        whole = run.model.eval()(
            **{name: each for name, each in batch.items() if name != "labels"}, output_hidden_states=True
        )
    torch.testing.assert_close(ours, whole.hidden_states[-1].mean(1))


def test_an_auto_encoder_sees_all_patches_and_trains_on_as_it_was() -> None:
    run = new_run("mae", size="pico", steps=4)
    batch, _ = run.next_batch()
    other = {**batch, "noise": batch["noise"].flip(1)}
    state = torch.get_rng_state()
    ours, otherwise = (
        embedded(run.model, lambda each=each: run.baseline.forward(run.model, each)) for each in (batch, other)
    )
    torch.testing.assert_close(ours, otherwise)  # which patches would be hidden is of no matter
    assert torch.equal(state, torch.get_rng_state()) and run.model.training
    assert run.baseline.forward(run.model, batch).mask.sum() == 8 * len(ours)  # half of the patches are hidden again
    with pytest.raises(KeyError), nothing_hidden(run.model):
        raise KeyError
    assert run.model.config.mask_ratio == 0.5


def test_a_model_without_blocks_is_refused() -> None:
    with pytest.raises(NoBlocks, match="no Transformer blocks"):
        embedded(nn.Linear(2, 2), lambda: None)


def test_a_last_block_that_does_not_run_is_refused() -> None:
    run = new_run("mae", size="pico", steps=4)
    with pytest.raises(ValueError, match="did not run"):
        embedded(run.model, lambda: None)
