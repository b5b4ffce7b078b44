"""Images as uint8 arrays of the model's size: scikit-learn's handwritten digits (Alpaydin & Kaynak, 1998), upsampled.

There is no augmentation: a transform serves training and test examples alike, so that both are seen the same way.
"""

from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image
from torch import Tensor

from baselines import cache, source
from suite.contract.data import Data, Examples, Transform
from suite.record.job import Size

DIGITS = 10
TEST_PER_DIGIT: dict[Size, int] = {"pico": 1, "nano": 10, "micro": 10, "base": 10, "large": 10}
_DIGITS_OF = {"pretrain": range(10), "source": range(5), "adapt": range(5, 10)}
_TRAIN_LIMIT: dict[Size, int] = {"pico": 1000, "nano": 20_000, "micro": 20_000, "base": 100_000, "large": 100_000}
_TEST_LIMIT: dict[Size, int] = {"pico": 10, "nano": 200, "micro": 200, "base": 1000, "large": 1000}


@dataclass(frozen=True)
class ImageData(Data):
    """Data whose labels lie in [0, ``classes``), also where a split holds only some of the classes."""

    classes: int = DIGITS


def image_data(
    size: Size,
    split: Literal["pretrain", "source", "adapt"],
    location: str | None,
    side: int,
    labelled: bool,
    transform: Transform,
) -> ImageData:
    """``pixels`` uint8 [N, 1 or 3, side, side] and ``labels`` int64 [N].

    ``source`` is always of digits. Where a checkpoint moves between them and a location, the classes are the larger
    number of both, so that one head fits.
    """
    own = _pictures(size, location, side, labelled) if location is not None else None
    prepared = own if own is not None and split != "source" else _digits(side, _DIGITS_OF[split], TEST_PER_DIGIT[size])
    classes = max((own or prepared).facts["classes"], 0 if split == "pretrain" else DIGITS)
    count, columns = prepared.facts["train"], {name: prepared.array(name) for name in ("pixels", "labels")}
    train = Examples({name: column[:count] for name, column in columns.items()})
    test = Examples({name: column[count:] for name, column in columns.items()})
    return ImageData(prepared.facts["name"], prepared.sha256, train, test, test, transform, classes=classes)


def normalised(pixels: Tensor) -> Tensor:
    """uint8 [batch, 1 or 3, side, side] to float32 [batch, 3, side, side] in [-1, 1] (as ViT, arXiv 2010.11929)."""
    return (pixels.float() / 127.5 - 1).expand(-1, 3, -1, -1).contiguous()


def _digits(side: int, digits: range, test_per_digit: int) -> cache.Prepared:
    """The digits' 8x8 grey images, ``test_per_digit`` of each (a fixed random choice) to test, the rest to train."""

    def build(folder: Path) -> dict[str, Any]:
        from sklearn.datasets import load_digits

        images, labels = load_digits(return_X_y=True)
        order = np.random.Generator(np.random.PCG64(0)).permutation(len(labels))
        rows = [order[labels[order] == digit] for digit in digits]
        train = np.sort(np.concatenate([row[test_per_digit:] for row in rows]))
        chosen = np.concatenate([train, *(row[:test_per_digit] for row in rows)])
        # Pillow resizes 8-bit images in fixed point: the same bytes, hence the same hash, on every machine.
        grey = (images[chosen].reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
        resized = [np.asarray(Image.fromarray(image).resize((side, side), Image.Resampling.BICUBIC)) for image in grey]
        np.save(folder / "pixels.npy", np.stack(resized)[:, None])
        np.save(folder / "labels.npy", labels[chosen].astype(np.int64))
        name = "scikit-learn digits" + ("" if len(digits) == DIGITS else f" {digits[0]}-{digits[-1]}")
        return {"name": name, "train": len(train), "classes": DIGITS}

    which = {"digits": [*digits], "scikit-learn": version("scikit-learn"), "test": test_per_digit}
    return cache.prepared({**which, "side": side}, build)


def _pictures(size: Size, location: str, side: int, labelled: bool) -> cache.Prepared:
    limit, test_limit = _TRAIN_LIMIT[size], _TEST_LIMIT[size]

    def build(folder: Path) -> dict[str, Any]:
        pictures = source.pictures(location, side, limit, test_limit, labelled)
        shape = (len(pictures.labels), 3, side, side)
        pixels = np.lib.format.open_memmap(folder / "pixels.npy", mode="w+", dtype=np.uint8, shape=shape)
        for row, image in enumerate(pictures.pixels):
            pixels[row] = image
        pixels.flush()
        np.save(folder / "labels.npy", pictures.labels)
        return {"name": pictures.name, "train": pictures.train, "classes": pictures.classes}

    which = {"images": source.identity(location), "labelled": labelled, "limits": [limit, test_limit]}
    return cache.prepared({**which, "side": side}, build)
