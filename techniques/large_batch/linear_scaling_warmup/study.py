"""Steps to quality against the batch size: how far scaling the learning rate lets the batch grow, and where it breaks.

Goyal et al. (arXiv 1706.02677), figure 1, ask for the error after equal epochs; Shallue et al. (JMLR 2019, arXiv
1811.03600) for steps to a quality. Under perfect scaling a doubled batch halves the steps, and the examples to quality
stay the same. Here every run ends after equally many examples, so they cannot grow past that budget: beyond the
critical batch the reference's final quality is not reached, and the final loss says by how much. Half of the way there
is reached at larger batches, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, get_args

from suite.record.job import canonical
from suite.topics.studies.batch_sweep import NOTE, SweepRow, draw, sweep_row
from suite.topics.studies.lab import Lab, StudyTable
from techniques.large_batch.linear_scaling_warmup.technique import Rule

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FACTORS = (2, 4, 8, 16, 32)
BREAK = (
    "The largest batch whose final loss is at most the upper end of the reference's interval over seeds, and the "
    "smallest at which it is more or no seed finished; n/a: none"
)


def study(lab: Lab) -> list[StudyTable]:
    """Returns the tables ``steps_to_quality`` (the reference's batch, and times ``FACTORS`` by every rule) and
    ``break_point``."""
    stacks = {(k, rule): f"linear_scaling_warmup:k={k},rule={rule}" for k in FACTORS for rule in get_args(Rule)}
    runs = lab.runs(list(stacks.values()))
    finest = next((runs[canonical(stack)] for stack in stacks.values() if runs[canonical(stack)]), [])
    references = [(reference, reference) for reference, _ in finest]  # the smallest batch has the most evaluations
    groups = [("reference", references), *((rule, runs[canonical(stack)]) for (_, rule), stack in stacks.items())]
    rows = [row for rule, pairs in groups if (row := sweep_row(rule, pairs))]
    columns = ("rule", "reference_low", "reference_high", "largest_batch", "broken_at")
    return [
        StudyTable("steps_to_quality", SweepRow._fields, [tuple(row) for row in rows], NOTE),
        StudyTable("break_point", columns, break_points(rows), BREAK),
    ]


def break_points(rows: Sequence[SweepRow]) -> list[tuple[str, float, float, int | None, int | None]]:
    """Returns a row for each rule, which BREAK describes; no rows where the reference has no interval."""
    reference = next((row for row in rows if row.rule == "reference"), None)
    if reference is None or reference.final_loss_low is None or reference.final_loss_high is None:
        return []
    low, high, points = reference.final_loss_low, reference.final_loss_high, []
    for rule in get_args(Rule):
        losses = {row.batch_size: row.final_loss for row in rows if row.rule == rule}
        held = [size for size, loss in losses.items() if loss is not None and loss <= high]
        if losses:
            points.append((rule, low, high, max(held, default=None), min(losses.keys() - held, default=None)))
    return points


def plot(tables: Sequence[StudyTable]) -> Figure:
    """Draws a line for each rule, from the reference on."""
    from matplotlib.figure import Figure

    rows = [SweepRow(*record) for record in tables[0].rows]
    start = [row for row in rows if row.rule == "reference"]
    figure = Figure(figsize=(9, 4), layout="constrained")
    rules = {rule: [*start, *(row for row in rows if row.rule == rule)] for rule in get_args(Rule)}
    draw(figure, {f"rule: {rule}": line for rule, line in rules.items()}, f"rule: {get_args(Rule)[0]}")
    return figure
