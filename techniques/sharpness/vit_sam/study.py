"""Flatness against the radius of the ball: what SAM does to the places where a run ends.

Chen, Hsieh & Gong (arXiv 2106.01548), table 1 and section 4, compare the Hessian's largest eigenvalue and the active
units of trained networks. A radius of 0 is the plain optimizer, measured by the same probes.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from suite.measure.lab import Lab, StudyTable
from suite.record.job import canonical
from suite.record.schema import Learned

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RADII = (0.0, 0.05, 0.2, 0.5)
NOTE = "Medians over the seeds, at the end of the run; a radius of 0 is the plain optimizer at half the compute"


class Row(NamedTuple):
    """One radius; shares are of hidden MLP units, in all blocks and in the first quarter of them."""

    rho: float
    seeds: int
    lambda_max: float
    ascent_rise: float
    active_share: float
    active_share_first: float
    test_loss: float
    accuracy: float


def study(lab: Lab) -> list[StudyTable]:
    """The table ``flatness``, a row for each radius of which a seed finished."""
    stacks = {rho: f"vit_sam:rho={rho}" for rho in RADII}
    runs = lab.runs(list(stacks.values()))
    finished = {rho: [each for _, each in runs[canonical(stack)]] for rho, stack in stacks.items()}
    rows = [each for rho, contenders in finished.items() if (each := row(rho, contenders))]
    return [StudyTable("flatness", Row._fields, [tuple(each) for each in rows], NOTE)]


def row(rho: float, contenders: Sequence[Learned]) -> Row | None:
    """The row of the runs at one radius, one a seed; None where none finished."""
    good = [each for each in contenders if each.status == "ok" and each.probes]
    ends = [each.final for each in good if each.final]
    if not ends:
        return None

    def probe(name: str) -> float:
        return median(each.probes[f"vit_sam.{name}"] for each in good)

    return Row(
        rho,
        len(good),
        probe("lambda_max"),
        probe("ascent_rise"),
        probe("active_share"),
        probe("active_share_first"),
        median(each.loss for each in ends),
        median(each.metrics["accuracy"] for each in ends),
    )


def plot(tables: Sequence[StudyTable]) -> Figure:
    """The largest eigenvalue and the share of active units in the first blocks, over the radius."""
    from matplotlib.figure import Figure

    rows = [Row(*each) for each in tables[0].rows]
    figure = Figure(figsize=(7, 3.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    radii = [each.rho for each in rows]
    left.plot(radii, [each.lambda_max for each in rows], marker="o")
    left.set(xlabel="rho", ylabel="largest eigenvalue of the Hessian", yscale="log")
    right.plot(radii, [each.active_share_first for each in rows], marker="o")
    right.set(xlabel="rho", ylabel="active units in the first blocks (share)")
    return figure
