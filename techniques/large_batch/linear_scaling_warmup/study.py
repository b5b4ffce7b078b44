"""Steps to quality against the batch size: how far scaling the learning rate lets the batch grow, and where it breaks.

Goyal et al. (arXiv 1706.02677), figure 1, ask for the error after equal epochs; Shallue et al. (JMLR 2019, arXiv
1811.03600) for steps to a quality. Under perfect scaling a doubled batch halves the steps, and the examples to quality
stay the same. Here every run ends after equally many examples, so they cannot grow past that budget: beyond the
critical batch the quality is not reached, and the final loss says by how much.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median
from typing import TYPE_CHECKING, NamedTuple, get_args

from suite.comparison import canonical
from suite.records import Contender, Evaluation
from suite.statistics import replicate_interval
from suite.study import Lab, Table
from techniques.large_batch.linear_scaling_warmup.technique import Rule

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FACTORS = (2, 4, 8, 16, 32)
NOTE = (
    "Steps and examples until the test loss is what the reference ends with: medians over the seeds that got there; "
    "final loss: the mean over the seeds that finished and its 95 % interval; CPU seconds of all seeds' training"
)
BREAK = (
    "The largest batch whose final loss is at most the upper end of the reference's interval over seeds, and the "
    "smallest at which it is more or no seed finished; n/a: none"
)


class Row(NamedTuple):
    """One batch size under one rule; None where no seed got there, or none finished."""

    batch_size: int
    rule: str
    learning_rate: float
    seeds: int
    reached: int
    steps_to_quality: float | None
    examples_to_quality: float | None
    final_loss: float | None
    final_loss_low: float | None
    final_loss_high: float | None
    cpu_s: float | None


def study(lab: Lab) -> list[Table]:
    """Tables ``steps_to_quality`` (the reference's batch, and times ``FACTORS`` by every rule) and ``break_point``."""
    stacks = {(k, rule): f"linear_scaling_warmup:k={k},rule={rule}" for k in FACTORS for rule in get_args(Rule)}
    runs = lab.runs(list(stacks.values()))
    measured = {rule: runs[canonical(stack)] for (_, rule), stack in stacks.items() if runs[canonical(stack)]}
    references = [(reference, reference) for reference, _ in next(iter(measured.values()), [])]
    groups = [("reference", references), *((rule, runs[canonical(stack)]) for (_, rule), stack in stacks.items())]
    rows = [made for rule, pairs in groups if (made := row(rule, pairs))]
    columns = ("rule", "reference_low", "reference_high", "largest_batch", "broken_at")
    return [
        Table("steps_to_quality", Row._fields, [tuple(each) for each in rows], NOTE),
        Table("break_point", columns, break_points(rows), BREAK),
    ]


def row(rule: str, pairs: Sequence[tuple[Contender, Contender]]) -> Row | None:
    """The row of (reference, contender) pairs, one a seed; None where there is nothing to say."""
    pairs = [(reference, contender) for reference, contender in pairs if reference.curve and contender.recipe]
    if not pairs:
        return None
    batch_size, learning_rate = (pairs[0][1].recipe[name] for name in ("batch_size", "learning_rate"))
    steps = [
        reached for reference, each in pairs if (reached := steps_to(target(reference.curve), each.curve)) is not None
    ]
    final = [contender.curve[-1].loss for _, contender in pairs if contender.status == "ok" and contender.curve]
    spread = replicate_interval(final) if len(final) > 1 else None
    spent = [contender.cpu_s for _, contender in pairs if contender.cpu_s is not None]
    middle = median(steps) if steps else None
    return Row(
        batch_size=batch_size,
        rule=rule,
        learning_rate=learning_rate,
        seeds=len(pairs),
        reached=len(steps),
        steps_to_quality=middle,
        examples_to_quality=None if middle is None else middle * batch_size,
        final_loss=fmean(final) if final else None,
        final_loss_low=spread.low if spread else None,
        final_loss_high=spread.high if spread else None,
        cpu_s=sum(spent) if spent else None,
    )


def break_points(rows: Sequence[Row]) -> list[tuple[str, float, float, int | None, int | None]]:
    """For each rule what BREAK says; nothing where the reference has no interval."""
    reference = next((each for each in rows if each.rule == "reference"), None)
    if reference is None or reference.final_loss_low is None or reference.final_loss_high is None:
        return []
    low, high, made = reference.final_loss_low, reference.final_loss_high, []
    for rule in get_args(Rule):
        losses = {row.batch_size: row.final_loss for row in rows if row.rule == rule}
        held = [size for size, loss in losses.items() if loss is not None and loss <= high]
        if losses:
            made.append((rule, low, high, max(held, default=None), min(losses.keys() - held, default=None)))
    return made


def target(curve: Sequence[Evaluation]) -> float:
    """The loss that the reference ends with, 1 % of the way back, so that noise at the very end does not decide."""
    return curve[-1].loss + 0.01 * max(0.0, curve[0].loss - curve[-1].loss)


def steps_to(loss: float, curve: Sequence[Evaluation]) -> float | None:
    """Steps at which the curve first reaches ``loss``, interpolated between evaluations; None if it never does."""
    for before, after in zip((None, *curve), curve):
        if after.loss <= loss:
            if before is None:
                return float(after.step)
            return before.step + (after.step - before.step) * (before.loss - loss) / (before.loss - after.loss)
    return None


def draw(axes: Axes, rows: Sequence[Row], label: str, number: int) -> None:
    """Steps to quality over batch size in colour ``number``; what was not reached is an open circle at the top."""
    reached, missed = ([each for each in rows if (each.steps_to_quality is None) is none] for none in (False, True))
    sizes, colour = [each.batch_size for each in reached], f"C{number}"
    axes.loglog(sizes, [each.steps_to_quality for each in reached], marker="o", color=colour, label=label)
    if missed:
        axes.plot(
            [each.batch_size for each in missed],
            [0.96] * len(missed),
            marker="o",
            markersize=6 + 3 * number,
            fillstyle="none",
            linestyle="",
            color=colour,
            transform=axes.get_xaxis_transform(),
            label=f"{label}: not reached",
        )


def finish(axes: Axes, start: Sequence[Row], rows: Sequence[Row]) -> None:
    """Labels, and the dashed line on which the examples to quality stay those of the first row of ``start``."""
    sizes = sorted({each.batch_size for each in rows})
    for each in start[:1]:
        steps = [(each.examples_to_quality or 0) / size for size in sizes]
        axes.loglog(sizes, steps, "--", color="grey", label="perfect")
    axes.set(xlabel="batch size (examples)", ylabel="steps to the reference's final quality")
    if rows:
        axes.legend()


def plot(tables: Sequence[Table]) -> Figure:
    """Steps to quality over batch size, a line for each rule, doubly logarithmic; perfect scaling is dashed."""
    from matplotlib.figure import Figure

    rows = [Row(*each) for each in tables[0].rows]
    start = [each for each in rows if each.rule == "reference"]
    figure = Figure(figsize=(5, 4), layout="constrained")
    axes = figure.subplots()
    for number, rule in enumerate(get_args(Rule)):
        draw(axes, [*start, *(each for each in rows if each.rule == rule)], f"rule: {rule}", number)
    finish(axes, start, rows)
    return figure
