"""Draws series of ratios over time as a figure, with their change points."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from suite.record.files import replacing
from suite.show.pictures.drawing import check_format
from suite.topics.history.change_points import ChangePoint, Series

MOST_PANELS = 12


def figure(all_series: Sequence[Series], steps: Sequence[ChangePoint]) -> Figure:
    """Draws a panel for each series, those with change points first: ratios in order of time, levels, steps with
    intervals.

    Raises ValueError when there is nothing to draw.
    """
    of: Mapping[int, list[ChangePoint]] = {
        id(series): [step for step in steps if step.series is series] for series in all_series
    }
    chosen = sorted(all_series, key=lambda series: (-len(of[id(series)]), -len(series.points)))[:MOST_PANELS]
    if not chosen:
        raise ValueError("there is no series to draw")
    drawing = Figure(figsize=(9, 2.6 * len(chosen)), layout="constrained")  # no pyplot: no window, no global state
    for axes, series in zip(drawing.subplots(len(chosen), squeeze=False)[:, 0], chosen, strict=True):
        for machine in dict.fromkeys(point.machine for point in series.points):
            places = [place for place, point in enumerate(series.points) if point.machine == machine]
            axes.plot(places, np.exp(series.values[places]), ".", label=machine.replace("$", r"\$"))
        cuts = [0, *(step.at for step in of[id(series)]), len(series.points)]
        for low, high in pairwise(cuts):
            axes.hlines(math.exp(np.median(series.values[low:high])), low - 0.5, high - 0.5, color="0.3")
        for step in of[id(series)]:
            axes.axvline(step.at - 0.5, color="C3")
            axes.axvspan(step.low - 0.5, step.high - 0.5, color="C3", alpha=0.15, linewidth=0)
        axes.axhline(1.0, color="0.6", linestyle=":")
        axes.set_title(series.name.replace("$", r"\$"), fontsize="small", loc="left")
        axes.set(ylabel="ratio to reference", xlabel="replicate, oldest first")
        axes.legend(frameon=False, fontsize="x-small")
    return drawing


def draw(all_series: Sequence[Series], steps: Sequence[ChangePoint], path: Path) -> None:
    """Writes the figure in the format of the file's suffix. Raises ValueError for an unknown one."""
    check_format(path)
    with replacing(path) as partial:
        figure(all_series, steps).savefig(partial, dpi=150, format=path.suffix[1:].lower())
