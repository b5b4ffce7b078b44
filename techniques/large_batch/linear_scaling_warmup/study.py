"""Steps to quality against the batch size: how far scaling the learning rate lets the batch grow, and where it breaks.

Goyal et al. (arXiv 1706.02677), figure 1, ask for the error after equal epochs; Shallue et al. (JMLR 2019, arXiv
1811.03600) for steps to a quality. Under perfect scaling a doubled batch halves the steps, and the examples to quality
stay the same. Here every run ends after equally many examples, so they cannot grow past that budget: beyond the
critical batch the reference's final quality is not reached, and the final loss says by how much. Half of the way there
is reached at larger batches, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

from suite.judge.statistics import replicate_interval
from suite.measure.study import Lab, Table
from suite.record.job import canonical
from suite.record.schema import Evaluation, Outcome
from techniques.large_batch.linear_scaling_warmup.technique import Rule

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FACTORS = (2, 4, 8, 16, 32)
NOTE = (
    "Steps and examples until the test loss is what the reference ends with, and until it has fallen half as far: "
    "medians over the seeds that got there; "
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
    steps_half_way: float | None
    final_loss: float | None
    final_loss_low: float | None
    final_loss_high: float | None
    cpu_s: float | None


def study(lab: Lab) -> list[Table]:
    """Tables ``steps_to_quality`` (the reference's batch, and times ``FACTORS`` by every rule) and ``break_point``."""
    stacks = {(k, rule): f"linear_scaling_warmup:k={k},rule={rule}" for k in FACTORS for rule in get_args(Rule)}
    runs = lab.runs(list(stacks.values()))
    finest = next((runs[canonical(stack)] for stack in stacks.values() if runs[canonical(stack)]), [])
    references = [(reference, reference) for reference, _ in finest]  # the smallest batch has the most evaluations
    groups = [("reference", references), *((rule, runs[canonical(stack)]) for (_, rule), stack in stacks.items())]
    rows = [made for rule, pairs in groups if (made := row(rule, pairs))]
    columns = ("rule", "reference_low", "reference_high", "largest_batch", "broken_at")
    return [
        Table("steps_to_quality", Row._fields, [tuple(each) for each in rows], NOTE),
        Table("break_point", columns, break_points(rows), BREAK),
    ]


def row(rule: str, pairs: Sequence[tuple[Outcome, Outcome]]) -> Row | None:
    """The row of (reference, contender) pairs, one a seed; None where there is nothing to say."""
    pairs = [(reference, contender) for reference, contender in pairs if reference.curve and contender.recipe]
    if not pairs:
        return None
    batch_size, learning_rate = (pairs[0][1].recipe[name] for name in ("batch_size", "learning_rate"))
    steps, half = (_reached(pairs, share) for share in (0.99, 0.5))  # not 1: noise at the very end does not decide
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
        steps_half_way=median(half) if half else None,
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


def _reached(pairs: Sequence[tuple[Outcome, Outcome]], share: float) -> list[float]:
    """The steps of those that got to the loss at which the reference has this share of its whole fall behind it."""
    found = []
    for reference, each in pairs:
        start, end = reference.curve[0].loss, reference.curve[-1].loss
        found.append(steps_to(start + share * min(0.0, end - start), each.curve))
    return [steps for steps in found if steps is not None]


def steps_to(loss: float, curve: Sequence[Evaluation]) -> float | None:
    """Steps at which the curve first reaches ``loss``, interpolated between evaluations; None if it never does."""
    for before, after in zip((None, *curve), curve):
        if after.loss <= loss:
            if before is None:
                return float(after.step)
            return before.step + (after.step - before.step) * (before.loss - loss) / (before.loss - after.loss)
    return None


def draw(figure: Figure, lines: Mapping[str, Sequence[Row]], reference: str) -> None:
    """Two panels over the batch size, a line for each of ``lines``: steps half-way to the quality of ``reference``,
    with perfect scaling dashed; and the final loss with its interval. What did not get half-way is an open circle."""
    steps, losses = figure.subplots(1, 2)
    for number, (label, rows) in enumerate(lines.items()):
        look: dict[str, Any] = {"marker": "o", "color": f"C{number}"}
        reached = {each.batch_size: each.steps_half_way for each in rows if each.steps_half_way}
        steps.plot([*reached], [*reached.values()], label=label, **look)
        if missed := [each.batch_size for each in rows if not each.steps_half_way]:
            look |= {"markersize": 6 + 3 * number, "fillstyle": "none", "linestyle": ""}
            height = {"transform": steps.get_xaxis_transform(), "label": f"{label}: not reached"}
            steps.plot(missed, [0.96] * len(missed), **look, **height)
        aside = 1.04**number  # so that intervals stand side by side
        ended = {aside * each.batch_size: each for each in rows if each.final_loss is not None}
        losses.plot([*ended], [each.final_loss for each in ended.values()], marker="o", color=f"C{number}")
        spread = {size: each for size, each in ended.items() if each.final_loss_low is not None}
        ends = ([getattr(each, name) for each in spread.values()] for name in ("final_loss_low", "final_loss_high"))
        losses.vlines([*spread], *ends, color=f"C{number}")
    sizes = sorted({each.batch_size for rows in lines.values() for each in rows})
    for each in lines.get(reference, [])[:1]:
        perfect = [(each.steps_half_way or 0) * each.batch_size / size for size in sizes]
        steps.plot(sizes, perfect, "--", color="grey", label="perfect")
    steps.set(ylabel="steps half-way to the reference's quality", yscale="log")
    losses.set(ylabel="final test loss")
    for axes in (steps, losses):
        axes.set(xlabel="batch size (examples)", xscale="log")
        axes.set_xticks(sizes, map(str, sizes))
        axes.minorticks_off()
    if sizes:
        steps.legend()


def plot(tables: Sequence[Table]) -> Figure:
    """A line for each rule, from the reference on."""
    from matplotlib.figure import Figure

    rows = [Row(*each) for each in tables[0].rows]
    start = [each for each in rows if each.rule == "reference"]
    figure = Figure(figsize=(9, 4), layout="constrained")
    rules = {rule: [*start, *(each for each in rows if each.rule == rule)] for rule in get_args(Rule)}
    draw(figure, {f"rule: {rule}": line for rule, line in rules.items()}, f"rule: {get_args(Rule)[0]}")
    return figure
