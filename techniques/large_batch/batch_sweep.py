"""Steps to quality against the batch size, for an optimizer made for large batches and for the tuned reference.

At every batch size and for both sides the same grid of learning rates: the side's own rate at the reference's batch,
times each rule's factor (1, the square root of k, k), reached by gradual warm-up. All runs see equally many examples.
Steps are counted until the test loss is what the reference ends with at its own batch. With a fixed rate a comparison
of optimizers over batch sizes is one of how well that rate was chosen (Nado et al. 2021, arXiv 2102.06356).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, get_args

from suite.comparison import canonical
from suite.study import Lab, Table
from techniques.large_batch.linear_scaling_warmup.study import FACTORS, row
from techniques.large_batch.linear_scaling_warmup.technique import Rule

if TYPE_CHECKING:
    from matplotlib.figure import Figure

REFERENCE = "reference"
ALL = "Steps and examples until the test loss is what the reference ends with; medians over the seeds that got there"
BEST = "The rule of the fewest steps among those that got there in the most seeds, else of the lowest final loss"


class Run(NamedTuple):
    """One optimizer at one batch size and one rule's learning rate; None where no seed got there, or finished."""

    optimizer: str
    batch_size: int
    rule: str
    learning_rate: float
    seeds: int
    reached: int
    steps_to_quality: float | None
    examples_to_quality: float | None
    final_loss: float | None


def sweep(lab: Lab, optimizer: str) -> list[Table]:
    """Tables ``steps_to_quality`` (all runs) and ``best`` (one rule for each optimizer and batch)."""
    scaled = {(k, rule): f"linear_scaling_warmup:k={k},rule={rule}" for k in FACTORS for rule in get_args(Rule)}
    stacks = {(optimizer, "none", 1): optimizer}
    for (k, rule), scaling in scaled.items():
        stacks |= {(REFERENCE, rule, k): scaling, (optimizer, rule, k): f"{scaling}+{optimizer}"}
    results = lab.runs(list(stacks.values()))
    own = results[canonical(optimizer)]
    groups = {(REFERENCE, "none", 1): [(reference, reference) for reference, _ in own]}
    groups |= {key: results[canonical(stack)] for key, stack in stacks.items()}
    runs = [Run(name, *made) for (name, rule, _), pairs in groups.items() if (made := row(rule, pairs))]
    return [
        Table("steps_to_quality", Run._fields, [tuple(each) for each in runs], ALL),
        Table("best", Run._fields, [tuple(each) for each in best(runs)], BEST),
    ]


def best(runs: Sequence[Run]) -> list[Run]:
    """For each optimizer and batch size the run that BEST describes, by optimizer and size."""
    chosen: dict[tuple[str, int], Run] = {}
    for run in sorted(runs, key=_goodness):
        chosen.setdefault((run.optimizer, run.batch_size), run)
    return [chosen[key] for key in sorted(chosen)]


def _goodness(run: Run) -> tuple[float, float, float]:
    never = float("inf")
    steps = never if run.steps_to_quality is None else run.steps_to_quality
    return -run.reached / run.seeds, steps, never if run.final_loss is None else run.final_loss


def plot(tables: Sequence[Table]) -> Figure:
    """Steps to quality over batch size at each optimizer's best rule, doubly logarithmic; perfect scaling is dashed."""
    from matplotlib.figure import Figure

    runs = [made for each in tables[1].rows if (made := Run(*each)).steps_to_quality]
    figure = Figure(figsize=(5, 4), layout="constrained")
    axes = figure.subplots()
    for name in sorted({each.optimizer for each in runs}):
        line = [each for each in runs if each.optimizer == name]
        sizes = [each.batch_size for each in line]
        axes.loglog(sizes, [each.steps_to_quality for each in line], marker="o", label=name)
        if name == REFERENCE:
            perfect = [(line[0].examples_to_quality or 0) / size for size in sizes]
            axes.loglog(sizes, perfect, "--", color="grey", label="perfect")
    axes.set(xlabel="batch size (examples)", ylabel="steps to the reference's final quality")
    if runs:
        axes.legend()
    return figure
