"""ViT (Dosovitskiy et al., arXiv 2010.11929), timm's implementation, trained as DeiT is (arXiv 2012.12877, table 9)."""

from collections.abc import Mapping
from dataclasses import replace
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
from baselines.images import ImageData, image_data, normalised
from baselines.recipes import named
from suite.contract.baseline import Baseline, Predictor
from suite.contract.data import Batch, Data, generator
from suite.contract.recipe import Recipe
from suite.record.job import RecipeName, Size, Task

SIDE: dict[Size, int] = {"pico": 16, "nano": 32, "micro": 32, "base": 224, "large": 224}
_CONFIG: dict[Size, dict[str, Any]] = {
    "pico": {"patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2},
    "nano": {"patch_size": 8, "embed_dim": 128, "depth": 4, "num_heads": 4},
    "micro": {"patch_size": 8, "embed_dim": 192, "depth": 6, "num_heads": 6},
    "base": {"patch_size": 16, "embed_dim": 768, "depth": 12, "num_heads": 12},
    "large": {"patch_size": 16, "embed_dim": 1024, "depth": 24, "num_heads": 16},
}
_DEIT: dict[str, Any] = {"weight_decay": 0.05}  # learning rate 5e-4 per 512 images, which suits a far longer run
_PRETRAIN: dict[Size, Recipe] = {
    "pico": Recipe(steps=8, batch_size=4, learning_rate=1e-3, **_DEIT),
    "nano": Recipe(steps=120, batch_size=20, learning_rate=1e-3, **_DEIT),
    "micro": Recipe(steps=120, batch_size=16, learning_rate=7e-4, **_DEIT),
    "base": Recipe(steps=600, batch_size=64, learning_rate=1e-4, **_DEIT),
    "large": Recipe(steps=600, batch_size=32, learning_rate=5e-5, **_DEIT),
}


class Classification(NamedTuple):
    """What timm returns bare, as an object with ``logits`` [batch, classes]."""

    logits: Tensor


def labelled_pixels(batch: Batch, generator: torch.Generator) -> Batch:
    """``pixel_values`` float32 [batch, 3, side, side] and ``labels`` int64 [batch]."""
    return {"pixel_values": normalised(batch["pixels"]), "labels": batch["labels"]}


class Vit(Baseline):
    id: ClassVar[str] = "vit"
    version: ClassVar[int] = 1
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
        return image_data(size, split, location, SIDE[size], labelled=True, transform=labelled_pixels)

    def model(self, size: Size, data: Data, override: str | None = None) -> nn.Module:
        if not isinstance(data, ImageData):
            raise TypeError("the number of classes comes with the baseline's own data: pass what Vit.data() returned")
        if override is None:
            return VisionTransformer(img_size=SIDE[size], num_classes=data.classes, **_CONFIG[size])
        if Path(override).expanduser().is_dir():
            fitting = AutoModelForImageClassification._model_mapping
            config = models.configuration(override, fitting, "image classification")
            config.num_labels, config.image_size, config.num_channels = data.classes, SIDE[size], 3
            return AutoModelForImageClassification.from_config(config)
        return _timm(override, SIDE[size], data.classes)

    def classical(self, size: Size, data: Data) -> Mapping[str, Predictor]:
        if size in ("base", "large"):
            return {}
        training = labelled_pixels(dict(data.train.tensors), generator(0))
        return {"logistic regression": classical.LogisticRegression(training)}

    def forward(self, model: nn.Module, batch: Batch) -> Any:
        outputs = model(batch["pixel_values"])
        return Classification(outputs) if isinstance(outputs, Tensor) else outputs

    def losses(self, outputs: Any, batch: Batch) -> Tensor:
        return F.cross_entropy(outputs.logits.float(), batch["labels"], reduction="none")

    def metrics(self, outputs: Any, batch: Batch) -> dict[str, Tensor]:
        return {"accuracy": (outputs.logits.argmax(-1) == batch["labels"]).float()}


def _timm(name: str, side: int, classes: int) -> nn.Module:
    if not timm.is_model(name):
        near = " or ".join(get_close_matches(name, timm.list_models(), n=3))
        hint = f"did you mean {near}?" if near else "timm.list_models() in Python lists them"
        raise ValueError(f"--model {name}: neither a folder nor a timm model; {hint}")
    try:
        return timm.create_model(name, pretrained=False, num_classes=classes, img_size=side)
    except (TypeError, AssertionError, ValueError) as error:
        raise ValueError(f"--model {name}: timm cannot build it for {side}x{side} images: {error}") from error
