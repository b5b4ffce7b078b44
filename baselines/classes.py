"""Reads the classes of a user's examples: which column has them, and what each of its values says.

Classes are integers, or texts of which there are few; a missing one is null, an empty cell or -1. What may be something
else, numbers between integers, a number for each row, is refused with its row: another task would be trained without a
word.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from baselines.plain_files import INTEGER

NAMES = ("label", "labels", "fine_label", "class", "target")
AS_TEXT = NAMES[:-1]  # a target that is text is what a model is to write
UNKNOWN = -1


class Classes(NamedTuple):
    """Holds int64 [examples] of each split, UNKNOWN where an example has none, and how many there are."""

    labels: dict[str, NDArray[np.int64]]
    number: int


def column(split: Any, any_name: bool = False) -> str | None:
    """Finds the column of classes: one that is declared as such, or one with a usual name that holds integers or,
    beside texts, anything else; with ``any_name`` an only one of integers, too. None where there is none."""
    import datasets

    kinds = {name: str(getattr(feature, "dtype", "")) for name, feature in split.features.items()}
    declared = [name for name, feature in split.features.items() if isinstance(feature, datasets.ClassLabel)]
    integers = [name for name in NAMES if kinds.get(name, "").startswith(("int", "uint", "bool"))]
    others = [name for name in AS_TEXT if kinds.get(name, "").startswith(("string", "large_string", "float", "double"))]
    found = [*declared, *integers, *(others if len(kinds) > 1 else [])]
    if not found and any_name:
        unusual = [name for name, kind in kinds.items() if kind.startswith(("int", "uint", "bool"))]
        found = unusual if len(unusual) == 1 else []
    return found[0] if found else None


def read(location: str, splits: Mapping[str, Any], label: str) -> Classes:
    """Reads the classes that a column names. Raises ValueError with the row for what is none."""
    feature = splits["train"].features[label]
    values = {name: list(split[label]) for name, split in splits.items() if label in split.features}
    declared = getattr(feature, "num_classes", None)
    if declared:
        labels = {name: [UNKNOWN if each is None else int(each) for each in split] for name, split in values.items()}
        return Classes({name: np.asarray(each, dtype=np.int64) for name, each in labels.items()}, int(declared))
    plain = {name: [_plain(each) for each in split] for name, split in values.items()}
    for name, split in plain.items():
        for row, each in enumerate(split, 1):
            _check(location, f"row {row} of {name}", label, each, alone=not isinstance(each, str))
        if name == "train" and UNKNOWN in split and any(isinstance(each, int) and each >= 0 for each in split):
            raise ValueError(
                f"{location}: row {split.index(UNKNOWN) + 1} of {name} has {label} -1 beside others: count classes from"
                " 0, and leave the cell empty where one is unknown"
            )
    known = {each for split in plain.values() for each in split if each is not None and each != UNKNOWN}
    if len({type(each) for each in known}) > 1:
        numbered = next(each for each in known if isinstance(each, int))
        raise ValueError(f"{location}: column {label!r} holds both texts and numbers ({numbered}): name classes alike")
    examples = sum(each is not None and each != UNKNOWN for split in plain.values() for each in split)
    if len(known) > max(2, examples / 2):
        raise ValueError(
            f"{location}: column {label!r} has {len(known)} different values in {examples} rows, so that it numbers or "
            "describes them: name the column of classes 'label', and this one otherwise"
        )
    place: Any = {each: at for at, each in enumerate(sorted(known))}
    labels = {name: [place.get(each, UNKNOWN) for each in split] for name, split in plain.items()}
    return Classes({name: np.asarray(each, dtype=np.int64) for name, each in labels.items()}, len(place))


def _plain(value: Any) -> int | float | str | None:
    """Returns an integer or a text; None where there is nothing; a number as it stands where it is no integer."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, str):
        text = value.strip()
        return int(text) if INTEGER.fullmatch(text) else text or None
    return int(value) if float(value).is_integer() else float(value)


def _check(location: str, place: str, label: str, value: Any, alone: bool) -> None:
    if isinstance(value, float):
        raise ValueError(f"{location}: {place} has {label} {value:g}, which is no class: give integers or names")
    if alone and value is not None and value < UNKNOWN:
        raise ValueError(f"{location}: {place} has {label} {value}: count classes from 0")
