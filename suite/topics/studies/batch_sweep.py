"""Steps to quality against the batch size, for an optimizer made for large batches and for tuned ones that are not.

At every batch size all sides get the same grid of learning rates, in what the card's rule makes of each side's own
rate; all runs see equally many examples. Steps are counted until the validation loss is what the reference ends with
at its own batch and rate. With a fixed rate a comparison of optimizers over batch sizes is one of how well that rate
was chosen (Nado et al. 2021, arXiv 2102.06356, who tune Nesterov momentum).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import TYPE_CHECKING, Any, NamedTuple

from suite.entries.card import BatchSweep, filled
from suite.judge.statistics import replicate_interval
from suite.record.job import canonical
from suite.record.schema import Evaluation, Learned
from suite.topics.studies.lab import Lab, StudyTable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

REFERENCE = "reference"
NOTE = (
    "Steps and examples until the validation loss is what the reference ends with, and until it has fallen half as "
    "far: medians over the seeds that got there; final loss: of test examples, the mean over the seeds that finished "
    "and its 95 % interval; CPU seconds of all seeds' training"
)
BEST = (
    "The rate of the fewest steps among those that got there in the most seeds, else of the lowest validation loss. "
    "One at an end of the grid ({:g} or {:g}) may not be the best there is"
)
COST = "What tuning took: rates times batch sizes, runs of all their seeds, CPU seconds of their training"


class SweepRow(NamedTuple):
    """Describes one batch size under one rule; None where no seed got there, or none finished."""

    batch_size: int
    rule: str
    learning_rate: float
    seeds: int
    reached: int
    steps_to_quality: float | None
    examples_to_quality: float | None
    steps_half_way: float | None
    final_loss: float | None
    final_loss_low: float | None
    final_loss_high: float | None
    cpu_s: float | None
    validation_loss: float | None


class SweepRun(NamedTuple):
    """Describes one optimizer at one batch size and one multiple of its own learning rate."""

    optimizer: str
    rate: float
    row: SweepRow


COLUMNS = ("optimizer", "rate", *SweepRow._fields)


def study(lab: Lab, asked: BatchSweep) -> list[StudyTable]:
    """Returns the tables ``steps_to_quality`` (all runs), ``best`` (one rate a side and batch size) and ``cost`` (of
    each side)."""
    stacks = {
        (side, rate, k): "+".join([filled(asked.scaled, k, rate), *optimizer])
        for k in asked.batches
        for rate in asked.rates
        for side, optimizer in [(REFERENCE, []), *((optimizer, [optimizer]) for optimizer in asked.optimizers)]
    }
    results = lab.runs(list(stacks.values()))
    runs = [
        SweepRun(side, rate, row)
        for (side, rate, _), stack in stacks.items()
        if (row := sweep_row(asked.rule, results[canonical(stack)]))
    ]
    return [
        StudyTable("steps_to_quality", COLUMNS, [_cells(run) for run in runs], NOTE),
        StudyTable("best", COLUMNS, [_cells(run) for run in best(runs)], BEST.format(asked.rates[0], asked.rates[-1])),
        StudyTable("cost", ("optimizer", "settings", "runs", "cpu_s"), cost(runs), COST),
    ]


def sweep_row(rule: str, pairs: Sequence[tuple[Learned, Learned]]) -> SweepRow | None:
    """Returns the row of (reference, contender) pairs, one a seed; None where there is nothing to say."""
    pairs = [(reference, contender) for reference, contender in pairs if reference.curve and contender.recipe]
    if not pairs:
        return None
    batch_size, learning_rate = (pairs[0][1].recipe[name] for name in ("batch_size", "learning_rate"))
    steps, half = (_reached(pairs, share) for share in (0.99, 0.5))  # not 1: noise at the very end does not decide
    final = [contender.final.loss for _, contender in pairs if contender.status == "ok" and contender.final]
    ends = [contender.curve[-1].loss for _, contender in pairs if contender.status == "ok" and contender.curve]
    spread = replicate_interval(final) if len(final) > 1 else None
    spent = [contender.cpu_s for _, contender in pairs if contender.cpu_s is not None]
    middle = median(steps) if steps else None
    return SweepRow(
        batch_size=batch_size,
        rule=rule,
        learning_rate=learning_rate,
        seeds=len(pairs),
        reached=len(steps),
        steps_to_quality=middle,
        examples_to_quality=None if middle is None else middle * batch_size,
        steps_half_way=median(half) if half else None,
        final_loss=fmean(final) if final else None,
        final_loss_low=spread.low if spread else None,
        final_loss_high=spread.high if spread else None,
        cpu_s=sum(spent) if spent else None,
        validation_loss=fmean(ends) if ends else None,
    )


def _reached(pairs: Sequence[tuple[Learned, Learned]], share: float) -> list[float]:
    """Returns the steps of those that got to the loss at which the reference has this share of its whole fall behind
    it."""
    reached = []
    for reference, contender in pairs:
        start, end = reference.curve[0].loss, reference.curve[-1].loss
        steps = steps_to(start + share * min(0.0, end - start), contender.curve)
        if steps is not None:
            reached.append(steps)
    return reached


def steps_to(loss: float, curve: Sequence[Evaluation]) -> float | None:
    """Steps at which the curve first reaches ``loss``, interpolated between evaluations; None if it never does."""
    for before, after in zip((None, *curve), curve):
        if after.loss <= loss:
            if before is None:
                return float(after.step)
            return before.step + (after.step - before.step) * (before.loss - loss) / (before.loss - after.loss)
    return None


def _cells(run: SweepRun) -> tuple[Any, ...]:
    return run.optimizer, run.rate, *run.row


def best(runs: Sequence[SweepRun]) -> list[SweepRun]:
    """Returns the best run of each optimizer and batch size, which BEST describes; by optimizer, then size."""
    chosen: dict[tuple[str, int], SweepRun] = {}
    for run in sorted(runs, key=lambda run: _goodness(run.row)):
        chosen.setdefault((run.optimizer, run.row.batch_size), run)
    return [chosen[key] for key in sorted(chosen)]


def _goodness(row: SweepRow) -> tuple[float, float, float]:
    never = float("inf")
    steps = never if row.steps_to_quality is None else row.steps_to_quality
    return -row.reached / row.seeds, steps, never if row.validation_loss is None else row.validation_loss


def cost(runs: Sequence[SweepRun]) -> list[tuple[str, int, int, float]]:
    """Returns the rows that COST describes, by optimizer."""
    sides = {name: [run.row for run in runs if run.optimizer == name] for name in {run.optimizer for run in runs}}
    return [
        (name, len(rows), sum(row.seeds for row in rows), sum(row.cpu_s or 0.0 for row in rows))
        for name, rows in sorted(sides.items())
    ]


def draw(figure: Figure, lines: Mapping[str, Sequence[SweepRow]], reference: str) -> None:
    """Draws two panels over the batch size, a line for each of ``lines``: steps half-way to the quality of
    ``reference``, with perfect scaling dashed; and the final loss with its interval. What did not get half-way is an
    open circle."""
    steps, losses = figure.subplots(1, 2)
    for number, (label, rows) in enumerate(lines.items()):
        look: dict[str, Any] = {"marker": "o", "color": f"C{number}"}
        reached = {row.batch_size: row.steps_half_way for row in rows if row.steps_half_way}
        steps.plot([*reached], [*reached.values()], label=label, **look)
        if missed := [row.batch_size for row in rows if not row.steps_half_way]:
            look |= {"markersize": 6 + 3 * number, "fillstyle": "none", "linestyle": ""}
            height = {"transform": steps.get_xaxis_transform(), "label": f"{label}: not reached"}
            steps.plot(missed, [0.96] * len(missed), **look, **height)
        aside = 1.04**number  # so that intervals stand side by side
        ended = {aside * row.batch_size: row for row in rows if row.final_loss is not None}
        losses.plot([*ended], [row.final_loss for row in ended.values()], marker="o", color=f"C{number}")
        spread = {size: row for size, row in ended.items() if row.final_loss_low is not None}
        ends = ([getattr(row, name) for row in spread.values()] for name in ("final_loss_low", "final_loss_high"))
        losses.vlines([*spread], *ends, color=f"C{number}")
    sizes = sorted({row.batch_size for rows in lines.values() for row in rows})
    for first in lines.get(reference, [])[:1]:
        perfect = [(first.steps_half_way or 0) * first.batch_size / size for size in sizes]
        steps.plot(sizes, perfect, "--", color="grey", label="perfect")
    steps.set(ylabel="steps half-way to the reference's quality", yscale="log")
    losses.set(ylabel="final test loss")
    for axes in (steps, losses):
        axes.set(xlabel="batch size (examples)", xscale="log")
        axes.set_xticks(sizes, map(str, sizes))
        axes.minorticks_off()
    if sizes:
        steps.legend()


def plot(tables: Sequence[StudyTable]) -> Figure:
    """Draws a line for each optimizer at its best rates."""
    from matplotlib.figure import Figure

    lines: dict[str, list[SweepRow]] = {}
    for optimizer, _, *cells in tables[1].rows:
        lines.setdefault(optimizer, []).append(SweepRow(*cells))
    figure = Figure(figsize=(9, 4), layout="constrained")
    draw(figure, lines, REFERENCE)
    return figure
