"""Reads texts with a class each, like the sentences of SST-2: a row and a label for each."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from baselines import cache, classes, source
from baselines.tokens import Tokens
from suite.loop.data import Batch, Data, Examples

LIMITS = {"train": 100_000, "validation": 1000, "test": 4000}  # examples that are taken of each part


@dataclass(frozen=True)
class LabelledText(Data):
    """Holds data whose labels lie in [0, ``classes``)."""

    classes: int = 2


def class_of_row(batch: Batch, generator: torch.Generator) -> Batch:
    """Makes ``input_ids`` and ``attention_mask`` int64 [batch, length], and ``labels`` int64 [batch, 1]."""
    tokens, lengths = batch["input_ids"].long(), batch["lengths"].long()
    mask = torch.arange(tokens.shape[1]) < lengths[:, None]
    return {"input_ids": tokens, "attention_mask": mask.long(), "labels": batch["labels"][:, None]}


def is_labelled(location: str) -> bool:
    """Tells whether the data has texts, each with a class. Raises ValueError or OSError for data that cannot be
    read."""

    def look(folder: Path) -> dict[str, bool]:
        with tempfile.TemporaryDirectory() as scratch:
            train = splits_of(location, scratch)["train"]
            label = classes.column(train)
            others = [feature for name, feature in train.features.items() if name != label]
            return {"labelled": label is not None and any(source._type(each) == "text" for each in others)}

    parameters = {"labelled": source.identity(location), "code": _code()}
    return bool(cache.prepared(parameters, look).facts["labelled"])


def labelled_text(location: str, length: int, tokens: Tokens) -> LabelledText:
    """Builds rows of ``length`` tokens. Examples without a label are left out, and parts that have none are shares of
    the training examples, chosen by their content.

    Raises ValueError where there are too few, or but one class.
    """

    def build(folder: Path) -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as scratch:
            splits = splits_of(location, scratch)
            column, label = source._column(location, splits["train"], "text"), classes.column(splits["train"])
            assert label is not None
            known = classes.read(location, splits, label)
            parts = {
                name: _examples(f"{location}: row {{}} of {name}", splits[name][column], labels, LIMITS[name])
                for name, labels in known.labels.items()
            }
        parts = _divided(location, {name: part for name, part in parts.items() if part[0]})
        if known.number < 2:
            raise ValueError(f"{location}: all of {label!r} is one class: there is nothing to tell apart")
        for name, (texts, labels) in parts.items():
            rows = [tokens.row(encoded, length, framed=True) for encoded in _encoded(tokens, texts)]
            np.save(folder / f"{name}_rows.npy", np.stack([row for row, _ in rows]))
            np.save(folder / f"{name}_lengths.npy", np.array([count for _, count in rows], dtype=np.int32))
            np.save(folder / f"{name}_labels.npy", labels)
        kind = "letters only" if tokens.letters else "labelled"
        return {"name": f"{Path(location).name}, {kind}, by class", "classes": known.number}

    prepared = cache.prepared(
        {
            "labelled text": source.identity(location),
            "length": length,
            "tokens": tokens.key,
            "limits": LIMITS,
            "code": _code(),
        },
        build,
    )
    train, validation, test = (
        Examples(
            {
                "input_ids": prepared.array(f"{part}_rows"),
                "lengths": prepared.array(f"{part}_lengths"),
                "labels": prepared.array(f"{part}_labels"),
            }
        )
        for part in ("train", "validation", "test")
    )
    facts = prepared.facts
    return LabelledText(facts["name"], prepared.sha256, train, validation, test, class_of_row, classes=facts["classes"])


def splits_of(location: str, scratch: str) -> dict[str, Any]:
    """Returns the data's splits by name, read without bars of progress among the command's own."""
    with suppress(ImportError):  # the reader says it better
        import datasets

        datasets.disable_progress_bars()
    return source._load(location, scratch)


Part = tuple[list[str], NDArray[np.int64]]


def _examples(place: str, texts: Sequence[str | None], labels: NDArray[np.int64], limit: int) -> Part:
    """Returns texts with their labels, spread over those that have one. Raises ValueError for a label without a
    text."""
    rows = source._spread(np.flatnonzero(labels >= 0), limit)
    taken = [texts[row] for row in rows.tolist()]
    for row, text in zip(rows.tolist(), taken, strict=True):
        if text is None or not text.strip():
            raise ValueError(f"{place.format(row + 1)} has a label and no text: give it one, or leave it out")
    return [text for text in taken if text is not None], labels[rows]


def _divided(location: str, parts: dict[str, Part]) -> dict[str, Part]:
    """Returns training, validation and test examples; what is not there is held out of the training examples."""
    if "train" not in parts:
        raise ValueError(f"{location}: no training example has a label")
    if "test" not in parts and "validation" in parts:  # GLUE keeps the labels of its tests to itself
        parts["test"] = parts.pop("validation")
    for name in ("test", "validation"):
        if name not in parts:
            texts, labels = parts["train"]
            held = source._held_out(location, [text.encode() for text in texts])
            held[np.flatnonzero(held)[LIMITS[name] :]] = False
            parts[name] = [text for text, out in zip(texts, held) if out], labels[held]
            parts["train"] = [text for text, out in zip(texts, held) if not out], labels[~held]
    return parts


def _encoded(tokens: Tokens, texts: Sequence[str]) -> list[NDArray[Any]]:
    return list(tokens.encode(texts))


def _code() -> str:
    """Returns what decides the rows beside :mod:`baselines.cache`'s own list of files."""
    files = (Path(__file__), Path(__file__).with_name("tokens.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
