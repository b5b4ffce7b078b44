"""Measures what DOTA's detector saves where it chooses blocks (:mod:`techniques.attention.shared.skipping`)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from suite.topics.studies.lab import Lab, StudyTable
from techniques.attention.dota.blocks import detected_blocks
from techniques.attention.dota.chip import TOKENS, modelled, over_gpu
from techniques.attention.dota.technique import Dota, ternary
from techniques.attention.shared.kept_pairs import largest_kept
from techniques.attention.shared.skipping import (
    WIDTH,
    Head,
    beside,
    draw,
    measured,
    skipping,
    traces,
    without_model,
)
from techniques.shared.chips.headlines import headlines
from techniques.shared.chips.numbers import drift, numbers, quoted

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def study(lab: Lab) -> list[StudyTable]:
    """Returns the tables ``headlines``, ``numbers``, ``skipping``, ``break_even`` and ``masks``, whose pairs a perfect
    detector chose."""
    folder, tables, seen = (
        Path(__file__).parent,
        skipping(lab, "dota", predict, keep, chooses=True),
        traces(lab, "dota", TOKENS),
    )
    here = measured(tables)
    values = {
        "speed": beside(over_gpu(seen), here, drift(TOKENS)),
        "speed_against_accelerators": without_model(here, "which hardware the paper compared with is not known here"),
    }
    return [headlines(folder, values), numbers([*quoted(folder), *modelled(seen), *here]), *tables]


@cache
def detector() -> tuple[Tensor, Tensor, Tensor]:
    """Draws a projection, and the matrices of one head, untrained: what they find costs as much."""
    random, k = torch.Generator().manual_seed(0), round(Dota().rank * WIDTH)
    query, key = (torch.randn(1, k, k, generator=random) / k**0.5 for _ in range(2))
    return ternary(WIDTH, k, random), query, key


def predict(head: Head, density: float) -> Tensor:
    return detected_blocks(head.x, *detector(), Dota().bits, density)


def keep(head: Head) -> Tensor:
    pairs = head.pairs
    return largest_kept(pairs.scores, pairs.visible.expand(pairs.shape), round(Dota().retention * pairs.longest))


def plot(tables: Sequence[StudyTable]) -> Figure:
    """Draws the time against the share of blocks, as measured; what is modelled has no place in it."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4.5), layout="constrained")
    draw(figure.subplots(), next(table for table in tables if table.name == "skipping"))
    return figure
