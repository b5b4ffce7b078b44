"""Measures what ELSA's filter saves where it chooses blocks (:mod:`techniques.attention.shared.skipping`)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from suite.topics.studies.lab import Lab, StudyTable
from techniques.attention.elsa.blocks import near_blocks
from techniques.attention.elsa.chip import TOKENS, modelled, over_gpu
from techniques.attention.elsa.hashing import hamming, quantile_bias, signs
from techniques.attention.elsa.technique import Elsa, estimates, least_scores
from techniques.attention.shared.kept_pairs import or_best
from techniques.attention.shared.skipping import WIDTH, Head, beside, draw, drawn, measured, skipping, traces
from techniques.shared.chips.headlines import headlines
from techniques.shared.chips.numbers import drift, numbers, quoted

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEARNED_FROM = 256  # tokens


def study(lab: Lab) -> list[StudyTable]:
    """Returns the tables ``headlines``, ``numbers``, ``skipping``, ``break_even`` and ``masks``."""
    folder, tables, seen = Path(__file__).parent, skipping(lab, "elsa", predict, keep), traces(lab, "elsa", TOKENS)
    here = measured(tables)
    values = {"speed": beside(over_gpu(seen), here, drift(TOKENS))}
    return [headlines(folder, values), numbers([*quoted(folder), *modelled(seen), *here]), *tables]


@cache
def threshold(topic: float) -> float:
    """Returns the threshold learned from another head of the same kind."""
    return least_scores(drawn(LEARNED_FROM, topic).pairs, Elsa().p).mean().item()


def predict(head: Head, density: float) -> Tensor:
    """Predicts blocks by the threshold, and not by ``density``."""
    return near_blocks(head.query, head.key, threshold(head.topic), quantile_bias(WIDTH))


def keep(head: Head) -> Tensor:
    pairs = head.pairs
    estimated = estimates(hamming(signs(pairs.query), signs(pairs.key)), pairs, quantile_bias(WIDTH))
    learned = least_scores(pairs, Elsa().p).mean()
    return or_best(estimated > learned, estimated, pairs.visible.expand(pairs.shape))


def plot(tables: Sequence[StudyTable]) -> Figure:
    """Draws the time against the share of blocks, as measured; what is modelled has no place in it."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4.5), layout="constrained")
    draw(figure.subplots(), next(table for table in tables if table.name == "skipping"))
    return figure
