"""Compares flatness with the radius of the ball: what SAM does to the places where a run ends.

Chen, Hsieh & Gong (arXiv 2106.01548), table 1 and section 4, compare the Hessian's largest eigenvalue and the active
units of trained networks. A radius of 0 is the plain optimizer, measured by the same probes.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from suite.record.job import canonical
from suite.record.schema import Learned
from suite.topics.studies.lab import Lab, StudyTable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RADII = (0.0, 0.05, 0.2, 0.5)
NOTE = "Medians over the seeds, at the end of the run; a radius of 0 is the plain optimizer at half the compute"


class Row(NamedTuple):
    """Describes one radius; shares are of hidden MLP units, in all blocks and in the first quarter of them."""

    rho: float
    seeds: int
    lambda_max: float
    ascent_rise: float
    active_share: float
    active_share_first: float
    test_loss: float
    accuracy: float


def study(lab: Lab) -> list[StudyTable]:
    """Makes the table ``flatness``, a row for each radius of which a seed finished."""
    stacks = {rho: f"vit_sam:rho={rho}" for rho in RADII}
    runs = lab.runs(list(stacks.values()))
    finished = {rho: [contender for _, contender in runs[canonical(stack)]] for rho, stack in stacks.items()}
    rows = [measured for rho, contenders in finished.items() if (measured := row(rho, contenders))]
    return [StudyTable("flatness", Row._fields, [tuple(entry) for entry in rows], NOTE)]


def row(rho: float, contenders: Sequence[Learned]) -> Row | None:
    """Builds the row of the runs at one radius, one a seed; None where none finished."""
    good = [contender for contender in contenders if contender.status == "ok" and contender.probes]
    ends = [contender.final for contender in good if contender.final]
    if not ends:
        return None

    def probe(name: str) -> float:
        return median(contender.probes[f"vit_sam.{name}"] for contender in good)

    return Row(
        rho,
        len(good),
        probe("lambda_max"),
        probe("ascent_rise"),
        probe("active_share"),
        probe("active_share_first"),
        median(end.loss for end in ends),
        median(end.metrics["accuracy"] for end in ends),
    )


def plot(tables: Sequence[StudyTable]) -> Figure:
    """Draws the largest eigenvalue and the share of active units in the first blocks, over the radius."""
    from matplotlib.figure import Figure

    rows = [Row(*record) for record in tables[0].rows]
    figure = Figure(figsize=(7, 3.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    radii = [entry.rho for entry in rows]
    left.plot(radii, [entry.lambda_max for entry in rows], marker="o")
    left.set(xlabel="rho", ylabel="largest eigenvalue of the Hessian", yscale="log")
    right.plot(radii, [entry.active_share_first for entry in rows], marker="o")
    right.set(xlabel="rho", ylabel="active units in the first blocks (share)")
    return figure
