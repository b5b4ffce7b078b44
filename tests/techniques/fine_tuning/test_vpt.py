"""Visual prompt tuning against a loop over the blocks of the frozen model, as its paper's equations have it."""

import copy

import pytest
import torch
from torch import Tensor, nn

from suite.loop.run import Run
from suite.model.anatomy import anatomy
from suite.model.leading import picture_row
from techniques.fine_tuning.vpt.technique import Vpt, initial_prompt, with_prompt, without_prompt
from tests.model.further_models import further_run, make
from tests.runs import new_run

LENGTH = 3


def adapting(baseline: str, technique: Vpt | None = None, steps: int = 2) -> Run:
    return new_run(baseline, technique or "baseline", size="pico", recipe="classic", task="adapt", steps=steps)


def prompts(model: nn.Module) -> list[nn.Parameter]:
    return [each for name, each in model.named_parameters() if name.endswith("prompt")]


def looped(model: nn.Module, pictures: Tensor, own: list[nn.Parameter], deep: bool) -> Tensor:
    """A timm ViT with a class token, block by block: equations 4 to 6 (shallow: 4 and 5 of the first)."""
    row = model._pos_embed(model.patch_embed(pictures))
    first, patches = row[:, :1], row[:, 1:]
    for number, block in enumerate(model.blocks):
        if deep or number == 0:
            between = own[number].expand(len(row), -1, -1)
        row = block(torch.cat([first, between, patches], dim=1))
        first, between, patches = row.split([1, LENGTH, patches.shape[1]], dim=1)
    return model.forward_head(model.norm(torch.cat([first, patches], dim=1)))


@pytest.mark.parametrize("deep", [True, False])
def test_outputs_and_gradients_equal_a_loop_over_the_blocks(deep):
    run, plain = further_run("dropping_vit", Vpt(LENGTH, deep)), make("dropping_vit").eval().requires_grad_(False)
    own = prompts(run.model)
    assert len(own) == (anatomy(plain).depth if deep else 1)
    model, pictures = run.model.eval(), torch.randn(2, 3, 32, 32)
    copies = [nn.Parameter(each.detach().clone()) for each in own]
    outputs = model(pictures), looped(plain, pictures, copies, deep)
    torch.testing.assert_close(*outputs, rtol=1e-5, atol=1e-6)
    for output in outputs:
        output.square().sum().backward()
    for mine, other in zip(own, copies, strict=True):
        torch.testing.assert_close(mine.grad, other.grad, rtol=1e-4, atol=1e-6)


def test_prompts_come_and_go():
    row = torch.arange(5.0).view(1, 5, 1).expand(2, 5, 4)
    prompt = torch.full((3, 4), 9.0)
    longer = with_prompt(prompt, row, 1)
    assert longer[0, :, 0].tolist() == [0, 9, 9, 9, 1, 2, 3, 4]
    assert torch.equal(without_prompt(longer, 1, 3), row)
    assert with_prompt(prompt + 1, longer, 1, 3)[1, :, 1].tolist() == [0, 10, 10, 10, 1, 2, 3, 4]


def test_a_prompt_starts_within_xaviers_bound():
    """ViT-B/16: 3 * 16 * 16 and 768 numbers."""
    prompt = initial_prompt(50, 768, 3 * 16 * 16, torch.Generator().manual_seed(0))
    assert prompt.abs().max() <= 0.0625 < prompt.abs().max() * 1.001
    assert 12 * prompt.numel() == 460_800


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


@pytest.mark.parametrize("name", ["swin", "beit", "eva02"])
def test_rows_that_take_no_further_tokens_are_refused(name):
    with pytest.raises(ValueError, match=r"use a plain vision Transformer|cannot read 5 tokens more"):
        further_run(name, Vpt())


def test_a_text_model_is_refused():
    with pytest.raises(ValueError, match="does not cut pictures into patches"):
        adapting("gpt", Vpt())
