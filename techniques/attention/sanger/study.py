"""Measures what Sanger's prediction saves where it chooses blocks (:mod:`techniques.attention.shared.skipping`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from suite.topics.studies.lab import Lab, StudyTable
from techniques.attention.sanger.blocks import predicted_blocks
from techniques.attention.sanger.chip import TOKENS, modelled, over_gpu
from techniques.attention.sanger.technique import HIGHEST, UNIFORM, Sanger, prediction_mask, unit
from techniques.attention.shared.skipping import WIDTH, Head, beside, draw, measured, skipping, traces
from techniques.shared.chips.headlines import headlines
from techniques.shared.chips.numbers import drift, numbers, quoted

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def study(lab: Lab) -> list[StudyTable]:
    """Returns the tables ``headlines``, ``numbers``, ``skipping``, ``break_even`` and ``masks``."""
    folder, tables, seen = Path(__file__).parent, skipping(lab, "sanger", predict, keep), traces(lab, "sanger", TOKENS)
    here = measured(tables)
    values = {"chip_against_gpu": beside(over_gpu(seen), here, drift(TOKENS))}
    return [headlines(folder, values), numbers([*quoted(folder), *modelled(seen), *here]), *tables]


def threshold(head: Head) -> float:
    return min(UNIFORM / head.key.shape[-2], HIGHEST)


def largest(head: Head) -> Tensor:
    return torch.stack([unit(x).abs().amax() for x in (head.query, head.key)])


def predict(head: Head, density: float) -> Tensor:
    """Predicts blocks by the threshold, and not by ``density``."""
    return predicted_blocks(head.query, head.key, largest(head), Sanger().bits, threshold(head), WIDTH**-0.5)


def keep(head: Head) -> Tensor:
    return prediction_mask(head.pairs, largest(head), Sanger().bits, threshold(head), Sanger().empty)


def plot(tables: Sequence[StudyTable]) -> Figure:
    """Draws the time against the share of blocks, as measured; what is modelled has no place in it."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4.5), layout="constrained")
    draw(figure.subplots(), next(table for table in tables if table.name == "skipping"))
    return figure
