"""Reads a user's own data: any Hugging Face data set, by hub id or as local files, read without running its code.

A location is a file or folder of Parquet, Arrow, JSON, CSV, text or images, a folder saved with ``save_to_disk``, or a
hub id ``owner/name[:configuration][@revision]``. Columns are found by type, then by usual name. A hub id is read once
and then answered from the cache: name a revision to read another state of it.
"""

import hashlib
import io
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from baselines import classes, plain_files
from baselines.cache import content_hash

# In a folder that holds several kinds, the first is the data: a README.txt or a metadata.json often lies beside it.
_KINDS: dict[str, frozenset[str]] = {
    "parquet": frozenset({".parquet"}),
    "arrow": frozenset({".arrow"}),
    "imagefolder": frozenset({".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}),
    "json": frozenset({".jsonl", ".json", ".ndjson"}),
    "csv": frozenset({".csv"}),
    "text": frozenset({".txt"}),
}
_SPLITS = {
    "test": {"test", "testing", "eval", "evaluation"},
    "validation": {"validation", "valid", "val", "dev"},
    "train": {"train", "training"},
}
_NAMES = {
    "text": plain_files.TEXTS[:7],
    "image": ("image", "img", "pixel_values", "picture"),
}
_HUB_ID = re.compile(r"(?P<id>[\w-][\w.-]*(/[\w.-]+)?)(:(?P<name>[\w.-]+))?(@(?P<revision>[\w./-]+))?")
_SCRIPT = "data sets that are scripts are refused, since reading one would run its code"
HELD_OUT = 0.1  # of the examples, for testing, where the data has no split of its own


@dataclass(frozen=True)
class Texts:
    """Holds documents to train, to validate and to test with; ``name`` says how many of the location's were taken."""

    name: str
    train: list[str]
    validation: list[str]
    test: list[str]


@dataclass(frozen=True)
class Pictures:
    """Holds RGB images and class labels: training examples, then validation, then test; ``parts`` are their numbers.

    ``pixels`` yields uint8 [3, side, side] per example.
    """

    name: str
    parts: list[int]
    labels: NDArray[np.int64]  # [examples], -1 where the data has no labels
    classes: int
    pixels: Iterator[NDArray[np.uint8]]


def identity(location: str) -> str:
    """Returns what a location's content is keyed by: the hash of its files, or the hub id. Raises FileNotFoundError."""
    kind, files = _files(location)
    return content_hash(files) if kind != "hub" else location


def texts(location: str, limit_bytes: int) -> Texts:
    """Reads the non-empty strings of the text column, the first ``limit_bytes`` of them in each split. What the data
    has no split of is a share of its training examples, chosen by their content.

    Raises ValueError where there is no text column or too few texts, FileNotFoundError where there is nothing.
    """
    with tempfile.TemporaryDirectory() as folder:
        splits = _load(location, folder)
        column = _column(location, splits["train"], "text")
        train, total = _first(splits["train"][column], limit_bytes)
        taken = len(train)
        own = {part: _first(splits[part][column], limit_bytes)[0] for part in ("test", "validation") if part in splits}
    parts: dict[str, list[str]] = {}
    for part in ("test", "validation"):
        parts[part] = own.get(part, [])
        if not parts[part]:
            held_out = _held_out(location, [text.encode() for text in train])
            parts[part] = [text for text, held in zip(train, held_out, strict=True) if held]
            train = [text for text, held in zip(train, held_out, strict=True) if not held]
    if not train:
        raise ValueError(f"{location}: column {column!r} has no text in it")
    return Texts(_name(location, taken, total), train, **parts)


def pictures(location: str, side: int, limits: Mapping[str, int], labelled: bool) -> Pictures:
    """Reads images cropped to the square and resized to ``side``, with labels where ``labelled``; at most ``limits``
    examples of ``train``, ``validation`` and ``test``, spread evenly over the data (which is often sorted by class).

    What the data has no split of is a share of its training examples, chosen by their content.

    Raises ValueError where there is no image (or label) column, FileNotFoundError where there is nothing.
    """
    folder = tempfile.TemporaryDirectory()  # its files are read until the last pixel; removed when collected
    splits = _load(location, folder.name)
    column = _column(location, splits["train"], "image")
    known = classes.read(location, splits, _label(location, splits["train"])) if labelled else None
    given = {name: np.full(len(split), classes.UNKNOWN) for name, split in splits.items()}
    given |= known.labels if known else {}
    indices = {name: np.flatnonzero(each >= 0) if known else np.arange(len(each)) for name, each in given.items()}
    chosen = {"train": ("train", _spread(indices["train"], limits["train"]))}
    name = _name(location, len(chosen["train"][1]), len(indices["train"]))
    for part in ("test", "validation"):
        if len(indices.get(part, ())):
            chosen[part] = part, _spread(indices[part], limits[part])
        else:
            rows = chosen["train"][1]
            held = _held_out(location, [_raw(value) for value in _undecoded(splits["train"].select(rows), column)])
            chosen[part] = "train", rows[_spread(np.flatnonzero(held), limits[part])]
            chosen["train"] = "train", rows[~held]
    three = [chosen[part] for part in ("train", "validation", "test")]
    ordered = [splits[split].select(rows) for split, rows in three]
    labels = np.concatenate([given[split][rows] for split, rows in three])

    def pixels() -> Iterator[NDArray[np.uint8]]:
        with folder:
            for part in ordered:
                for row, value in enumerate(_undecoded(part, column)):
                    try:
                        yield _square(value, side)
                    except (OSError, ValueError, Image.DecompressionBombError) as error:
                        raise ValueError(f"{location}: cannot decode the image of example {row}: {error}") from error

    count = known.number if known else 1
    return Pictures(name, [len(part) for part in ordered], labels.astype(np.int64), count, pixels())


def _files(location: str) -> tuple[str, dict[str, Path]]:
    """Finds the kind of a location ("hub" where it is none of this machine) and its data files by relative name."""
    path = Path(location).expanduser()
    if path.suffix == ".py":
        raise ValueError(f"{location}: {_SCRIPT}")
    if path.is_file():
        for kind, suffixes in _KINDS.items():
            if path.suffix.lower() in suffixes:
                return kind, {path.name: path}
        known = " ".join(sorted(suffix for suffixes in _KINDS.values() for suffix in suffixes))
        raise ValueError(f"{location}: cannot read a {path.suffix or 'suffix-less'} file; give one of {known}")
    if path.is_dir():
        by_name = {file.relative_to(path): file for file in sorted(path.rglob("*")) if file.is_file()}
        files = {str(name): file for name, file in by_name.items() if not any(part[0] == "." for part in name.parts)}
        if "dataset_dict.json" in files or "state.json" in files:
            return "saved", files
        for kind, suffixes in _KINDS.items():
            data = {name: file for name, file in files.items() if file.suffix.lower() in suffixes}
            if data:
                return kind, data
        if any(file.suffix == ".py" for file in files.values()):
            raise ValueError(f"{location}: {_SCRIPT}")
        raise FileNotFoundError(f"{location}: no Parquet, Arrow, JSON, CSV, text or image file in this folder")
    if _HUB_ID.fullmatch(location) and path.suffix.lower() not in frozenset().union(*_KINDS.values()):
        return "hub", {}
    raise FileNotFoundError(
        f"{location}: no such file or folder, and not a hub id (owner/name[:configuration][@revision])"
    )


def _split_of(name: str) -> str:
    """Returns the split that a relative file name (its first folder or its stem) or a split's own name says; else
    train."""
    path = Path(name.lower())
    words = {*re.split(r"[^a-z]+", path.parts[0]), *re.split(r"[^a-z]+", path.stem)}
    return next((split for split, known in _SPLITS.items() if words & known), "train")


def _load(location: str, folder: str) -> dict[str, Any]:
    """Reads the location's ``train`` split and, where it has them, ``test`` and ``validation``; an only one is for
    tests."""
    kind, files = _files(location)
    try:
        import datasets
    except ImportError as error:
        raise ImportError("reading a data set needs the datasets package: pip install 'leantrain[data]'") from error
    try:
        if kind == "hub":
            match = _HUB_ID.fullmatch(location)
            assert match
            loaded = datasets.load_dataset(match["id"], match["name"], revision=match["revision"])
        elif kind == "saved":
            loaded = datasets.load_from_disk(str(Path(location).expanduser()))
        else:
            if not any(file.stat().st_size for file in files.values()):
                raise ValueError(f"{location}: the data is empty")
            by_split: dict[str, list[Path]] = {}
            for name, file in files.items():
                by_split.setdefault(_split_of(name) if len(files) > 1 else "train", []).append(file.resolve())
            loaded = plain_files.loaded(location, kind, by_split, folder)
    except Exception as error:  # the library raises many kinds; what the user needs is the location and the reason
        if isinstance(error, ValueError) and str(error).startswith(f"{location}: "):
            raise
        if "script" in str(error):
            reason = _SCRIPT
        else:
            reason = next(iter(str(error.__cause__ or error).splitlines()), type(error).__name__)
        hint = " (and no such file or folder here)" if kind == "hub" else ""
        raise ValueError(f"{location}: cannot read this as {kind} data{hint}: {reason}") from error
    splits: dict[str, Any] = {}
    for name, split in loaded.items() if isinstance(loaded, dict) else [("train", loaded)]:
        if len(split):
            splits.setdefault(_split_of(name), split)
    if not splits:
        raise ValueError(f"{location}: the data is empty")
    if "train" not in splits:
        splits["train"] = splits.pop("validation", None) or splits.pop("test")
    if "test" not in splits and "validation" in splits:
        splits["test"] = splits.pop("validation")
    return splits


def _column(location: str, split: Any, wanted: str) -> str:
    """Finds the column of the wanted type, by usual name where there are several. Raises ValueError."""
    label = classes.column(split)
    fitting = [name for name, feature in split.features.items() if _type(feature) == wanted]
    fitting = [name for name in fitting if name != label] or fitting
    for name in _NAMES[wanted]:
        if name in fitting:
            return name
    if not fitting:
        columns = ", ".join(f"{name} ({_type(feature) or 'other'})" for name, feature in split.features.items())
        what = {"text": "text (string)", "image": "image"}[wanted]
        raise ValueError(f"{location}: no {what} column among {columns}")
    return fitting[0]


def _type(feature: Any) -> str | None:
    """Returns text, image, label or None, for a ``datasets`` feature."""
    import datasets

    if isinstance(feature, datasets.Image | datasets.Array2D | datasets.Array3D):
        return "image"
    if isinstance(feature, dict):
        return "image" if {"bytes", "path"} == set(feature) else None
    if isinstance(feature, datasets.ClassLabel):
        return "label"
    depth = 0
    while isinstance(feature, datasets.List):
        feature, depth = feature.feature, depth + 1
    dtype = getattr(feature, "dtype", "")
    if depth:
        return "image" if depth in (2, 3) and dtype.startswith(("int", "uint", "float")) else None
    if dtype in ("string", "large_string"):
        return "text"
    return "label" if dtype.startswith(("int", "uint")) else None


def _first(values: Iterable[str | None], limit_bytes: int) -> tuple[list[str], int]:
    """Takes the non-empty texts until ``limit_bytes`` (UTF-8) are taken, and counts how many non-empty ones there
    are."""
    taken: list[str] = []
    size, total = 0, 0
    for value in values:
        if value and value.strip():
            total += 1
            if size < limit_bytes:
                taken.append(value)
                size += len(value.encode())
    return taken, total


def _label(location: str, split: Any) -> str:
    """Finds the column of classes. Raises ValueError where there is none, or are several."""
    if (label := classes.column(split, any_name=True)) is not None:
        return label
    columns = ", ".join(f"{name} ({_type(feature) or 'other'})" for name, feature in split.features.items())
    several = sum(_type(feature) == "label" for feature in split.features.values()) > 1
    if several:
        raise ValueError(f"{location}: more than one label (integer) column among {columns}; rename one to 'label'")
    raise ValueError(f"{location}: no label (integer) column among {columns}")


def _spread(rows: NDArray[np.int64], limit: int) -> NDArray[np.int64]:
    """Chooses at most ``limit`` of the rows, evenly spaced."""
    return rows if len(rows) <= limit else rows[np.linspace(0, len(rows) - 1, limit).astype(np.int64)]


def _held_out(location: str, contents: Sequence[bytes]) -> NDArray[np.bool_]:
    """Returns True for the HELD_OUT share of examples with the lowest content hashes: the same ones in whatever
    order."""
    if len(contents) < 2:
        raise ValueError(f"{location}: {len(contents)} usable example(s); need at least 2, to train on and to test on")
    order = np.argsort([hashlib.sha256(content).hexdigest() for content in contents], kind="stable")
    held = np.zeros(len(contents), dtype=np.bool_)
    held[order[: max(1, round(HELD_OUT * len(contents)))]] = True
    return held


def _undecoded(split: Any, column: str) -> Iterable[Any]:
    import datasets

    feature = split.features[column]
    if isinstance(feature, datasets.Image):
        split = split.cast_column(column, datasets.Image(decode=False))
    return (row[column] for row in split.select_columns([column]))


def _raw(value: Any) -> bytes:
    if isinstance(value, Mapping):
        return value["bytes"] or Path(value["path"]).read_bytes()
    return np.asarray(value).tobytes()


def _square(value: Any, side: int) -> NDArray[np.uint8]:
    """Returns one image as uint8 [3, side, side]: an encoded file's bytes, or an array [H, W], [H, W, C] or [C, H,
    W]."""
    if isinstance(value, Mapping):
        image = ImageOps.exif_transpose(Image.open(io.BytesIO(_raw(value))))
    else:
        array = np.asarray(value)
        if array.dtype.kind == "f":
            array = array * (255 if array.max(initial=0) <= 1 else 1)
        array = array.clip(0, 255).astype(np.uint8)
        if array.ndim == 3 and array.shape[0] in (1, 3) and array.shape[2] not in (1, 3):
            array = array.transpose(1, 2, 0)
        image = Image.fromarray(array.squeeze(2) if array.ndim == 3 and array.shape[2] == 1 else array)
    fitted = ImageOps.fit(image.convert("RGB"), (side, side), method=Image.Resampling.BICUBIC)
    return np.asarray(fitted).transpose(2, 0, 1)


def _name(location: str, taken: int, total: int) -> str:
    path = Path(location).expanduser()
    name = path.name if path.exists() else location
    return name if taken == total else f"{name} ({taken} of {total} training examples)"
