"""The masked autoencoder's encoder with and without mask tokens: against the model written out, and what it costs."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import ViTMAEConfig, ViTMAEForPreTraining

from suite.entries.catalogue import reference_of
from techniques.token_masking.mae.technique import Mae, Masking, masking, with_mask_tokens
from tests.runs import new_run

SIDE, PATCH, PATCHES = 12, 3, 16


def autoencoder(mask_ratio: float = 0.75) -> ViTMAEForPreTraining:
    torch.manual_seed(0)
    config = ViTMAEConfig(
        image_size=SIDE,
        patch_size=PATCH,
        num_channels=1,
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        decoder_hidden_size=16,
        decoder_num_hidden_layers=1,
        decoder_num_attention_heads=2,
        decoder_intermediate_size=32,
        mask_ratio=mask_ratio,
    )
    model = ViTMAEForPreTraining(config).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    return model.eval()


def batch(rows: int = 3) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    pixels = torch.randn(rows, 1, SIDE, SIDE, generator=generator, dtype=torch.float64)
    return {"pixel_values": pixels, "noise": torch.rand(rows, PATCHES, generator=generator)}


def attached(model: ViTMAEForPreTraining, technique: Mae) -> Any:
    run: Any = SimpleNamespace(trial=lambda model: model(**batch(2)), device=torch.device("cpu"))
    return technique.model(model, run)


def written_out(model: Any, token: Tensor, pixels: Tensor, noise: Tensor) -> Tensor:
    """Table 1c's encoder with [M], example by example, the patches at their own places throughout: attention does not
    ask for an order. Blocks and norms are the model's."""
    predictions = []
    for picture, values in zip(pixels, noise.tolist(), strict=True):
        embedding, decoder = model.vit.embeddings, model.decoder
        x = embedding.patch_embeddings(picture[None])
        shown = sorted(range(PATCHES), key=lambda index: values[index])[: int(PATCHES * (1 - model.config.mask_ratio))]
        x = torch.stack([x[0, index] if index in shown else token for index in range(PATCHES)])[None]
        x = torch.cat([embedding.cls_token, x], 1) + embedding.position_embeddings
        for layer in model.vit.layers:
            x = layer(x)
        x = decoder.decoder_embed(model.vit.layernorm(x)) + decoder.decoder_pos_embed
        for layer in decoder.decoder_layers:
            x = layer(x)
        predictions.append(decoder.decoder_pred(decoder.decoder_norm(x))[0, 1:])
    return torch.stack(predictions)


def test_the_reference_is_the_papers_ablation_written_out() -> None:
    plain = autoencoder()
    model = attached(copy.deepcopy(plain), Mae(encoder="all")).double()
    ours = model(**batch()).logits
    token = model.encoder_mask_tokens.token
    theirs = written_out(plain, token, *batch().values())
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)
    (of_ours,) = torch.autograd.grad(ours.square().sum(), token)
    (of_theirs,) = torch.autograd.grad(theirs.square().sum(), token)
    torch.testing.assert_close(of_ours, of_theirs, rtol=1e-9, atol=1e-9)


def test_the_default_leaves_the_model_as_it_is() -> None:
    plain = autoencoder()
    model = attached(copy.deepcopy(plain), technique := Mae())
    assert torch.equal(model(**batch()).logits, plain(**batch()).logits)
    assert [name for name, _ in model.named_modules()] == [name for name, _ in plain.named_modules()]
    assert technique.left_out.count == 1


def test_a_copy_of_the_reference_has_its_own_token() -> None:
    model = attached(autoencoder(), Mae(encoder="all")).double()
    copied = copy.deepcopy(model)
    before = copied(**batch()).logits
    with torch.no_grad():
        model.encoder_mask_tokens.token.zero_()
    assert torch.equal(copied(**batch()).logits, before)
    assert not torch.equal(model(**batch()).logits, before)


def test_nothing_masked_adds_nothing() -> None:
    hidden = torch.randn(2, 1 + 4, 8)
    assert with_mask_tokens(hidden, torch.zeros(8), torch.randn(4, 8), torch.rand(2, 4), leading=1) is hidden


@pytest.mark.parametrize(("ratio", "visible"), [(0.75, 4), (0.5, 8), (0.9, 1), (0.3, 11)])
def test_the_encoder_sees_so_many_patches(ratio: float, visible: int) -> None:
    model = autoencoder(ratio)
    assert masking(model, lambda: model(**batch(2))) == Masking(PATCHES, visible, 1)


@pytest.mark.parametrize("encoder", ["visible", "all"])
def test_a_mask_that_leaves_nothing_or_all_is_refused(encoder: Any) -> None:
    with pytest.raises(ValueError, match=r"all 16 patches are masked.*at most 0\.9375.*= 1"):
        attached(autoencoder(0.99), Mae(encoder=encoder))
    with pytest.raises(ValueError, match="none of the 16 patches is masked"):
        attached(autoencoder(0.0), Mae(encoder=encoder))


@pytest.mark.parametrize("baseline", ["vit", "bert"])
def test_other_models_are_refused(baseline: str) -> None:
    with pytest.raises(ValueError, match="masked autoencoders"):
        new_run(baseline, Mae(), size="pico")


def test_the_reference_is_a_stack_with_a_setting() -> None:
    assert reference_of("mae") == reference_of("mae:encoder=all") == ("mae:encoder=all", "pretrain")
