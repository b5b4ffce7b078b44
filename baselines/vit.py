"""Has ViT (Dosovitskiy et al., arXiv 2010.11929), timm's implementation, trained as DeiT is (arXiv 2012.12877, table
9).

The CPU sizes read digits that are moved and noisy, in training and test: clean ones leave 2 % to learn, and where a run
ends is luck; unmoved ones are logistic regression's. How well a budget can be read off a run is the deviation of ln
loss over seeds by the slope of ln loss in ln budget, about -0.6 here. At nano and 300 steps the deviation is 0.05 where
positions start at 0.2 (loss 0.8), 0.025 where they start as large as what pictures embed to (0.56), and 0.020 where,
beside that, the rate rises for 0.4 of the steps (0.54; 8 to 12 seeds each), and 0.015 where branches start at a tenth
of their width's scale. At pico they start at a quarter: in eight steps a tenth grows to nothing that magnitude pruning
would keep. A rate of 0.0039 ends where 0.0029 does.
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

from baselines import classical, images, models, other_inputs
from baselines.images import (
    DIGIT,
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
    shifts,
)
from baselines.recipes import named
from suite.loop.baseline import Baseline, Family, Predictor, Sample
from suite.loop.data import Batch, Data, Examples, generator
from suite.loop.recipe import Recipe
from suite.model.anatomy import anatomy, weight_matrix
from suite.record.job import RecipeName, Size, Task
from suite.record.text import reason

_CONFIG: dict[Size, dict[str, Any]] = {
    "pico": {"embed_dim": 32, "depth": 2, "num_heads": 2},
    "nano": {"embed_dim": 96, "depth": 4, "num_heads": 4},
    "micro": {"embed_dim": 144, "depth": 4, "num_heads": 4},
    "mini": {"embed_dim": 216, "depth": 4, "num_heads": 4},
    "base": {"embed_dim": 768, "depth": 12, "num_heads": 12},
    "large": {"embed_dim": 1024, "depth": 24, "num_heads": 16},
}
_DEIT: dict[str, Any] = {"weight_decay": 0.05}  # learning rate 5e-4 per 512 images, which suits a far longer run
# beta2 as where MAE's authors train a ViT from scratch (arXiv 2111.06377, table 11)
_SMALL: dict[str, Any] = {"schedule": "linear", "warmup_fraction": 0.4, "beta2": 0.95, **_DEIT}
_PRETRAIN: dict[Size, Recipe] = {
    "pico": Recipe(steps=8, batch_size=4, learning_rate=2e-3, **_SMALL),
    "nano": Recipe(steps=300, batch_size=64, learning_rate=2.9e-3, **_SMALL),
    "micro": Recipe(steps=900, batch_size=64, learning_rate=2.1e-3, **_SMALL),
    "mini": Recipe(steps=2700, batch_size=64, learning_rate=1.3e-3, **_SMALL),
    "base": Recipe(steps=600, batch_size=64, learning_rate=1e-4, **_DEIT),
    "large": Recipe(steps=600, batch_size=32, learning_rate=5e-5, **_DEIT),
}
NOISE = 0.5
"""Standard deviation of what is added to each pixel, in [-1, 1], of the digits at the CPU sizes."""
BRANCH_SCALE: dict[Size, float] = {"pico": 0.25, "nano": 0.1, "micro": 0.1, "mini": 0.1}
POSITION_SCALE = 50.0
HEAD_STD = 0.02
TEST_REPEATS: dict[Size, int] = {"pico": 1, "nano": 2, "micro": 2, "mini": 2}
"""Times that test digits, which come images.DRAWS times, are repeated: so few, moved and noisy, add to the scatter."""
VALIDATION, TEST = 1, 2  # seeds of how they are moved
SAMPLES = 10


class Classification(NamedTuple):
    """Holds what timm returns bare, as an object with ``logits`` [batch, classes]."""

    logits: Tensor


@dataclass(frozen=True)
class LabelledPixels:
    """Makes ``pixel_values`` float32 [batch, channels, side, side] and ``labels`` int64 [batch].

    Half of the pictures are moved by up to ``farthest`` pixels, or each by its ``shift`` where it comes with one;
    Gaussian noise of standard deviation ``noise`` is added to all pixels.
    """

    channels: int
    farthest: int = 0
    noise: float = 0.0

    def __call__(self, batch: Batch, generator: torch.Generator) -> Batch:
        pixels, shift = batch["pixels"], batch.get("shift")
        if self.farthest:
            shift = shifts(len(pixels), self.farthest, generator)
        values = normalised(pixels if shift is None else shifted(pixels, shift), self.channels)
        if self.noise:
            # In place, for the layout of moved pictures, channels last: so the patches are embedded in order of memory.
            values += self.noise * torch.randn(values.shape, generator=generator)
        return {"pixel_values": values, "labels": batch["labels"]}


@torch.no_grad()
def small_vit(shape: PictureShape, classes: int, branch_scale: float, **config: Any) -> VisionTransformer:
    """Builds a ViT of the CPU sizes, initialised for a width of 32 to 128, where the papers' scales (0.02) are those of
    768.

    Weights follow the layers' widths (``jax``: Xavier and LeCun, as in ViT's own code). Residual branches start small
    (as GPT-2's do), so that the patches are heard through all blocks from the first step on. Positions start at 1, as
    large as what patches embed to: at 0.02 or 0.2 the patches drown them. The head starts at timm's usual 0.02, not at
    0, where no gradient would pass it and the first step would say nothing of the blocks. The average of all patches is
    classified, as nothing has yet taught a class token where to look.
    """
    model = VisionTransformer(
        img_size=shape.side,
        patch_size=shape.patch,
        in_chans=shape.channels,
        num_classes=classes,
        class_token=False,
        global_pool="avg",
        weight_init="jax",
        **config,
    )
    for block in anatomy(model).blocks:
        for branch in block.branches:
            weight_matrix(branch.module).mul_(branch_scale)
    assert isinstance(model.head, nn.Linear) and model.pos_embed is not None
    nn.init.trunc_normal_(model.head.weight, std=HEAD_STD)
    model.pos_embed.mul_(POSITION_SCALE)
    return model


class Vit(Baseline):
    id: ClassVar[str] = "vit"
    version: ClassVar[int] = 4
    modality: ClassVar[Literal["text", "image"]] = "image"
    hub_task: ClassVar[str] = "image-classification"
    quality: ClassVar[str] = "classification cross-entropy (nats)"
    judged_by: ClassVar[Literal["loss", "accuracy"]] = "accuracy"

    def recipe(self, size: Size, name: RecipeName, task: Task) -> Recipe:
        return named(_PRETRAIN, size, name, task, adapting=0.25)

    def data(self, size: Size, split: Literal["pretrain", "source", "adapt"], location: str | None = None) -> Data:
        shape = picture_shape(size, location)
        # A thousand pictures are soon known by heart: without this, twice the steps end in a higher loss, and where
        # longer training is not better training, no time to a quality can be read off.
        farthest = 0 if shape == FULL else shape.side // 8
        # Clean digits are soon all told apart: between 0.97 and 0.98 of them a run is luck, and no budget can be read
        # off. In noise there is something left to learn; a user's pictures stay as they are.
        noise = NOISE if shape == DIGIT else 0.0
        training, still = LabelledPixels(shape.channels, farthest, noise), LabelledPixels(shape.channels, 0, noise)
        data = image_data(size, split, location, labelled=True, transform=training, test_transform=still)
        if shape != DIGIT:
            return data
        # Held-out digits are moved too: one that reads pixels, as logistic regression does, no longer tells them apart.
        validation = moved(data.validation, farthest, VALIDATION)
        return replace(data, validation=validation, test=moved(data.test, farthest, TEST, TEST_REPEATS[size]))

    def model(self, size: Size, data: Data, override: str | None = None) -> nn.Module:
        if not isinstance(data, ImageData):
            raise TypeError("the number of classes comes with the baseline's own data: pass what Vit.data() returned")
        if override is None and data.shape == FULL:
            return VisionTransformer(
                img_size=FULL.side, patch_size=FULL.patch, num_classes=data.classes, **_CONFIG[size]
            )
        if override is None:
            return small_vit(data.shape, data.classes, BRANCH_SCALE[size], **_CONFIG[size])
        shape = FULL if data.shape == FULL else USER  # the digits' own 8x8 is too small for the usual patches
        side = shape.side
        if not Path(override).expanduser().is_dir():
            model, side = _timm(override, side, data.classes)
        elif "architecture" in (content := models.contents(override)):
            arguments = content.get("model_args", {})
            model, side = _timm(content["architecture"], side, data.classes, arguments, override)
        else:
            model = _hugging_face(override, shape, data.classes)
        shape = shape._replace(side=side)
        return model if shape == data.shape else enlarged(model, shape)

    def classical(self, size: Size, data: Data) -> Mapping[str, Predictor]:
        if not isinstance(data, ImageData) or data.shape == FULL:
            return {}
        see = data.test_transform or data.transform  # the same noise
        drawn = {name: torch.cat([column] * images.DRAWS[size]) for name, column in data.train.tensors.items()}
        training, validation = data.transform(drawn, generator(0)), see(dict(data.validation.tensors), generator(0))
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


def moved(part: Examples, farthest: int, seed: int, times: int = 1) -> Examples:
    """Returns held-out examples, ``times`` times, each with the ``shift`` (int64 [N, 2], in pixels) by which it is
    shown moved: half of them are, as in training. Their ``pixels`` stay."""
    tensors = {name: torch.cat([column] * times) for name, column in part.tensors.items()}
    return Examples({**tensors, "shift": shifts(len(part) * times, farthest, generator(seed))})


def _hugging_face(folder: str, shape: PictureShape, classes: int) -> nn.Module:
    """Builds the model of a configuration that classifies pictures, or may be put in the place of one that does."""
    pictures = AutoModelForImageClassification._model_mapping
    fitting = {*pictures.keys(), *other_inputs.SPEECH.keys(), *other_inputs.TOWERS.keys()}
    config: Any = models.configuration(folder, fitting, "image classification")
    if other_inputs.has_two_towers(config):
        return other_inputs.two_towers(config, folder, shape.side, classes)
    if type(config) in other_inputs.SPEECH:
        return other_inputs.speech(config, folder, classes)
    config.num_labels, config.image_size, config.num_channels = classes, shape.side, shape.channels
    return models.built(AutoModelForImageClassification, config, folder)


def _timm(
    name: str, side: int, classes: int, arguments: Mapping[str, Any] | None = None, folder: str | None = None
) -> tuple[nn.Module, int]:
    """Builds timm's model ``name``, with ``arguments`` as a config.json in timm's form has them, and returns the side
    of the pictures that it takes: ``side``, or where it takes none so large, what its own configuration names."""
    source = folder or name
    if not timm.is_model(name):
        near = " or ".join(get_close_matches(name, timm.list_models(), n=3))
        hint = f"did you mean {near}?" if near else "timm.list_models() in Python lists them"
        raise ValueError(f"--model {source}: neither a folder nor a timm model; {hint}")
    # a folder's arguments are of the architecture: nothing is loaded, and nothing is fetched
    fixed = {"pretrained": False, "checkpoint_path": None, "num_classes": classes}
    values = {**(arguments or {}), **fixed}
    known = timm.get_pretrained_cfg(name, allow_unregistered=True)
    own = known.input_size[-1] if known is not None else side
    try:
        return _taking(name, values, side), side
    except (*models.UNBUILT, RuntimeError) as error:
        first = error
    try:
        if own != side:
            return _taking(name, values, own), own
    except (*models.UNBUILT, RuntimeError):
        pass  # what is wrong at both sizes is said of the first
    raise ValueError(f"--model {source}: timm cannot build it for {side}x{side} images: {reason(first)}") from first


def _taking(name: str, values: Mapping[str, Any], side: int) -> nn.Module:
    """Builds a timm model that takes pictures of ``side``, and has taken one."""
    try:
        model = timm.create_model(name, **values, img_size=side)
    except TypeError as error:
        if "img_size" not in str(error):
            raise
        model = timm.create_model(name, **values)  # a model for pictures of any size takes none
    with torch.no_grad():
        model.eval()(torch.zeros(1, FULL.channels, side, side))
    return model.train()
