"""Steps to quality against the batch size, for an optimizer made for large batches and for tuned ones that are not.

At every batch size all sides get the same two-sided grid of learning rates, each side its own rate times the square
root of k times ``RATES``, reached by gradual warm-up; all runs see equally many examples. Steps are counted until the
test loss is what the reference ends with at its own batch and rate. With a fixed rate a comparison of optimizers over
batch sizes is one of how well that rate was chosen (Nado et al. 2021, arXiv 2102.06356, who tune Nesterov momentum).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from suite.measure.study import Lab, Table
from suite.record.job import canonical
from techniques.large_batch.linear_scaling_warmup.study import NOTE, Row, draw, row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

REFERENCE = "reference"
BATCHES = (1, 4, 16)
RATES = (0.25, 0.5, 1.0, 2.0, 4.0)
BEST = (
    "The rate of the fewest steps among those that got there in the most seeds, else of the lowest final loss. One at "
    f"an end of the grid ({RATES[0]:g} or {RATES[-1]:g}) may not be the best there is"
)
COST = "What tuning took: rates times batch sizes, runs of all their seeds, CPU seconds of their training"


class Run(NamedTuple):
    """One optimizer at one batch size and one multiple of its own learning rate."""

    optimizer: str
    rate: float
    row: Row


COLUMNS = ("optimizer", "rate", *Row._fields)


def sweep(lab: Lab, *optimizers: str) -> list[Table]:
    """Tables ``steps_to_quality`` (all runs), ``best`` (one rate a side and batch size) and ``cost`` (of each side)."""
    stacks = {
        (side, rate, k): "+".join([f"linear_scaling_warmup:k={k},rate={rate:g},rule=sqrt", *optimizer])
        for k in BATCHES
        for rate in RATES
        for side, optimizer in [(REFERENCE, []), *((each, [each]) for each in optimizers)]
    }
    results = lab.runs(list(stacks.values()))
    runs = [
        Run(side, rate, made)
        for (side, rate, _), stack in stacks.items()
        if (made := row("sqrt", results[canonical(stack)]))
    ]
    return [
        Table("steps_to_quality", COLUMNS, [_cells(each) for each in runs], NOTE),
        Table("best", COLUMNS, [_cells(each) for each in best(runs)], BEST),
        Table("cost", ("optimizer", "settings", "runs", "cpu_s"), cost(runs), COST),
    ]


def _cells(run: Run) -> tuple[Any, ...]:
    return run.optimizer, run.rate, *run.row


def best(runs: Sequence[Run]) -> list[Run]:
    """For each optimizer and batch size the run that BEST describes, by optimizer and size."""
    chosen: dict[tuple[str, int], Run] = {}
    for run in sorted(runs, key=lambda each: _goodness(each.row)):
        chosen.setdefault((run.optimizer, run.row.batch_size), run)
    return [chosen[key] for key in sorted(chosen)]


def _goodness(row: Row) -> tuple[float, float, float]:
    never = float("inf")
    steps = never if row.steps_to_quality is None else row.steps_to_quality
    return -row.reached / row.seeds, steps, never if row.final_loss is None else row.final_loss


def cost(runs: Sequence[Run]) -> list[tuple[str, int, int, float]]:
    """What COST says, by optimizer."""
    sides = {name: [each.row for each in runs if each.optimizer == name] for name in {run.optimizer for run in runs}}
    return [
        (name, len(rows), sum(each.seeds for each in rows), sum(each.cpu_s or 0.0 for each in rows))
        for name, rows in sorted(sides.items())
    ]


def plot(tables: Sequence[Table]) -> Figure:
    """A line for each optimizer at its best rates."""
    from matplotlib.figure import Figure

    lines: dict[str, list[Row]] = {}
    for optimizer, _, *cells in tables[1].rows:
        lines.setdefault(optimizer, []).append(Row(*cells))
    figure = Figure(figsize=(9, 4), layout="constrained")
    draw(figure, lines, REFERENCE)
    return figure
