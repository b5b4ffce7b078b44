"""Where patches enter: of several stacks the one that gets pictures, and of what they are not whole in none."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers import CLIPConfig, CLIPModel, ViTMAEConfig, ViTMAEForPreTraining

from suite.model.patch_tokens import patch_entrance
from tests.model.further_models import logits, make

BLOCKS = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}


@pytest.mark.parametrize("words", [16, 17, 18])
def test_of_a_clip_it_is_the_image_tower(words: int) -> None:
    """Also where a text has as many tokens as a picture."""
    text = {**BLOCKS, "vocab_size": 20, "max_position_embeddings": 20, "eos_token_id": 1}
    vision = {**BLOCKS, "image_size": 16, "patch_size": 4, "hidden_size": 24}
    model = CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=8))

    def forward() -> None:
        model(input_ids=torch.ones(2, words, dtype=torch.int64), pixel_values=torch.randn(2, 3, 16, 16))

    (block, leading, patches), seen = patch_entrance(model, forward), list[Tensor]()
    assert (leading, patches) == (1, 16)
    block.module.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    forward()
    assert [each.shape for each in seen] == [(2, 17, 24)]


def test_a_masked_encoder_is_refused() -> None:
    config = ViTMAEConfig(
        **BLOCKS,
        image_size=16,
        patch_size=4,
        decoder_hidden_size=16,
        decoder_num_hidden_layers=1,
        decoder_num_attention_heads=2,
        decoder_intermediate_size=32,
    )
    model = ViTMAEForPreTraining(config)
    with pytest.raises(ValueError, match=r"hidden states \[2, 5, 32\] of 16 patches"):
        patch_entrance(model, lambda: model(torch.randn(2, 3, 16, 16)))


@pytest.mark.parametrize("name", ["pvt", "gpt2"])
def test_a_model_without_patches_side_by_side_is_refused(name: str) -> None:
    model = make(name)
    with pytest.raises(ValueError, match="side by side"):
        patch_entrance(model, lambda: logits(model, name))
