"""Masked autoencoder (He et al., arXiv 2111.06377): predict the normalised pixels of the 75 % of patches left out.

The decoder is 512 wide and 8 deep at base and large (table 1), targets are normalised per patch (section 3). The model
draws its mask by sorting noise; the noise comes with the batch, so that every contender hides the same patches.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from transformers import ViTMAEConfig, ViTMAEForPreTraining

from baselines import classical, models
from baselines.images import image_data, normalised
from baselines.recipes import named
from suite.contract.baseline import Baseline, Predictor
from suite.contract.data import Batch, Data, generator
from suite.contract.recipe import Recipe
from suite.record.job import RecipeName, Size, Task

MASKED_SHARE = 0.75
SIDE: dict[Size, int] = {"pico": 16, "nano": 32, "micro": 32, "base": 224, "large": 224}
PATCH: dict[Size, int] = {"pico": 4, "nano": 4, "micro": 4, "base": 16, "large": 16}
_ENCODER: dict[Size, tuple[int, int, int]] = {  # width, depth, heads
    "pico": (32, 2, 2),
    "nano": (96, 4, 3),
    "micro": (192, 6, 6),
    "base": (768, 12, 12),
    "large": (1024, 24, 16),
}
_DECODER: dict[Size, tuple[int, int, int]] = {
    "pico": (16, 1, 2),
    "nano": (64, 2, 2),
    "micro": (96, 2, 3),
    "base": (512, 8, 16),
    "large": (512, 8, 16),
}
# Table 8: AdamW with betas 0.9 and 0.95, weight decay 0.05, cosine; learning rate 1.5e-4 per 256 images.
_MAE: dict[str, Any] = {"beta2": 0.95, "weight_decay": 0.05}
_PRETRAIN: dict[Size, Recipe] = {
    "pico": Recipe(steps=8, batch_size=4, learning_rate=2e-3, **_MAE),
    "nano": Recipe(steps=120, batch_size=12, learning_rate=2e-3, **_MAE),
    "micro": Recipe(steps=120, batch_size=8, learning_rate=2e-3, **_MAE),
    "base": Recipe(steps=600, batch_size=64, learning_rate=1.5e-4, **_MAE),
    "large": Recipe(steps=600, batch_size=32, learning_rate=1.5e-4, **_MAE),
}


@dataclass(frozen=True)
class MaskedPatches:
    """``pixel_values`` float32 [batch, 3, side, side] and ``noise`` float32 [batch, patches], whose lowest are kept."""

    patch: int

    def __call__(self, batch: Batch, generator: torch.Generator) -> Batch:
        pixels = normalised(batch["pixels"])
        patches = (pixels.shape[-1] // self.patch) ** 2
        return {"pixel_values": pixels, "noise": torch.rand(len(pixels), patches, generator=generator)}


def patchified(pixels: Tensor, patch: int) -> Tensor:
    """[batch, channels, side, side] to [batch, patches, patch * patch * channels], channels last, rows first."""
    batch, channels, side, _ = pixels.shape
    grid = pixels.reshape(batch, channels, side // patch, patch, side // patch, patch)
    return grid.permute(0, 2, 4, 3, 5, 1).reshape(batch, (side // patch) ** 2, patch * patch * channels)


def sine_cosine_positions(width: int, grid: int) -> Tensor:
    """Fixed 2-D position embeddings float32 [1 + grid * grid, width], zero for the class token: a quarter each of sine
    and cosine of the column, then of the row, at frequencies 10000^(-4 i / width)."""
    frequency = 10000.0 ** (-torch.arange(width // 4) / (width // 4))
    angle = torch.arange(grid)[:, None] * frequency
    wave = torch.cat([angle.sin(), angle.cos()], dim=1)
    column, row = wave.repeat(grid, 1), wave.repeat_interleave(grid, 0)
    return torch.cat([torch.zeros(1, width), torch.cat([column, row], dim=1)])


@torch.no_grad()
def initialised(model: ViTMAEForPreTraining) -> ViTMAEForPreTraining:
    """``model`` initialised as appendix A.1 says, in place: Xavier uniform, fixed sine-cosine positions.

    transformers (5.23) leaves a new model's frozen positions at zero, in encoder and decoder: it cannot tell patches
    apart, and learns nothing.
    """
    embeddings, decoder = model.vit.embeddings, model.decoder
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
    nn.init.xavier_uniform_(embeddings.patch_embeddings.projection.weight.flatten(1))
    grid = math.isqrt(embeddings.patch_embeddings.num_patches)
    for positions in (embeddings.position_embeddings, decoder.decoder_pos_embed):
        positions.copy_(sine_cosine_positions(positions.shape[-1], grid))
    for token in (embeddings.cls_token, decoder.mask_token):
        nn.init.normal_(token, std=0.02)
    return model


class Mae(Baseline):
    id: ClassVar[str] = "mae"
    version: ClassVar[int] = 1
    modality: ClassVar[Literal["text", "image"]] = "image"
    hub_task: ClassVar[str] = "image-feature-extraction"
    quality: ClassVar[str] = "mean squared error of normalised masked patches"

    def recipe(self, size: Size, name: RecipeName, task: Task) -> Recipe:
        recipe = _PRETRAIN[size]
        if task == "adapt":
            recipe = replace(recipe, steps=recipe.steps // 2, learning_rate=recipe.learning_rate / 2)
        return named(recipe, name, size)

    def data(self, size: Size, split: Literal["pretrain", "source", "adapt"], location: str | None = None) -> Data:
        return image_data(size, split, location, SIDE[size], labelled=False, transform=MaskedPatches(PATCH[size]))

    def model(self, size: Size, data: Data, override: str | None = None) -> nn.Module:
        if override is not None:
            return _from_folder(override, SIDE[size], PATCH[size])
        (width, depth, heads), (decoder_width, decoder_depth, decoder_heads) = _ENCODER[size], _DECODER[size]
        config = ViTMAEConfig(
            image_size=SIDE[size],
            patch_size=PATCH[size],
            hidden_size=width,
            num_hidden_layers=depth,
            num_attention_heads=heads,
            intermediate_size=4 * width,
            decoder_hidden_size=decoder_width,
            decoder_num_hidden_layers=decoder_depth,
            decoder_num_attention_heads=decoder_heads,
            decoder_intermediate_size=4 * decoder_width,
            norm_pix_loss=True,
        )
        return initialised(ViTMAEForPreTraining(config))

    def classical(self, size: Size, data: Data) -> Mapping[str, Predictor]:
        if size in ("base", "large"):
            return {}
        training = MaskedPatches(PATCH[size])(dict(data.train.tensors), generator(0))
        return {"PCA inpainting": Inpainting(training, PATCH[size])}

    def forward(self, model: nn.Module, batch: Batch) -> Any:
        return model(pixel_values=batch["pixel_values"], noise=batch["noise"])

    def losses(self, outputs: Any, batch: Batch) -> Tensor:
        logits = outputs.logits.float()
        target = patchified(batch["pixel_values"].float(), math.isqrt(logits.shape[-1] // 3))
        error = (logits - unit_patches(target)).square().mean(-1)
        return (error * outputs.mask).sum(1) / outputs.mask.sum(1)


class Inpainting:
    """Masked patches completed from the others by principal components, then normalised as the model's targets are, and
    shrunk by the factor of least error on the training examples."""

    def __init__(self, training: Batch, patch: int) -> None:
        self.parts, self.patch, self.shrinkage = classical.PrincipalComponents(training["pixel_values"]), patch, 1.0
        guess = self(training)
        hidden = guess.mask[..., None]
        target = unit_patches(patchified(training["pixel_values"], patch))
        self.shrinkage = float((hidden * guess.logits * target).sum() / (hidden * guess.logits.square()).sum())

    def __call__(self, batch: Batch) -> Any:
        pixels, noise = batch["pixel_values"], batch["noise"]
        kept = int(noise.shape[1] * (1 - MASKED_SHARE))
        mask = (noise.argsort(1).argsort(1) >= kept).float()
        grid = math.isqrt(noise.shape[1])
        shown = (1 - mask).view(-1, 1, grid, grid)
        visible = shown.repeat_interleave(self.patch, 2).repeat_interleave(self.patch, 3).expand_as(pixels)
        whole = self.parts.completed(pixels, visible.flatten(1).double()).view_as(pixels)
        return SimpleNamespace(logits=self.shrinkage * unit_patches(patchified(whole, self.patch)), mask=mask)


def unit_patches(patches: Tensor) -> Tensor:
    """Patches [..., features] with mean 0 and variance 1 each."""
    variance, mean = torch.var_mean(patches, dim=-1, keepdim=True)
    return (patches - mean) / (variance + 1e-6).sqrt()


def _from_folder(folder: str, side: int, patch: int) -> nn.Module:
    config = models.configuration(folder, {ViTMAEConfig}, "masked image modelling (vit_mae)")
    assert isinstance(config, ViTMAEConfig)
    if config.patch_size != patch:
        raise ValueError(
            f"--model {folder}: patches of {config.patch_size}, but this size's noise is for patches of {patch}; "
            f"set patch_size to {patch} or choose another --size"
        )
    config.image_size, config.num_channels, config.norm_pix_loss = side, 3, True
    return initialised(ViTMAEForPreTraining(config))
