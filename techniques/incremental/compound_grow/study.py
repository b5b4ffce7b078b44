"""Compares growth in one dimension and in all, at equal FLOPs: the comparison behind the paper's "compound" (section
3.1).

Every contender makes as many steps as the reference, under one schedule that decays to the end. A dimension alone stays
small for so long that its run costs what the compound one does; one that cannot save that much stays small for nearly
the whole run, and its cost says so. Training from scratch, for as many steps as that cost pays for, is what all of them
must beat.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

from suite.judge.statistics import replicate_interval
from suite.record.job import canonical
from suite.record.schema import Counted, Learned
from suite.topics.studies.lab import Lab, StudyTable
from techniques.incremental.compound_grow.technique import CompoundGrow
from techniques.incremental.shared.growth_cost import growth_costs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ALONE = {
    "depth alone": "compound_grow:ffn=1,length=1",
    "MLP width alone": "compound_grow:depth=1,length=1",
    "length alone": "compound_grow:depth=1,ffn=1",
}
LONGEST = 0.95  # of the run, for a dimension that saves less than the compound: it must end whole
FIRST, SECOND = CompoundGrow().fractions
NOTE = (
    "FLOPs and steps over the reference's; the part of the steps at less than the whole; final test loss over the "
    "reference's of the same seed, mean and 95 % interval over the seeds. Equal FLOPs where they agree"
)


class Row(NamedTuple):
    """Records one contender; no interval for one seed."""

    contender: str
    flops: float
    small_part: float
    seeds: int
    loss: float | None
    low: float | None
    high: float | None


def study(lab: Lab) -> list[StudyTable]:
    """Returns the tables ``equal_flops`` and ``growth_cost``."""
    return [equal_flops(lab), growth_costs(lab, "compound_grow")]


def equal_flops(lab: Lab) -> StudyTable:
    compound = canonical("compound_grow")
    halves = {name: canonical(f"{stack},fractions=0.5/0.5") for name, stack in ALONE.items()}
    counts = lab.counts([compound, *halves.values()])
    if compound not in counts or any(stack not in counts for stack in halves.values()):
        return StudyTable("equal_flops", Row._fields, [], NOTE)
    cost = relative_cost(counts[compound], {0.1: FIRST, 0.3: SECOND - FIRST, 0.9: 1 - SECOND})
    stacks, known = {"compound": compound}, {"compound": (cost, SECOND)}
    for name, stack in ALONE.items():
        small = relative_cost(counts[halves[name]], {0.1: 1.0})
        part = small_part(cost, small)
        stacks[name] = canonical(f"{stack},fractions={part:g}/{part:g}")
        known[name] = (1 - part * (1 - small), part)
    stacks["from scratch"] = canonical(f"chinchilla:width=1,compute={cost:.3g}")
    known["from scratch"] = (cost, 0.0)
    runs = lab.runs(list(stacks.values()))
    rows = [row(name, *known[name], runs.get(stack, [])) for name, stack in stacks.items()]
    return StudyTable("equal_flops", Row._fields, [tuple(row) for row in rows], NOTE)


def relative_cost(counted: Counted, shares: Mapping[float, float]) -> float:
    """Returns the FLOPs of a run over the whole model's, from a step counted near each place and the share of the steps
    like it."""
    by_place = {point.progress: point.counters.flops for point in counted.points}
    whole = by_place[max(by_place)]
    near = {place: by_place[min(by_place, key=lambda at: abs(at - place))] for place in shares}
    return sum(share * near[place] / whole for place, share in shares.items())


def small_part(cost: float, small: float) -> float:
    """Returns the part p of the steps, at ``small`` times the whole's FLOPs, with which p small + 1 - p = ``cost``."""
    return min(LONGEST, round((1 - cost) / (1 - small), 3)) if small < 1 else LONGEST


def row(name: str, flops: float, part: float, pairs: Sequence[tuple[Learned, Learned]]) -> Row:
    ratios = [ours.final.loss / theirs.final.loss for theirs, ours in pairs if ours.final and theirs.final]
    spread = replicate_interval(ratios) if len(ratios) > 1 else None
    return Row(
        name,
        flops,
        part,
        len(ratios),
        fmean(ratios) if ratios else None,
        spread.low if spread else None,
        spread.high if spread else None,
    )


def plot(tables: Sequence[StudyTable]) -> Figure:
    """Draws each contender's loss with its interval, beside its FLOPs."""
    from matplotlib.figure import Figure

    rows = [Row(*record) for record in tables[0].rows]
    figure = Figure(figsize=(6, 3.5), layout="constrained")
    axes = figure.subplots()
    for place, row in enumerate(rows):
        if row.low is not None and row.high is not None:
            axes.plot([row.low, row.high], [place, place], color="grey")
        if row.loss is not None:
            axes.plot([row.loss], [place], marker="o", color="black")
    axes.set_yticks(range(len(rows)), [f"{row.contender}\n{row.flops:.2f} of the FLOPs" for row in rows])
    axes.axvline(1, linestyle="--", color="grey")
    axes.set(xlabel="final loss over the reference's")
    return figure
