"""Steps to quality against the batch size: how far scaling the learning rate lets the batch grow, and where it breaks.

Goyal et al. (arXiv 1706.02677), figure 1, ask for the error after equal epochs; Shallue et al. (JMLR 2019, arXiv
1811.03600) for steps to a quality. Under perfect scaling a doubled batch halves the steps, and the examples to quality
stay the same; they grow beyond the critical batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median
from typing import TYPE_CHECKING, NamedTuple, get_args

from suite.comparison import canonical
from suite.records import Contender, Evaluation
from suite.study import Lab, Table
from techniques.large_batch.linear_scaling_warmup.technique import Rule

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FACTORS = (2, 4, 8, 16)
NOTE = "Steps and examples until the test loss is what the reference ends with; medians over the seeds that got there"


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


def study(lab: Lab) -> list[Table]:
    """The table ``steps_to_quality``: the reference's batch and its multiples by ``FACTORS``, under every rule."""
    stacks = {(k, rule): f"linear_scaling_warmup:k={k},rule={rule}" for rule in get_args(Rule) for k in FACTORS}
    runs = lab.runs(list(stacks.values()))
    measured = {rule: runs[canonical(stack)] for (_, rule), stack in stacks.items() if runs[canonical(stack)]}
    references = [(reference, reference) for reference, _ in next(iter(measured.values()), [])]
    groups = [("reference", references), *((rule, runs[canonical(stack)]) for (_, rule), stack in stacks.items())]
    rows = [made for rule, pairs in groups if (made := row(rule, pairs))]
    return [Table("steps_to_quality", Row._fields, [tuple(each) for each in rows], NOTE)]


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
    middle = median(steps) if steps else None
    examples = None if middle is None else middle * batch_size
    return Row(
        batch_size, rule, learning_rate, len(pairs), len(steps), middle, examples, fmean(final) if final else None
    )


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


def plot(tables: Sequence[Table]) -> Figure:
    """Steps to quality over batch size, a line for each rule, doubly logarithmic; perfect scaling is dashed."""
    from matplotlib.figure import Figure

    rows = [made for each in tables[0].rows if (made := Row(*each)).steps_to_quality]
    start = [each for each in rows if each.rule == "reference"]
    figure = Figure(figsize=(5, 4), layout="constrained")
    axes = figure.subplots()
    for rule in get_args(Rule):
        line = start + [each for each in rows if each.rule == rule]
        axes.loglog(
            [each.batch_size for each in line],
            [each.steps_to_quality for each in line],
            marker="o",
            label=f"rule: {rule}",
        )
    for each in start:
        sizes = sorted({other.batch_size for other in rows})
        axes.loglog(
            sizes, [(each.examples_to_quality or 0) / size for size in sizes], "--", color="grey", label="perfect"
        )
    axes.set(xlabel="batch size (examples)", ylabel="steps to the reference's final quality")
    axes.legend()
    return figure
