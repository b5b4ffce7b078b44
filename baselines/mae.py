"""Implements the masked autoencoder (He et al., arXiv 2111.06377): predict the pixels of the patches left out, 75 % of
them.

The decoder is 512 wide and 8 deep at base and large (table 1), targets are normalised per patch (section 3). At the CPU
sizes half of sixteen patches is hidden, as four patches say too little of a digit, and the pixels themselves are
predicted: mean and variance of a few pixels are most of what they say. The model draws its mask by sorting noise; the
noise comes with the batch, so that every contender hides the same patches. Training at nano ends where the curve is
steep enough to read a budget off: ln loss falls by 0.26 there a unit of ln budget, and deviates by 0.010 over eight
seeds.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from transformers import ViTMAEConfig, ViTMAEForPreTraining

from baselines import classical, models
from baselines.images import FULL, ImageData, PictureShape, image_data, mosaic, normalised, picture_shape
from baselines.recipes import named
from suite.loop.baseline import Baseline, Family, Predictor, Sample
from suite.loop.data import Batch, Data, generator
from suite.loop.recipe import Recipe
from suite.model.anatomy import anatomy, weight_matrix
from suite.record.job import RecipeName, Size, Task

MASKED_SHARE: dict[Size, float] = {"pico": 0.5, "nano": 0.5, "micro": 0.5, "mini": 0.5, "base": 0.75, "large": 0.75}
# Width, depth, heads, width of the MLP. A single block of the encoder has more parameters than the decoder: techniques
# that make it shallower must not take the decoder for the main stack.
_ENCODER: dict[Size, tuple[int, int, int, int]] = {
    "pico": (32, 2, 2, 64),
    "nano": (64, 4, 4, 128),
    "micro": (96, 4, 4, 192),
    "mini": (160, 4, 4, 320),
    "base": (768, 12, 12, 3072),
    "large": (1024, 24, 16, 4096),
}
_DECODER: dict[Size, tuple[int, int, int, int]] = {
    "pico": (16, 1, 2, 32),
    "nano": (40, 2, 4, 80),
    "micro": (64, 2, 4, 128),
    "mini": (96, 2, 4, 192),
    "base": (512, 8, 16, 2048),
    "large": (512, 8, 16, 2048),
}
# Table 8: AdamW with betas 0.9 and 0.95, weight decay 0.05, cosine; learning rate 1.5e-4 per 256 images.
_MAE: dict[str, Any] = {"beta2": 0.95, "weight_decay": 0.05}
_SMALL: dict[str, Any] = {"schedule": "linear", **_MAE}
_PRETRAIN: dict[Size, Recipe] = {
    "pico": Recipe(steps=8, batch_size=4, learning_rate=4e-3, **_SMALL),
    "nano": Recipe(steps=900, batch_size=32, learning_rate=4e-3, **_SMALL),
    "micro": Recipe(steps=2700, batch_size=32, learning_rate=3e-3, **_SMALL),
    "mini": Recipe(steps=6750, batch_size=32, learning_rate=2e-3, **_SMALL),
    "base": Recipe(steps=600, batch_size=64, learning_rate=1.5e-4, **_MAE),
    "large": Recipe(steps=600, batch_size=32, learning_rate=1.5e-4, **_MAE),
}
PATCH_SCALE = 5.0
BRANCH_SCALE: dict[Size, float] = {"pico": 0.25, "nano": 0.1, "micro": 0.1, "mini": 0.1}
OUTPUT_SCALE = 0.1
SAMPLES = 8
VALIDATION_BATCH = 64  # pictures that a classical method completes at once


@dataclass(frozen=True)
class MaskedPatches:
    """Makes ``pixel_values`` float32 [batch, channels, side, side] and ``noise`` float32 [batch, patches], whose lowest
    are kept."""

    shape: PictureShape

    def __call__(self, batch: Batch, generator: torch.Generator) -> Batch:
        pixels = normalised(batch["pixels"], self.shape.channels)
        return {"pixel_values": pixels, "noise": torch.rand(len(pixels), self.shape.patches, generator=generator)}


def patchified(pixels: Tensor, patch: int) -> Tensor:
    """Turns [batch, channels, side, side] to [batch, patches, patch * patch * channels], channels last, rows first."""
    batch, channels, side, _ = pixels.shape
    grid = pixels.reshape(batch, channels, side // patch, patch, side // patch, patch)
    return grid.permute(0, 2, 4, 3, 5, 1).reshape(batch, (side // patch) ** 2, patch * patch * channels)


def unpatchified(patches: Tensor, pixels: Tensor) -> Tensor:
    """Undoes :func:`patchified`: patches [batch, patches, features] as pictures in the shape of ``pixels``."""
    batch, channels, side, _ = pixels.shape
    grid = math.isqrt(patches.shape[1])
    cells = patches.reshape(batch, grid, grid, side // grid, side // grid, channels)
    return cells.permute(0, 5, 1, 3, 2, 4).reshape(pixels.shape)


def unit_patches(patches: Tensor) -> Tensor:
    """Returns patches [..., features] with mean 0 and variance 1 each."""
    variance, mean = torch.var_mean(patches, dim=-1, keepdim=True)
    return (patches - mean) / (variance + 1e-6).sqrt()


def targets(batch: Batch) -> Tensor:
    """Returns what is predicted, float32 [batch, patches, features]: the batch's patches, normalised where they are the
    paper's."""
    pixels = batch["pixel_values"].float()
    patch = pixels.shape[-1] // math.isqrt(batch["noise"].shape[1])
    patches = patchified(pixels, patch)
    return unit_patches(patches) if patch == FULL.patch else patches


def sine_cosine_positions(width: int, grid: int) -> Tensor:
    """Computes fixed 2-D position embeddings float32 [1 + grid * grid, width], zero for the class token: a quarter each
    of sine and cosine of the column, then of the row, at frequencies 10000^(-4 i / width)."""
    frequency = 10000.0 ** (-torch.arange(width // 4) / (width // 4))
    angle = torch.arange(grid)[:, None] * frequency
    wave = torch.cat([angle.sin(), angle.cos()], dim=1)
    column, row = wave.repeat(grid, 1), wave.repeat_interleave(grid, 0)
    return torch.cat([torch.zeros(1, width), torch.cat([column, row], dim=1)])


def normal_positions(width: int, grid: int) -> Tensor:
    """Draws fixed position embeddings float32 [1 + grid * grid, width], zero for the class token: drawn once from a
    standard normal distribution, the same for all seeds."""
    return torch.cat([torch.zeros(1, width), torch.randn(grid * grid, width, generator=generator(width))])


@torch.no_grad()
def initialised(
    model: ViTMAEForPreTraining, positions_of: Callable[[int, int], Tensor] = sine_cosine_positions
) -> ViTMAEForPreTraining:
    """Returns ``model`` initialised as appendix A.1 says, in place: Xavier uniform, fixed positions, sine-cosine ones.

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
        positions.copy_(positions_of(positions.shape[-1], grid))
    for token in (embeddings.cls_token, decoder.mask_token):
        nn.init.normal_(token, std=0.02)
    return model


@torch.no_grad()
def small(model: ViTMAEForPreTraining, branch_scale: float) -> ViTMAEForPreTraining:
    """Returns ``model`` initialised for the CPU sizes, in place: as the papers' sizes, but for four scales.

    Frequencies down to 1/10000 are constant on a grid of four by four patches, and waves slow enough to differ there
    are nearly the same for neighbours: positions are normal ones, all about as far apart. A few grey pixels are a small
    input: the patches' projection starts five times as large, so that what is shown is not drowned by where it is.
    Residual branches start small (as GPT-2's do), so that both are heard through all blocks; the predictions start near
    0, where the error of knowing nothing is least.
    """
    initialised(model, normal_positions)
    model.vit.embeddings.patch_embeddings.projection.weight.mul_(PATCH_SCALE)
    for block in anatomy(model).every_block:
        for branch in block.branches:
            weight_matrix(branch.module).mul_(branch_scale)
    model.decoder.decoder_pred.weight.mul_(OUTPUT_SCALE)
    return model


class Mae(Baseline):
    id: ClassVar[str] = "mae"
    version: ClassVar[int] = 4
    modality: ClassVar[Literal["text", "image"]] = "image"
    hub_task: ClassVar[str] = "image-feature-extraction"
    quality: ClassVar[str] = "mean squared error of masked patches"

    def recipe(self, size: Size, name: RecipeName, task: Task) -> Recipe:
        return named(_PRETRAIN, size, name, task)

    def data(self, size: Size, split: Literal["pretrain", "source", "adapt"], location: str | None = None) -> Data:
        return image_data(size, split, location, labelled=False, transform=MaskedPatches(picture_shape(size, location)))

    def model(self, size: Size, data: Data, override: str | None = None) -> nn.Module:
        if not isinstance(data, ImageData):
            raise TypeError("the pictures' shape comes with the baseline's own data: pass what Mae.data() returned")
        shape = data.shape
        if override is not None:
            return _from_folder(override, shape)
        width, depth, heads, inner = _ENCODER[size]
        decoder_width, decoder_depth, decoder_heads, decoder_inner = _DECODER[size]
        config = ViTMAEConfig(
            image_size=shape.side,
            num_channels=shape.channels,
            patch_size=shape.patch,
            hidden_size=width,
            num_hidden_layers=depth,
            num_attention_heads=heads,
            intermediate_size=inner,
            decoder_hidden_size=decoder_width,
            decoder_num_hidden_layers=decoder_depth,
            decoder_num_attention_heads=decoder_heads,
            decoder_intermediate_size=decoder_inner,
            mask_ratio=MASKED_SHARE[size],
            norm_pix_loss=shape == FULL,
        )
        model = ViTMAEForPreTraining(config)
        return initialised(model) if shape == FULL else small(model, BRANCH_SCALE[size])

    def classical(self, size: Size, data: Data) -> Mapping[str, Predictor]:
        if size in ("base", "large"):
            return {}
        pictures = data.transform(dict(data.train.tensors), generator(0))["pixel_values"]
        parts, pixels = classical.PrincipalComponents(pictures), pictures[0].numel()
        validation = data.held_out("validation", VALIDATION_BATCH)

        def best(methods: Iterable[classical.Completion]) -> Predictor:
            predictors = [inpainting(method, MASKED_SHARE[size]) for method in methods]
            return min(predictors, key=lambda predict: self.mean_scores(predict, validation)["loss"])

        bars = {
            "mean picture": inpainting(parts.completing(0), MASKED_SHARE[size]),
            "PCA inpainting": best(map(parts.completing, classical.COMPONENTS)),
        }
        if pixels <= classical.LARGEST_REGRESSED:
            bars["linear regression"] = best(parts.completing(pixels, ridge) for ridge in classical.RIDGES)
        return bars

    def further_scores(self, model: nn.Module, data: Data, test: Sequence[Batch]) -> dict[str, float]:
        """Computes the loss of completing a picture by those most like it; and how well logistic regression reads a
        picture's digit off the encoder's features, and off the pixels."""
        if not isinstance(data, ImageData) or not isinstance(model, ViTMAEForPreTraining) or data.shape == FULL:
            return {}
        parts = {"training": data.train, "validation": data.validation, "test": data.test}
        shown = {
            name: {**data.transform(dict(part.tensors), generator(0)), "labels": part.tensors["labels"]}
            for name, part in parts.items()
        }
        nearest = classical.nearest_neighbours(shown["training"]["pixel_values"], classical.NEIGHBOURS)
        loss = self.mean_scores(inpainting(nearest, model.config.mask_ratio), test)["loss"]
        scores = {f"loss of {classical.NEIGHBOURS} nearest neighbours": loss}
        if data.train.tensors["labels"].min() < 0:  # a user's pictures are read without their labels
            return scores
        for name, inputs in (("the encoder's features", partial(features, model)), ("pixels", classical.grey_pixels)):
            read = classical.LogisticRegression(inputs, shown["training"], shown["validation"])
            right = read(shown["test"]).logits.argmax(-1) == shown["test"]["labels"]
            scores[f"accuracy of logistic regression on {name}"] = right.double().mean().item()
        return scores

    def samples(self, predict: Predictor, batch: Batch) -> list[Sample]:
        batch = {name: tensor[:SAMPLES] for name, tensor in batch.items()}
        outputs, pixels = predict(batch), batch["pixel_values"].float()
        patch = pixels.shape[-1] // math.isqrt(batch["noise"].shape[1])
        patches, completed, hidden = patchified(pixels, patch), outputs.logits.float(), outputs.mask[..., None] > 0
        if patch == FULL.patch:  # as the paper shows them: with each patch's own mean and variance
            variance, mean = torch.var_mean(patches, dim=-1, keepdim=True)
            completed = completed * (variance + 1e-6).sqrt() + mean
        rows = [unpatchified(torch.where(hidden, image, patches), pixels) for image in (torch.zeros(()), completed)]
        return [Sample("shown, completed, original", picture=mosaic(torch.stack([*rows, pixels], dim=1)))]

    def families(self) -> Mapping[str, Family]:
        from baselines.families import AUTOENCODERS  # no part of a run's code: a new one leaves its evidence verified

        return AUTOENCODERS

    def forward(self, model: nn.Module, batch: Batch) -> Any:
        return model(pixel_values=batch["pixel_values"], noise=batch["noise"])

    def losses(self, outputs: Any, batch: Batch) -> Tensor:
        error = (outputs.logits.float() - targets(batch)).square().mean(-1)
        return (error * outputs.mask).sum(1) / outputs.mask.sum(1)


@torch.no_grad()
def features(model: ViTMAEForPreTraining, batch: Batch) -> Tensor:
    """Computes what the encoder makes of all patches, none of them hidden: float32 [batch, patches * width]."""
    pixels, config = batch["pixel_values"].to(model.device), model.vit.embeddings.config
    in_order = torch.arange(model.vit.embeddings.patch_embeddings.num_patches, device=model.device)
    masked_share, config.mask_ratio = config.mask_ratio, 0.0
    try:
        hidden = model.vit(pixels, noise=in_order.float().expand(len(pixels), -1)).last_hidden_state
    finally:
        config.mask_ratio = masked_share
    return hidden[:, 1:].flatten(1).cpu()


def inpainting(complete: classical.Completion, masked_share: float) -> Predictor:
    """Predicts the masked patches as ``complete`` fills them in from the others, in the form of the model's outputs."""

    def predict(batch: Batch) -> Any:
        pixels, noise = batch["pixel_values"], batch["noise"]
        visible = int(noise.shape[1] * (1 - masked_share))
        mask = (noise.argsort(1).argsort(1) >= visible).float()
        grid = math.isqrt(noise.shape[1])
        whole = complete(pixels, spread(1 - mask, pixels).flatten(1)).view_as(pixels)
        return SimpleNamespace(logits=patchified(whole, pixels.shape[-1] // grid), mask=mask)

    return predict


def spread(patches: Tensor, pixels: Tensor) -> Tensor:
    """Returns a value for each patch, [batch, patches], as a value for each of its pixels, in the shape of
    ``pixels``."""
    grid = math.isqrt(patches.shape[1])
    side = pixels.shape[-1] // grid
    return patches.view(-1, 1, grid, grid).repeat_interleave(side, 2).repeat_interleave(side, 3).expand_as(pixels)


def _from_folder(folder: str, shape: PictureShape) -> nn.Module:
    config = models.configuration(folder, {ViTMAEConfig}, "masked image modelling (vit_mae)")
    assert isinstance(config, ViTMAEConfig)
    if config.patch_size != shape.patch:
        raise ValueError(
            f"--model {folder}: patches of {config.patch_size}, but the noise of these {shape.side}x{shape.side} "
            f"pictures is for patches of {shape.patch}; set patch_size to {shape.patch} or choose another --size"
        )
    config.image_size, config.num_channels, config.norm_pix_loss = shape.side, shape.channels, shape == FULL
    return initialised(ViTMAEForPreTraining(config))
