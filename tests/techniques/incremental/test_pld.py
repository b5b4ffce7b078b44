"""Progressive layer dropping: what a dropped block saves, and models that grow."""

import torch

from suite.meters.activations import SavedActivations
from suite.model.skipping import skipping
from tests.runs import new_run


def test_what_is_left_out_saves_nothing():
    run = new_run("vit", size="nano", recipe="classic", steps=4)
    block = run.anatomy.blocks[0].module
    x = torch.randn(2, 16, 96, requires_grad=True)
    with skipping([block]), SavedActivations() as saved:
        block(hidden_states=x)
    assert saved.saved_bytes == 0


def test_it_follows_a_model_that_another_technique_makes_deeper():
    run = new_run("gpt", "progressive_stacking+pld", size="nano", recipe="classic", steps=12)
    run.train(12)
    assert len(run.technique.techniques["pld"].blocks) == 4
    run.attachment.end(run)
