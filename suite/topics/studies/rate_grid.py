"""Measures the final loss over the learning rate, for the reference and for what replaces its optimizer: each is judged
at its best.

All sides get equally many rates, each around what it is used at; the reference's is the recipe's. With fixed rates, or
a grid for one side alone, a comparison of optimizers is one of how well their rates were chosen (Choi et al. 2019,
arXiv 1910.05446). At larger batches the grids are repeated in as many times fewer steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import TYPE_CHECKING, NamedTuple

from suite.entries.card import RateGrid, filled
from suite.record.job import canonical
from suite.record.schema import Learned
from suite.topics.studies.lab import Lab, StudyTable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ALL = (
    "Means over the seeds, none where a run did not finish; the final loss and its error are of test examples; batch "
    "and rate in the recipe's; CPU time of all seeds"
)
BEST = (
    "Each side's rate of least validation loss, its final test loss, the gap to {}'s, the gap's standard error, and "
    "what the side's grid cost"
)


class GridRow(NamedTuple):
    """Describes one rate of one side; the standard error is over the seeds, None for one."""

    side: str
    batch: int
    rate: float
    seeds: int
    validation_loss: float | None
    final_loss: float | None
    standard_error: float | None
    cpu_s: float | None


class BestRate(NamedTuple):
    """Describes the best of the ``rates`` that finished; the reference has no gap to itself."""

    side: str
    batch: int
    rates: int
    rate: float
    final_loss: float
    gap: float | None
    standard_error: float | None
    grid_cpu_s: float | None


def study(lab: Lab, asked: RateGrid) -> list[StudyTable]:
    """Returns the tables ``rates`` (all runs) and ``best`` (one for each side and batch)."""
    contenders = [side for side in asked.contender if not side.baselines or lab.setting.baseline in side.baselines]
    stacks: dict[tuple[str, int, float], str] = {}
    for k in asked.batches:
        stacks |= {(asked.reference, k, rate): filled(asked.reference_scaled, k, rate) for rate in asked.rates}
        for contender in contenders:
            for rate, stack in contender.stacks.items():
                stacks[contender.label, k, rate] = stack if k == 1 else f"{filled(asked.scaled, k, rate)}+{stack}"
    runs = lab.runs(list(stacks.values()))
    learned = {key: [run for _, run in runs[canonical(stack)]] for key, stack in stacks.items()}
    rows = [grid_row(*key, seeds) for key, seeds in learned.items() if seeds]
    note = BEST.format(asked.reference)
    return [
        StudyTable("rates", GridRow._fields, [tuple(row) for row in rows], ALL),
        StudyTable("best", BestRate._fields, [tuple(row) for row in best(rows, asked.reference)], note),
    ]


def grid_row(side: str, batch: int, rate: float, seeds: Sequence[Learned]) -> GridRow:
    """Returns the row of the runs at one rate, one a seed."""
    done = [(seed.curve[-1].loss, seed.final.loss) for seed in seeds if seed.status == "ok" and seed.final]
    losses = [final for _, final in done]
    whole = len(done) == len(seeds)
    error = stdev(losses) / math.sqrt(len(losses)) if whole and len(losses) > 1 else None
    return GridRow(
        side,
        batch,
        rate,
        len(seeds),
        fmean(validation for validation, _ in done) if whole else None,
        fmean(losses) if whole else None,
        error,
        total([seed.cpu_s for seed in seeds]),
    )


def total(seconds: Sequence[float | None]) -> float | None:
    """Returns their sum; None if one is unknown."""
    known = [second for second in seconds if second is not None]
    return sum(known) if len(known) == len(seconds) else None


def best(rows: Sequence[GridRow], reference: str) -> list[BestRate]:
    """Returns the best rate of each side and batch, which BEST describes; none where no rate finished."""
    chosen: dict[tuple[str, int], BestRate] = {}
    for side, batch in dict.fromkeys((row.side, row.batch) for row in rows):  # the reference comes first
        grid = [row for row in rows if (row.side, row.batch) == (side, batch)]
        finished = [(row.validation_loss, row) for row in grid if row.validation_loss is not None]
        if not finished:
            continue
        _, least = min(finished)
        assert least.final_loss is not None
        other = chosen.get((reference, batch))
        error = least.standard_error
        if other:
            known = error is not None and other.standard_error is not None
            error = math.hypot(error or 0, other.standard_error or 0) if known else None
        gap = least.final_loss - other.final_loss if other else None
        cost = total([row.cpu_s for row in grid])
        chosen[side, batch] = BestRate(side, batch, len(finished), least.rate, least.final_loss, gap, error, cost)
    return list(chosen.values())


def draw(axes: Axes, table: StudyTable) -> None:
    """Draws the final loss over the rate, a line for each side and batch; bars are standard errors."""
    rows = [row for cells in table.rows if (row := GridRow(*cells)).final_loss is not None]
    for side, batch in dict.fromkeys((row.side, row.batch) for row in rows):
        line = sorted((row for row in rows if (row.side, row.batch) == (side, batch)), key=lambda row: row.rate)
        axes.errorbar(
            [point.rate for point in line],
            [point.final_loss or 0 for point in line],
            [point.standard_error or 0 for point in line],
            marker="o",
            label=side if batch == 1 else f"{side}, batch x{batch}",
        )
    axes.set(xlabel="learning rate (of the recipe's)", ylabel="final test loss", xscale="log")
    if rows:
        axes.legend()


def plot(tables: Sequence[StudyTable]) -> Figure:
    """Draws the table ``rates`` as :func:`draw` shows it."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 4), layout="constrained")
    draw(figure.subplots(), tables[0])
    return figure
