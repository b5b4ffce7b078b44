"""Reads images as uint8 arrays: scikit-learn's handwritten digits (Alpaydin & Kaynak, 1998), or a user's pictures.

The CPU sizes take the digits as they are, 8x8 and grey: sixteen patches of 2x2 pixels, which a small Transformer learns
to read in seconds. Larger pictures would be the same ones, enlarged.
"""

import itertools
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from baselines import cache, source
from suite.loop.data import Data, Examples, Transform
from suite.record.job import Size

DIGITS = 10
# Of each digit. At the CPU sizes a quarter is for testing: one picture is 0.2 points of accuracy.
TEST_PER_DIGIT: dict[Size, int] = {"pico": 1, "nano": 45, "micro": 45, "mini": 45, "base": 10, "large": 10}
VALIDATION_PER_DIGIT: dict[Size, int] = {"pico": 1, "nano": 15, "micro": 15, "mini": 15, "base": 5, "large": 5}
# Times that a digit is shown to a model that is evaluated, with other noise or another mask each time: a model's
# quality, not the draw's luck.
DRAWS: dict[Size, int] = {"pico": 1, "nano": 8, "micro": 8, "mini": 8, "base": 1, "large": 1}
_DIGITS_OF = {"pretrain": range(10), "source": range(5), "adapt": range(5, 10)}
_TRAIN_LIMIT: dict[Size, int] = {
    "pico": 1000,
    "nano": 20_000,
    "micro": 20_000,
    "mini": 20_000,
    "base": 100_000,
    "large": 100_000,
}
_TEST_LIMIT: dict[Size, int] = {"pico": 10, "nano": 500, "micro": 500, "mini": 500, "base": 1000, "large": 1000}
_VALIDATION_LIMIT: dict[Size, int] = {"pico": 10, "nano": 150, "micro": 150, "mini": 150, "base": 500, "large": 500}


class PictureShape(NamedTuple):
    """Describes square pictures [channels, side, side], cut into square patches of ``patch`` pixels a side."""

    side: int
    channels: int
    patch: int

    @property
    def patches(self) -> int:
        return (self.side // self.patch) ** 2


DIGIT = PictureShape(8, 1, 2)
USER = PictureShape(32, 3, 8)
FULL = PictureShape(224, 3, 16)
SHOWN_SIDE = 48


def picture_shape(size: Size, location: str | None) -> PictureShape:
    """Returns the shape of what a model of ``size`` sees of the embedded digits, or of the pictures at ``location``."""
    if size in ("base", "large"):
        return FULL
    return DIGIT if location is None else USER


@dataclass(frozen=True)
class ImageData(Data):
    """Holds data whose labels lie in [0, ``classes``), also where a split holds only some of the classes."""

    shape: PictureShape = DIGIT
    classes: int = DIGITS


def image_data(
    size: Size,
    split: Literal["pretrain", "source", "adapt"],
    location: str | None,
    labelled: bool,
    transform: Transform,
    test_transform: Transform | None = None,
) -> ImageData:
    """Reads ``pixels`` uint8 [N, 1 or 3, side, side] and ``labels`` int64 [N].

    ``source`` is always of digits. Where a checkpoint moves between them and a location, they have the location's
    shape, and the classes are the larger number of both, so that one model fits.
    """
    shape = picture_shape(size, location)
    own = _pictures(size, location, shape.side, labelled) if location is not None else None
    prepared = own if own is not None and split != "source" else _digits(size, shape.side, _DIGITS_OF[split])
    classes = max((own or prepared).facts["classes"], 0 if split == "pretrain" else DIGITS)
    columns = {name: prepared.array(name) for name in ("pixels", "labels")}
    ends = np.cumsum([0, *prepared.facts["parts"]]).tolist()
    train, validation, test = (
        {name: column[start:end] for name, column in columns.items()} for start, end in itertools.pairwise(ends)
    )
    if shape == DIGIT:
        validation, test = (
            {name: torch.cat([column] * DRAWS[size]) for name, column in part.items()} for part in (validation, test)
        )
    name, sha256 = prepared.facts["name"], prepared.sha256
    parts = Examples(train), Examples(validation), Examples(test)
    return ImageData(name, sha256, *parts, transform, test_transform, shape=shape, classes=classes)


def normalised(pixels: Tensor, channels: int) -> Tensor:
    """Converts uint8 [batch, 1 or ``channels``, side, side] to float32 [batch, ``channels``, side, side] in [-1, 1], as
    ViT takes them (arXiv 2010.11929)."""
    return (pixels.float() / 127.5 - 1).expand(-1, channels, -1, -1).contiguous()


def shifts(count: int, farthest: int, generator: torch.Generator) -> Tensor:
    """Draws by how many pixels down and right pictures are moved, int64 [count, 2]: half of them by up to ``farthest``
    along both axes, the others not at all."""
    moved = torch.rand(count, 1, generator=generator) < 0.5
    return moved * torch.randint(-farthest, farthest + 1, (count, 2), generator=generator)


def shifted(pixels: Tensor, shift: Tensor) -> Tensor:
    """Returns pictures [batch, channels, side, side] moved by ``shift`` [batch, 2]; what comes in is 0."""
    count, side = len(pixels), pixels.shape[-1]
    rows, columns = (torch.arange(side) - shift[:, axis, None] for axis in (0, 1))
    inside = ((rows >= 0) & (rows < side))[:, :, None] & ((columns >= 0) & (columns < side))[:, None, :]
    rows, columns = rows.clamp(0, side - 1)[:, :, None], columns.clamp(0, side - 1)[:, None, :]
    moved = pixels[torch.arange(count)[:, None, None], :, rows, columns]  # [count, side, side, channels]
    return (moved * inside[..., None]).permute(0, 3, 1, 2)


def mosaic(rows: Tensor) -> Tensor:
    """Puts pictures in [-1, 1], [rows, columns, channels, side, side], side by side to look at: uint8 [height, width],
    grey, in whole pixels of SHOWN_SIDE or more a picture."""
    grey = ((rows.float().cpu().mean(2) + 1) * 127.5).round().clamp(0, 255).to(torch.uint8)
    times = -(-SHOWN_SIDE // grey.shape[-1])
    large = F.pad(grey.repeat_interleave(times, 2).repeat_interleave(times, 3), (1, 1, 1, 1), value=255)
    return large.permute(0, 2, 1, 3).flatten(2, 3).flatten(0, 1)


def enlarged(model: nn.Module, shape: PictureShape) -> nn.Module:
    """Returns ``model``, which takes pictures of ``shape``, made to take smaller ones and grey ones too.

    A hook and no module around it: its blocks and the names of its parameters stay where they are.
    """
    model.register_forward_pre_hook(partial(_enlarge, shape))
    return model


def _enlarge(shape: PictureShape, module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    pixels, *others = inputs
    return F.interpolate(pixels, size=(shape.side, shape.side)).expand(-1, shape.channels, -1, -1), *others


def _digits(size: Size, side: int, digits: range) -> cache.Prepared:
    """Prepares the digits' 8x8 grey images at ``side``: a fixed random choice of each to test and to validate, the rest
    to train."""
    test, held_out = TEST_PER_DIGIT[size], TEST_PER_DIGIT[size] + VALIDATION_PER_DIGIT[size]

    def build(folder: Path) -> dict[str, Any]:
        from sklearn.datasets import load_digits

        images, labels = load_digits(return_X_y=True)
        order = np.random.Generator(np.random.PCG64(0)).permutation(len(labels))
        rows = [order[labels[order] == digit] for digit in digits]
        slices = (slice(held_out, None), slice(test, held_out), slice(test))
        parts = [np.sort(np.concatenate([row[part] for row in rows])) for part in slices]
        chosen = np.concatenate(parts)
        # Pillow resizes 8-bit images in fixed point: the same bytes, hence the same hash, on every machine.
        grey = (images[chosen].reshape(-1, DIGIT.side, DIGIT.side) * (255 / 16)).astype(np.uint8)
        if side != DIGIT.side:
            resized = (Image.fromarray(image).resize((side, side), Image.Resampling.BICUBIC) for image in grey)
            grey = np.stack([np.asarray(image) for image in resized])
        np.save(folder / "pixels.npy", grey[:, None])
        np.save(folder / "labels.npy", labels[chosen].astype(np.int64))
        name = "scikit-learn digits" + ("" if len(digits) == DIGITS else f" {digits[0]}-{digits[-1]}")
        return {"name": name, "parts": [len(part) for part in parts], "classes": DIGITS}

    which = {"digits": [*digits], "scikit-learn": version("scikit-learn"), "test": test, "held out": held_out}
    return cache.prepared({**which, "side": side}, build)


def _pictures(size: Size, location: str, side: int, labelled: bool) -> cache.Prepared:
    limits = {"train": _TRAIN_LIMIT[size], "validation": _VALIDATION_LIMIT[size], "test": _TEST_LIMIT[size]}

    def build(folder: Path) -> dict[str, Any]:
        pictures = source.pictures(location, side, limits, labelled)
        shape = (len(pictures.labels), 3, side, side)
        pixels = np.lib.format.open_memmap(folder / "pixels.npy", mode="w+", dtype=np.uint8, shape=shape)
        for row, image in enumerate(pictures.pixels):
            pixels[row] = image
        pixels.flush()
        np.save(folder / "labels.npy", pictures.labels)
        return {"name": pictures.name, "parts": pictures.parts, "classes": pictures.classes}

    which = {"images": source.identity(location), "labelled": labelled, "limits": limits}
    return cache.prepared({**which, "side": side}, build)
