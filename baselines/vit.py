"""ViT (Dosovitskiy et al., arXiv 2010.11929), timm's implementation, trained as DeiT is (arXiv 2012.12877, table 9).

The CPU sizes read noisy digits: clean ones leave 2 % to learn, and where a run ends is luck. nano's rate lies between
those of least validation loss: 0.0017, 0.0022, 0.0029 and 0.0039 end at 0.358, 0.323, 0.323 and 0.382 (two seeds). How
well a budget can be read off a run is the deviation of ln loss over seeds by the slope of ln loss in ln budget. It
falls with the width: at width 64 and its own best rate (0.0044) it is 0.080 (six seeds at 0.7 and 1.4 times the steps),
at width 96 some 0.05 (twelve runs). It is smaller at half the best rate, but there a technique may win by its rate
alone; and at 300 steps (0.02, twelve runs), but there logistic regression is better: 0.30 beside 0.45.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import timm
import torch
import torch.nn.functional as F
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from transformers import AutoModelForImageClassification

from baselines import classical, models
from baselines.images import (
    DIGIT,
    DRAWS,
    FULL,
    USER,
    ImageData,
    PictureShape,
    enlarged,
    image_data,
    mosaic,
    normalised,
    picture_shape,
    shifted,
)
from baselines.recipes import named
from suite.loop.baseline import Baseline, Family, Predictor, Sample
from suite.loop.data import Batch, Data, generator
from suite.loop.recipe import Recipe
from suite.model.anatomy import anatomy, weight_matrix
from suite.record.job import RecipeName, Size, Task

_CONFIG: dict[Size, dict[str, Any]] = {
    "pico": {"embed_dim": 32, "depth": 2, "num_heads": 2},
    "nano": {"embed_dim": 96, "depth": 4, "num_heads": 4},
    "micro": {"embed_dim": 144, "depth": 4, "num_heads": 4},
    "mini": {"embed_dim": 216, "depth": 4, "num_heads": 4},
    "base": {"embed_dim": 768, "depth": 12, "num_heads": 12},
    "large": {"embed_dim": 1024, "depth": 24, "num_heads": 16},
}
_DEIT: dict[str, Any] = {"weight_decay": 0.05}  # learning rate 5e-4 per 512 images, which suits a far longer run
_SMALL: dict[str, Any] = {"schedule": "linear", **_DEIT}
_PRETRAIN: dict[Size, Recipe] = {
    "pico": Recipe(steps=8, batch_size=4, learning_rate=2e-3, **_SMALL),
    "nano": Recipe(steps=500, batch_size=64, learning_rate=2.2e-3, **_SMALL),
    "micro": Recipe(steps=1510, batch_size=64, learning_rate=1.6e-3, **_SMALL),
    "mini": Recipe(steps=4420, batch_size=64, learning_rate=1e-3, **_SMALL),
    "base": Recipe(steps=600, batch_size=64, learning_rate=1e-4, **_DEIT),
    "large": Recipe(steps=600, batch_size=32, learning_rate=5e-5, **_DEIT),
}
NOISE = 0.5
"""Standard deviation of what is added to each pixel, in [-1, 1], of the digits at the CPU sizes."""
BRANCH_SCALE = 0.25
POSITION_SCALE = 10.0
HEAD_STD = 0.02
SAMPLES = 10


class Classification(NamedTuple):
    """What timm returns bare, as an object with ``logits`` [batch, classes]."""

    logits: Tensor


@dataclass(frozen=True)
class LabelledPixels:
    """``pixel_values`` float32 [batch, channels, side, side] and ``labels`` int64 [batch].

    Half of the pictures are moved by up to ``farthest`` pixels; Gaussian noise of standard deviation ``noise`` is added
    to all pixels.
    """

    channels: int
    farthest: int = 0
    noise: float = 0.0

    def __call__(self, batch: Batch, generator: torch.Generator) -> Batch:
        pixels = shifted(batch["pixels"], self.farthest, generator) if self.farthest else batch["pixels"]
        values = normalised(pixels, self.channels)
        if self.noise:
            # In place, for the layout of moved pictures, channels last: so the patches are embedded in order of memory.
            values += self.noise * torch.randn(values.shape, generator=generator)
        return {"pixel_values": values, "labels": batch["labels"]}


@torch.no_grad()
def small_vit(shape: PictureShape, classes: int, **config: Any) -> VisionTransformer:
    """A ViT of the CPU sizes, initialised for a width of 32 to 128, where the papers' scales (0.02) are those of 768.

    Weights follow the layers' widths (``jax``: Xavier and LeCun, as in ViT's own code). Residual branches start small
    (as GPT-2's do), so that the patches are heard through all blocks from the first step on. Positions start at 0.2:
    at 0.02 the patches drown them. The head starts at timm's usual 0.02, not at 0, where no gradient would pass it and
    the first step would say nothing of the blocks. The average of all patches is classified, as nothing has yet taught
    a class token where to look. Without all this 600 steps at nano end at 89 % of held-out digits (without
    noise), with it at 97 %.
    """
    model = VisionTransformer(
        img_size=shape.side, patch_size=shape.patch, in_chans=shape.channels, num_classes=classes,
        class_token=False, global_pool="avg", weight_init="jax", **config,
    )  # fmt: skip
    for block in anatomy(model).blocks:
        for branch in block.branches:
            weight_matrix(branch.module).mul_(BRANCH_SCALE)
    assert isinstance(model.head, nn.Linear) and model.pos_embed is not None
    nn.init.trunc_normal_(model.head.weight, std=HEAD_STD)
    model.pos_embed.mul_(POSITION_SCALE)
    return model


class Vit(Baseline):
    id: ClassVar[str] = "vit"
    version: ClassVar[int] = 3
    modality: ClassVar[Literal["text", "image"]] = "image"
    hub_task: ClassVar[str] = "image-classification"
    quality: ClassVar[str] = "classification cross-entropy (nats)"
    judged_by: ClassVar[Literal["loss", "accuracy"]] = "accuracy"

    def recipe(self, size: Size, name: RecipeName, task: Task) -> Recipe:
        recipe = _PRETRAIN[size]
        if task == "adapt":
            recipe = replace(recipe, steps=recipe.steps // 2, learning_rate=recipe.learning_rate / 4)
        return named(recipe, name, size)

    def data(self, size: Size, split: Literal["pretrain", "source", "adapt"], location: str | None = None) -> Data:
        shape = picture_shape(size, location)
        # A thousand pictures are soon known by heart: without this, twice the steps end in a higher loss, and where
        # longer training is not better training, no time to a quality can be read off.
        farthest = 0 if shape == FULL else shape.side // 8
        # Clean digits are soon all told apart: between 0.97 and 0.98 of them a run is luck, and no budget can be read
        # off. In noise there is something left to learn; a user's pictures stay as they are.
        noise = NOISE if shape == DIGIT else 0.0
        training, held_out = LabelledPixels(shape.channels, farthest, noise), LabelledPixels(shape.channels, 0, noise)
        return image_data(size, split, location, labelled=True, transform=training, test_transform=held_out)

    def model(self, size: Size, data: Data, override: str | None = None) -> nn.Module:
        if not isinstance(data, ImageData):
            raise TypeError("the number of classes comes with the baseline's own data: pass what Vit.data() returned")
        if override is None and data.shape == FULL:
            return VisionTransformer(
                img_size=FULL.side, patch_size=FULL.patch, num_classes=data.classes, **_CONFIG[size]
            )
        if override is None:
            return small_vit(data.shape, data.classes, **_CONFIG[size])
        shape = FULL if data.shape == FULL else USER  # the digits' own 8x8 is too small for the usual patches
        if not Path(override).expanduser().is_dir():
            model = _timm(override, shape.side, data.classes)
        elif "architecture" in (content := models.contents(override)):
            model = _timm(content["architecture"], shape.side, data.classes, content.get("model_args", {}), override)
        else:
            fitting = AutoModelForImageClassification._model_mapping
            config = models.configuration(override, fitting, "image classification")
            config.num_labels, config.image_size, config.num_channels = data.classes, shape.side, shape.channels
            model = models.built(AutoModelForImageClassification, config, override)
        return model if shape == data.shape else enlarged(model, shape)

    def classical(self, size: Size, data: Data) -> Mapping[str, Predictor]:
        if not isinstance(data, ImageData) or data.shape == FULL:
            return {}
        see = data.test_transform or data.transform  # the same noise, in as many draws as the held-out parts have
        drawn = {name: torch.cat([column] * DRAWS[size]) for name, column in data.train.tensors.items()}
        training, validation = (see(part, generator(0)) for part in (drawn, dict(data.validation.tensors)))
        return {"logistic regression": classical.LogisticRegression(classical.grey_pixels, training, validation)}

    def samples(self, predict: Predictor, batch: Batch) -> list[Sample]:
        batch = {name: tensor[:SAMPLES] for name, tensor in batch.items()}
        said = predict(batch).logits.argmax(-1).tolist()
        caption = f"labels {batch['labels'].tolist()}, predictions {said}"
        return [Sample(caption, picture=mosaic(batch["pixel_values"][None]))]

    def families(self) -> Mapping[str, Family]:
        from baselines.families import CLASSIFIERS  # no part of a run's code: a new one leaves its evidence verified

        return CLASSIFIERS

    def forward(self, model: nn.Module, batch: Batch) -> Any:
        outputs = model(batch["pixel_values"])
        return Classification(outputs) if isinstance(outputs, Tensor) else outputs

    def losses(self, outputs: Any, batch: Batch) -> Tensor:
        return F.cross_entropy(outputs.logits.float(), batch["labels"], reduction="none")

    def metrics(self, outputs: Any, batch: Batch) -> dict[str, Tensor]:
        return {"accuracy": (outputs.logits.argmax(-1) == batch["labels"]).float()}


def _timm(
    name: str, side: int, classes: int, arguments: Mapping[str, Any] | None = None, folder: str | None = None
) -> nn.Module:
    """timm's model ``name`` for pictures of ``side``, with ``arguments`` as a config.json in timm's form has them."""
    source = folder or name
    if not timm.is_model(name):
        near = " or ".join(get_close_matches(name, timm.list_models(), n=3))
        hint = f"did you mean {near}?" if near else "timm.list_models() in Python lists them"
        raise ValueError(f"--model {source}: neither a folder nor a timm model; {hint}")
    # a folder's arguments are of the architecture: nothing is loaded, and nothing is fetched
    fixed = {"pretrained": False, "checkpoint_path": None, "num_classes": classes}
    values = {**(arguments or {}), **fixed, "img_size": side}
    try:
        try:
            return timm.create_model(name, **values)
        except TypeError as error:
            if "img_size" not in str(error):
                raise
            del values["img_size"]  # a model for pictures of any size takes none
            return timm.create_model(name, **values)
    except models.UNBUILT as error:
        raise ValueError(f"--model {source}: timm cannot build it for {side}x{side} images: {error}") from error
