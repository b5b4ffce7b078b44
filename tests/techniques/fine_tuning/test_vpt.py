"""Visual prompt tuning: the tokens before the patches, and copies that read their own prompts."""

import copy

import pytest
import torch
from torch import nn

from suite.loop.run import Run
from suite.model.anatomy import anatomy
from suite.model.leading import picture_row
from techniques.fine_tuning.vpt.technique import Vpt
from tests.model.further_models import make
from tests.runs import new_run

LENGTH = 3


def adapting(baseline: str, technique: Vpt | None = None, steps: int = 2) -> Run:
    return new_run(baseline, technique or "baseline", size="pico", recipe="classic", task="adapt", steps=steps)


def prompts(model: nn.Module) -> list[nn.Parameter]:
    return [each for name, each in model.named_parameters() if name.endswith("prompt")]


@pytest.mark.parametrize(("name", "expected"), [("vit", (0, 4)), ("mae", (1, 4))])
def test_tokens_before_the_patches(name, expected):
    run = adapting(name)
    assert picture_row(run.anatomy, lambda: run.trial(run.model)) == expected


@pytest.mark.parametrize(("name", "leading"), [("dropping_vit", 1), ("deit3", 1)])
def test_tokens_before_the_patches_of_others(name, leading):
    model = make(name)
    assert picture_row(anatomy(model), lambda: model(torch.zeros(1, 3, 32, 32))) == (leading, 3 * 8 * 8)


def test_a_copy_reads_its_own_prompts():
    run = adapting("vit", Vpt(LENGTH))
    batch, _ = run.data.batch(0, 0, 2)
    copied = copy.deepcopy(run.model)
    before = run.baseline.forward(run.model, batch).logits
    prompts(copied)[0].data.neg_()
    assert torch.equal(run.baseline.forward(run.model, batch).logits, before)
    assert not torch.allclose(run.baseline.forward(copied, batch).logits, before)
