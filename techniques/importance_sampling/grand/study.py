"""Compares GraNd with as many examples at random, and tells what its scores are made of.

``orders``: the hardest, the easiest or any examples kept, with right labels and with a tenth of them wrong, which rank
as hard. ``stability``: what scores of independent networks share (Spearman's correlation of the means over two disjoint
halves of 1 to 5 networks each), at initialisation and after a short run, and their correlation with the norm of the
input, which Kirsch (arXiv 2303.14753) holds responsible for most of the score at initialisation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from scipy.stats import spearmanr
from torch import Tensor

from suite.entries.jobs import run_of
from suite.loop.run import Run
from suite.record.job import Job
from suite.topics.studies.lab import Lab, StudyTable
from techniques.importance_sampling.grand.technique import Grand
from techniques.importance_sampling.shared.pruning_study import KeptRow, draw, kept_rows, kept_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BASELINES = ("vit",)
KEEPS = (0.3, 0.5, 0.7)
WRONG_LABELS = (0.0, 0.1)
SCOUTS = (0.0, 0.1)
HALVES = (1, 2, 5)
STABILITY = (
    "Spearman's correlation over the training examples: of the mean scores of two disjoint sets of networks, and of "
    "the mean score of all networks with the norm of the input"
)


def study(lab: Lab) -> list[StudyTable]:
    """Returns the tables ``orders`` and ``stability``."""
    rows = [
        row
        for share in WRONG_LABELS
        for row in kept_rows(lab, "grand", KEEPS, wrong_labels=share, parts=len(WRONG_LABELS))
    ]
    lab.progress(0.9, "scores of independent networks")
    return [kept_table("orders", rows), stability(lab)]


def stability(lab: Lab) -> StudyTable:
    """Returns a table with a row for each share of the steps before scoring, and number of networks."""
    run = run_of(Job(setting=lab.setting))
    norms = input_norms(run)
    rows = []
    for scout in SCOUTS:
        grand = Grand(runs=2 * max(HALVES), scout=scout)
        grand.recipe(run.recipe)
        with_input = spearmanr(grand.score(run.data, run).numpy(), norms.numpy()).statistic
        for half in HALVES:
            first, second = grand.by_network[:half].mean(0), grand.by_network[half : 2 * half].mean(0)
            rows.append((scout, half, spearmanr(first.numpy(), second.numpy()).statistic, with_input))
    return StudyTable("stability", ("scout", "networks", "agreement", "with_input_norm"), rows, STABILITY)


def input_norms(run: Run) -> Tensor:
    """Computes the Euclidean norm of every training picture as the model takes it, without augmentation, float32
    [examples]."""
    transform = run.data.test_transform or run.data.transform
    rows = torch.arange(len(run.data.train))
    return transform(run.data.train[rows], torch.Generator().manual_seed(0))["pixel_values"].flatten(1).norm(dim=1)


def plot(tables: Sequence[StudyTable]) -> Figure:
    """Draws the loss over the share kept, with right and with wrong labels, and the agreement over the networks."""
    from matplotlib.figure import Figure

    rows = [KeptRow(*record) for record in tables[0].rows]
    shares = sorted({row.wrong_labels for row in rows})
    figure = Figure(figsize=(11, 3.5), layout="constrained")
    *panels, last = figure.subplots(1, max(1, len(shares)) + 1)
    for axes, share in zip(panels, shares):
        draw(axes, [row for row in rows if row.wrong_labels == share], f"{share:.0%} wrong labels")
    for scout in dict.fromkeys(row[0] for row in tables[1].rows):
        own = [row for row in tables[1].rows if row[0] == scout]
        last.plot([row[1] for row in own], [row[2] for row in own], marker="o", label=f"after {scout:.0%} of the steps")
    last.set(title="agreement of two halves", xlabel="networks in each half", ylabel="Spearman's correlation")
    last.legend(fontsize="small")
    return figure
