"""Compares which examples to keep: the hardest, the easiest or any, over the share that is kept.

For the studies of ``grand`` and ``ssl_prototypes``: on all of the baseline's examples or on fewer, with right labels or
some wrong ones. Test examples stay as they are. All runs on one data set have the steps of one reference, or
as large a share of them as is kept where the technique is ``shorter`` by default.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple, get_args

import torch

from suite.entries.installed import baseline_of
from suite.record.files import cache_folder
from suite.record.job import canonical
from suite.record.schema import Learned
from suite.topics.studies.lab import Lab, StudyTable
from suite.topics.studies.label_noise import written
from techniques.importance_sampling.shared.data_pruning import Order

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ORDERS: tuple[Order, ...] = get_args(Order)
EVERYTHING = "all"
NOTE = "Means over the seeds of test examples at the end of the run; all: the reference, which leaves nothing out"


class KeptRow(NamedTuple):
    """Runs on a share of the examples of one data set."""

    examples: int
    wrong_labels: float
    keep: float
    order: str
    seeds: int
    loss: float
    accuracy: float | None


def kept_rows(
    lab: Lab, technique: str, keeps: Sequence[float], *, share: float = 1.0, wrong_labels: float = 0.0, parts: int = 1
) -> list[KeptRow]:
    """Returns a row for each order and share kept of which a seed finished, and the reference's, on ``share`` of the
    training examples, drawn once; in one of ``parts`` parts of the lab's minutes."""
    setting = lab.setting
    data = baseline_of(setting).data(setting.size, "pretrain", setting.data)
    count = max(1, round(share * len(data.train)))
    drawn = torch.randperm(len(data.train), generator=torch.Generator().manual_seed(0))[:count].sort().values
    folder = cache_folder() / "pruning" / f"{data.sha256[:16]}-{share:g}-{wrong_labels:g}"
    location = str(written(data.subset(drawn), wrong_labels, folder))
    at = replace(lab, setting=setting.but(data=location), minutes=lab.minutes / parts)
    stacks = {(keep, order): f"{technique}:keep={keep},order={order}" for keep in keeps for order in ORDERS}
    runs = at.runs(list(stacks.values()))
    first = next(iter(runs.values()), [])
    rows = [_row(count, wrong_labels, 1.0, EVERYTHING, [reference for reference, _ in first])]
    for (keep, order), stack in stacks.items():
        rows.append(_row(count, wrong_labels, keep, order, [contender for _, contender in runs[canonical(stack)]]))
    return [row for row in rows if row]


def _row(examples: int, wrong_labels: float, keep: float, order: str, runs: Sequence[Learned]) -> KeptRow | None:
    """Returns the row, or None where no seed finished."""
    ends = [run.final for run in runs if run.status == "ok" and run.final]
    if not ends:
        return None
    right = [end.metrics["accuracy"] for end in ends if "accuracy" in end.metrics]
    loss = fmean(end.loss for end in ends)
    return KeptRow(examples, wrong_labels, keep, order, len(ends), loss, fmean(right) if right else None)


def kept_table(name: str, rows: Sequence[KeptRow]) -> StudyTable:
    """Returns the rows as a study's table."""
    return StudyTable(name, KeptRow._fields, [tuple(row) for row in rows], NOTE)


def draw(axes: Axes, rows: Sequence[KeptRow], title: str) -> None:
    """Draws test loss over the share kept, a line for each order, and the reference's dashed."""
    for order in ORDERS:
        own = sorted((row.keep, row.loss) for row in rows if row.order == order)
        axes.plot([keep for keep, _ in own], [loss for _, loss in own], marker="o", label=order)
    for row in rows:
        if row.order == EVERYTHING:
            axes.axhline(row.loss, linestyle="--", color="grey", label="nothing left out")
    axes.set(title=title, xlabel="share kept", ylabel="test loss")
    axes.legend(fontsize="small")
