"""Saves pruned data sets as files, so that one scoring serves several trainings.

A file has the indices of the examples that were kept, what chose them, and the hash of the examples among which they
were chosen. It is JSON, so that reading one runs nothing; it is written whole or not at all; and it is refused where it
is damaged, was made of other examples, or was chosen otherwise.
"""

from __future__ import annotations

import hashlib
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import torch
from pydantic import AfterValidator, Field, StrictInt, model_validator
from torch import Tensor

from suite.loop.data import Data, Examples
from suite.record.files import Stored, parse_versioned, printable, read_plain, write_json

SCHEMA_VERSION = 1


def _ascending(indices: tuple[int, ...]) -> tuple[int, ...]:
    if any(after <= before for before, after in pairwise(indices)):
        raise ValueError("each example stands in it once, the first one first")
    return indices


class PrunedSet(Stored):
    """Holds the examples ``kept``: indices into the ``examples`` training examples with the hash ``examples_sha256``.

    ``technique`` chose them with ``settings``, in a run of ``seed``, among ``candidates`` of them.
    """

    schema_version: int = SCHEMA_VERSION
    technique: str
    settings: dict[str, str]
    data: str
    examples_sha256: str
    examples: StrictInt
    candidates: StrictInt
    seed: int
    kept: Annotated[tuple[StrictInt, ...], Field(min_length=1), AfterValidator(_ascending)]

    @model_validator(mode="after")
    def _within_the_data(self) -> PrunedSet:
        if self.kept[0] < 0 or self.kept[-1] >= self.examples:
            raise ValueError(f"an index lies outside of its {self.examples} examples")
        return self


def pruned_set(
    data: Data, indices: Tensor, technique: str, settings: dict[str, str], candidates: int, seed: int
) -> PrunedSet:
    """Builds what :func:`save` writes: ``indices`` are ascending int64 indices of ``data``'s training examples."""
    return PrunedSet(
        technique=technique,
        settings=settings,
        data=data.name,
        examples_sha256=examples_sha256(data.train),
        examples=len(data.train),
        candidates=candidates,
        seed=seed,
        kept=tuple(indices.tolist()),
    )


def save(pruned: PrunedSet, path: Path) -> None:
    """Writes the file, whole or not at all. Raises ValueError where it cannot be written."""
    try:
        write_json(pruned, path)
    except OSError as error:
        raise ValueError(f"saved={path}: it cannot be written: {error.strerror}; name another path") from error


def kept_by(path: Path, data: Data, technique: str, settings: dict[str, str], candidates: int) -> Tensor | None:
    """Reads the int64 indices that the file holds; None where there is no file yet.

    Raises ValueError for a file that cannot be read or is damaged, of other examples, or chosen otherwise.
    """
    try:
        pruned = parse_versioned(read_plain(path), PrunedSet, SCHEMA_VERSION)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        why = f"it cannot be read: {error.strerror}" if isinstance(error, OSError) else str(error)
        raise ValueError(f"saved={path}: {why}; name another path, and the examples are scored again") from None
    own = {"technique": technique, **settings, "candidates": str(candidates)}
    theirs = {"technique": pruned.technique, **pruned.settings, "candidates": str(pruned.candidates)}
    if pruned.examples_sha256 != (here := examples_sha256(data.train)):
        raise ValueError(
            f"saved={path}: it was chosen among other examples ({printable(pruned.data)}, sha256 "
            f"{printable(pruned.examples_sha256[:12])}) than these ({data.name}, {here[:12]}); name another path, and "
            "these are scored"
        )
    if own != theirs:
        differing = [
            f"{printable(name)}={printable(theirs.get(name, 'none'))} (here {own.get(name, 'none')})"
            for name in {**own, **theirs}
            if own.get(name) != theirs.get(name)
        ]
        raise ValueError(f"saved={path}: it was chosen with {', '.join(differing)}; name another path, or set the same")
    return torch.tensor(pruned.kept)


def examples_sha256(examples: Examples) -> str:
    """Computes a hash of all columns: names, types, shapes and bytes."""
    total = hashlib.sha256()
    for name, column in sorted(examples.tensors.items()):
        total.update(f"{name} {column.dtype} {tuple(column.shape)}\0".encode())
        total.update(column.contiguous().numpy().data)
    return total.hexdigest()
