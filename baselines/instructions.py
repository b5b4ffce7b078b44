"""Reads instructions with answers, a row each, in Alpaca's schema and prompt (Taori et al., 2023).

An entry has ``instruction``, ``input`` ("" where there is none) and ``output``; a file is a JSON list of them, or has
one a line, and a table has a column for each. An entry that lacks a field is refused with its number: a model would
learn the word "None", or to say nothing.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from baselines import cache, plain_files, source
from baselines.labelled_text import LIMITS, splits_of
from baselines.tokens import Tokens
from suite.loop.data import Batch, Data, Examples

FIELDS = ("instruction", "input", "output")
IGNORED = -100
LOOKED_AT = 20  # entries, to tell what a file holds
_TASK = "Below is an instruction that describes a task"
_REQUEST = "Write a response that appropriately completes the request."


@dataclass(frozen=True)
class Entry:
    """Holds one entry, where ``place`` is where it stands: "entry 3", "line 3"."""

    place: str
    content: Any


def prompt(instruction: str, context: str = "") -> str:
    """Writes what stands before the answer."""
    if context:
        beginning = f"{_TASK}, paired with an input that provides further context. {_REQUEST}"
        return f"{beginning}\n\n### Instruction:\n{instruction}\n\n### Input:\n{context}\n\n### Response:\n"
    return f"{_TASK}. {_REQUEST}\n\n### Instruction:\n{instruction}\n\n### Response:\n"


def whole_rows(batch: Batch, generator: torch.Generator) -> Batch:
    """Makes ``input_ids`` int64 [batch, length], and ``labels``, the same but IGNORED where the row is padding."""
    tokens = batch["input_ids"].long()
    inside = torch.arange(tokens.shape[1]) < batch["lengths"].long()[:, None]
    return {"input_ids": tokens, "labels": tokens.where(inside, IGNORED)}


def is_instructions(location: str) -> bool:
    """Tells whether the data has instructions. Raises ValueError or OSError for data that cannot be read."""

    def look(folder: Path) -> dict[str, bool]:
        first = [entry.content for entries in _parts(location, LOOKED_AT).values() for entry in entries]
        return {"instructions": any(isinstance(example, Mapping) and FIELDS[0] in example for example in first)}

    parameters = {"instructions": source.identity(location), "code": _code()}
    return bool(cache.prepared(parameters, look).facts["instructions"])


def instruction_data(location: str, length: int, tokens: Tokens) -> Data:
    """Builds rows of at most ``length`` tokens: prompt, answer, and the end of text where there is room.

    Raises ValueError for an entry without a field, with its number.
    """

    def build(folder: Path) -> dict[str, str]:
        texts = {name: [_text(location, entry) for entry in part] for name, part in _parts(location).items()}
        for name, documents in _divided(location, texts).items():
            rows = [tokens.row(encoded, length, framed=False) for encoded in tokens.encode(documents)]
            np.save(folder / f"{name}_rows.npy", np.stack([row for row, _ in rows]))
            np.save(folder / f"{name}_lengths.npy", np.array([count for _, count in rows], dtype=np.int32))
        return {"name": f"{Path(location).name}, instructions{', letters only' if tokens.letters else ''}"}

    prepared = cache.prepared(
        {"instruction rows": source.identity(location), "length": length, "tokens": tokens.key, "code": _code()}, build
    )
    train, validation, test = (
        Examples({"input_ids": prepared.array(f"{part}_rows"), "lengths": prepared.array(f"{part}_lengths")})
        for part in ("train", "validation", "test")
    )
    return Data(prepared.facts["name"], prepared.sha256, train, validation, test, whole_rows)


def _parts(location: str, most: int | None = None) -> dict[str, list[Entry]]:
    """Reads the entries by split, the first ``most`` of each file: of JSON as it stands, of all else as its reader has
    it."""
    kind, files = source._files(location)
    if kind == "json":
        parts: dict[str, list[Entry]] = {}
        for name, file in files.items():
            split = source._split_of(name) if len(files) > 1 else "train"
            parts.setdefault(split, []).extend(_entries(location, file, len(files) > 1, most))
        return parts
    with tempfile.TemporaryDirectory() as scratch:
        return {
            name: [Entry(f"{name} entry {number}", row) for number, row in enumerate(_first(split, most), 1)]
            for name, split in splits_of(location, scratch).items()
        }


def _first(split: Any, most: int | None) -> Iterator[Any]:
    count = len(split) if most is None else min(most, len(split))
    if not set(FIELDS) & set(split.column_names):  # pictures are not decoded to see that they are no texts
        return iter(())
    return iter(split.select(range(count)))


def _entries(location: str, file: Path, several: bool, most: int | None) -> list[Entry]:
    prefix = f"{file.name}, " if several else ""
    text = plain_files.decoded(location, file)
    try:
        whole = json.loads(text)
        listed = whole if isinstance(whole, list) else [whole]
        return [Entry(f"{prefix}entry {number}", value) for number, value in enumerate(listed[:most], 1)]
    except (ValueError, RecursionError):
        pass
    entries = []
    for number, line in enumerate(plain_files.lines(text)[:most], 1):
        if line.strip():
            try:
                entries.append(Entry(f"{prefix}line {number}", json.loads(line)))
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{location}: {prefix}line {number} is no JSON: {error}") from None
    return entries


def _text(location: str, entry: Entry) -> str:
    """Writes prompt and answer. Raises ValueError where a field is missing or empty."""
    content = entry.content if isinstance(entry.content, Mapping) else {}
    for field in FIELDS:
        value = content.get(field)
        if not isinstance(value, str) or (field == FIELDS[0] and not value.strip()):
            what = "no" if value is None else "an empty" if value == "" else "no text in its"
            raise ValueError(
                f"{location}: {entry.place} has {what} field {field!r}; give every entry {', '.join(FIELDS)}, with "
                'input "" where there is none'
            )
    return prompt(content["instruction"], content["input"]) + content["output"]


def _divided(location: str, parts: dict[str, list[str]]) -> dict[str, list[str]]:
    """Returns training, validation and test texts; what is not there is held out of the training texts, by content."""
    if "train" not in parts:
        parts["train"] = parts.pop("validation" if "validation" in parts else "test")
    for name in ("test", "validation"):
        if not parts.get(name):
            held = source._held_out(location, [text.encode() for text in parts["train"]])
            held[np.flatnonzero(held)[LIMITS[name] :]] = False
            parts[name] = _where(parts["train"], held)
            parts["train"] = _where(parts["train"], ~held)
    return parts


def _where(texts: list[str], chosen: NDArray[np.bool_]) -> list[str]:
    return [text for text, wanted in zip(texts, chosen, strict=True) if wanted]


def _code() -> str:
    """Returns what decides the rows beside :mod:`baselines.cache`'s own list of files."""
    files = (Path(__file__), Path(__file__).with_name("tokens.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
