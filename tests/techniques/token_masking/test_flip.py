"""FLIP: which patches the blocks get, what that costs at the paper's size, and the CLIP that the study trains."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
import timm
import torch
from torch import Tensor, nn
from transformers import DeiTConfig, DeiTForImageClassification, ViTConfig, ViTForImageClassification

from suite.model.anatomy import anatomy
from suite.model.patch_tokens import patch_entrance
from suite.record.job import Setting
from suite.topics.studies.lab import Lab
from techniques.token_masking.flip import study
from techniques.token_masking.flip.technique import Flip, dropping, kept_patches
from tests.model.further_models import further_run
from tests.runs import new_run

SIDE, PATCHES = 16, 16
TIMM = {"img_size": SIDE, "patch_size": 4, "embed_dim": 24, "depth": 3, "num_heads": 2, "num_classes": 5}
HUGGING_FACE = {
    "image_size": SIDE,
    "patch_size": 4,
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "num_labels": 5,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
MODELS: dict[str, tuple[Any, int]] = {
    "timm_vit": (lambda: timm.create_model("vit_tiny_patch16_224", **TIMM), 1),
    "timm_registers": (lambda: timm.create_model("vit_tiny_patch16_224", **TIMM, reg_tokens=3), 4),
    "timm_without_class_token": (
        lambda: timm.create_model("vit_tiny_patch16_224", **TIMM, class_token=False, global_pool="avg"),
        0,
    ),
    "timm_deit3": (lambda: timm.create_model("deit3_small_patch16_224", **TIMM), 1),
    "hf_vit": (lambda: ViTForImageClassification(ViTConfig(**HUGGING_FACE)), 1),
    "hf_deit": (lambda: DeiTForImageClassification(DeiTConfig(**HUGGING_FACE)), 2),
}


def pictures(rows: int = 2) -> Tensor:
    return torch.randn(rows, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0))


def logits(model: nn.Module) -> Tensor:
    output: Any = model(pictures())
    return output if isinstance(output, Tensor) else output.logits


@pytest.mark.parametrize("name", MODELS)
def test_the_blocks_get_class_tokens_and_the_patches_of_the_lowest_noise(name: str) -> None:
    make, leading = MODELS[name]
    torch.manual_seed(0)
    model = make().train()
    entrance = patch_entrance(model, lambda: logits(model))
    assert entrance[1:] == (leading, PATCHES)
    blocks = anatomy(model).blocks
    seen: list[Tensor] = []
    with torch.no_grad(), noted(blocks[0].module, seen):
        logits(model)
    torch.manual_seed(3)
    with dropping(entrance, 0.75), noted(blocks[0].module, seen), noted(blocks[2].module, seen):
        logits(model).sum().backward()
    torch.manual_seed(3)
    noise = torch.rand(2, PATCHES).tolist()
    whole, kept, later = seen
    for example in range(2):
        order = sorted(range(PATCHES), key=noise[example].__getitem__)
        chosen = [*range(leading), *(leading + index for index in order[:4])]
        assert torch.equal(kept[example], whole[example, chosen])
    assert later.shape[1] == leading + 4
    assert all(each.grad is not None for block in blocks for each in block.module.parameters())


@contextmanager
def noted(module: nn.Module, seen: list[Tensor]) -> Iterator[None]:
    """The hidden states that ``module`` gets, behind hooks that were there before."""
    hook = module.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    try:
        yield
    finally:
        hook.remove()


def test_masked_gradients_are_those_of_a_model_of_the_kept_patches() -> None:
    """In float64, of a loop over the pictures."""
    torch.manual_seed(0)
    model = MODELS["timm_vit"][0]().double().eval()
    plain = copy.deepcopy(model)
    x = pictures().double()
    entrance = patch_entrance(model, lambda: model(x))
    torch.manual_seed(5)
    with dropping(entrance, 0.5):
        model(x).square().sum().backward()
    torch.manual_seed(5)
    noise = torch.rand(2, PATCHES)
    total = torch.zeros((), dtype=torch.float64)
    for picture, values in zip(x, noise, strict=True):
        hidden = plain._pos_embed(plain.patch_embed(picture[None]))
        index = [0, *(1 + values.argsort()[:8]).tolist()]
        total = total + plain.forward_head(plain.norm(plain.blocks(hidden[:, index]))).square().sum()
    total.backward()
    for (name, ours), theirs in zip(model.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-8, atol=1e-9, msg=name)


def test_shares_are_exact_where_floats_are_not() -> None:
    assert [kept_patches(*each) for each in ((10, 0.9), (196, 0.5), (196, 0.75), (16, 0.0))] == [1, 98, 49, 16]


def test_bad_settings_say_what_fits() -> None:
    with pytest.raises(ValueError, match=r"leaves none of 16 patches: choose at most 0\.9375"):
        new_run("vit", Flip(drop=0.95), size="pico")
    with pytest.raises(ValueError, match="pictures"):
        new_run("gpt", Flip(), size="pico")
    with pytest.raises(ValueError, match="token for each patch"):
        new_run("mae", Flip(), size="pico")


@pytest.mark.parametrize("name", ["swin", "pvt", "beit", "eva02", "xcit"])
def test_models_whose_blocks_place_patches_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="patch"):
        further_run(name, Flip())


def test_cait_trains_on_half_of_the_patches() -> None:
    """Its class token comes later."""
    run = further_run("cait", Flip())
    assert run.train(2)


def test_patches_that_change_their_number_are_left_out_all_the_same() -> None:
    """Four large patches first, then sixteen."""
    run = new_run("vit", "progressive_patch+flip", size="pico", recipe="classic", steps=8)
    seen: list[int] = []
    run.anatomy.blocks[1].module.register_forward_pre_hook(lambda _, args: seen.append(args[0].shape[1]))
    run.train(8)
    assert seen == [2] * 4 + [8] * 3 + [16]


# the study ------------------------------------------------------------------------------------------------------------


def test_sentences_are_told_apart_and_end() -> None:
    rows = study.SENTENCES.flatten(0, 1)
    assert len({tuple(row) for row in rows.tolist()}) == len(rows)
    assert bool((rows == study.WORDS.index("<end>")).sum(1).eq(1).all())
    with pytest.raises(ValueError, match="no such word: 'eleven'"):
        study.tokens_of("a handwritten eleven")
    with pytest.raises(ValueError, match="there is room for"):
        study.tokens_of("a a a a a a a")


def test_the_study_leaves_patches_of_the_image_tower_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study, "CONTENDERS", ((0.0, 1), (0.5, 1), (0.5, 2)))
    setting = Setting(baseline="vit", size="pico", recipe="classic", steps=10)
    lab = cast(Lab, SimpleNamespace(setting=setting, seeds=1, progress=lambda *_: None))
    (table,) = study.study(lab)
    whole, half, larger = (study.Result(*row) for row in table.rows)
    assert (whole.patches, half.patches, larger.batch) == (16, 8, 2 * whole.batch)
    assert 0.4 < half.relative_flops < 0.8
    assert larger.step_gflops == pytest.approx(2 * half.step_gflops, rel=0.01)
    assert all(0 <= each.accuracy <= 1 and 0 <= each.accuracy_masked <= 1 for each in (whole, half, larger))
    assert study.plot([table]).axes[0].get_xlabel().startswith("FLOPs")


def test_a_text_is_read_to_its_end() -> None:
    """What is pooled is the end token's state, whatever stands behind it."""
    torch.manual_seed(0)
    model = study.small_clip(torch.zeros(1, 1, 8, 8)).eval()
    rows = study.SENTENCES[:, 1]
    behind = rows.clone()
    behind[:, -1] = study.WORDS.index("hand")
    one, other = (study.embedded(model.get_text_features(input_ids=each)) for each in (rows, behind))
    torch.testing.assert_close(one, other)
    assert not torch.allclose(one[0], one[1])
