"""Finds what a masked language model's batches say of their masks: how many labels a row has, which token hides
another.

For ``mlm_sparse_head``, ``mlm_mask_later`` and ``mass``. A data set's transform makes ``input_ids`` and ``labels``
int64 [batch, length] of raw rows, the labels NO_LABEL where nothing is to be predicted. It states none of this, so some
rows are passed through it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import unset_fake_temporarily

from suite.loop.data import Batch, Data, Transform, generator
from suite.model.calls import lacks_values

NO_LABEL = -100  # what torch's cross-entropy ignores
ROWS = 64  # that are looked at
ANY = 9  # a token, where rows have shapes alone


class Masks(NamedTuple):
    """Counts the ``labels`` of a row of ``length`` tokens, where all have equally many, else None; ``token`` is shown
    in place of most of those with a label."""

    length: int
    labels: int | None
    token: int


def masks_of(data: Data) -> Masks:
    """Finds what the transform makes of the first examples, or of any tokens, where these have shapes alone.

    Raises ValueError where it makes no batches of a masked language model, or none with a label.
    """
    with unset_fake_temporarily():
        masked = data.transform(_rows(data.train.tensors), generator(0))
        shown, labels = masked.get("input_ids"), masked.get("labels")
        if shown is None or labels is None or shown.shape != labels.shape:
            raise ValueError("no labels of single tokens in a batch: this is for masked language models (-b bert)")
        labelled = labels != NO_LABEL
        if not labelled.any():
            raise ValueError(f"no token of a row of {labels.shape[1]} has a label: choose a larger share")
        counts = labelled.sum(1)
        even = bool((counts == counts[0]).all())
        return Masks(labels.shape[1], int(counts[0]) if even else None, int(shown[labelled].mode().values))


def _rows(examples: Mapping[str, Tensor]) -> Batch:
    return {
        name: torch.full((ROWS, *example.shape[1:]), ANY, dtype=example.dtype)
        if lacks_values(example)
        else example[:ROWS]
        for name, example in examples.items()
    }


def at_share(transform: Transform, share: float) -> Transform:
    """Returns the transform with another share of the tokens chosen. Raises ValueError where it cannot be told."""
    if not (is_dataclass(transform) and any(field.name == "share" for field in fields(transform))):
        raise ValueError("the data's masks state no share that could be another: give the transform a field share")
    return replace(transform, share=share)
