"""Draws plots for a file: what is known of one pair, and the boards' plots side by side."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from suite.judge.metrics import COLUMNS
from suite.judge.rows import Row
from suite.show.pages.board import HEADLINE, Board, boards, bounded, evidence_text, text
from suite.show.pictures.axes import Axis, Frame, around
from suite.show.pictures.charts import CurveFrame, cost_and_quality, curves, forest, learning_curves, pareto, ruler
from suite.show.pictures.drawing import Dot, Drawing, Line, Mark, Words, in_columns
from suite.topics.board.report import Report

WIDTH, HEIGHT = 460, 340  # of a panel
SHADES = ("technique", "same", "reference")  # of timings, in turn


def figure(row: Row) -> Drawing:
    """Draws a panel for each kind of evidence that the row has: learning curves, paired step times, cost against
    quality.

    Raises ValueError when there is none to draw.
    """
    drawn = [curves(row, width=WIDTH, height=HEIGHT), _ratios(row), cost_and_quality(row, width=WIDTH, height=HEIGHT)]
    panels = [panel for panel in drawn if panel]
    if row.failed or not panels:
        raise ValueError(f"nothing of {row.stack} was learned or timed, so there is nothing to draw")
    at = row.conditions
    shown = [COLUMNS[0], *(column for column in COLUMNS if column.name == "step_time")]
    headline = ", ".join(f"{column.heading} {text(row.value(column.name), column.direction)}" for column in shown)
    where = f"{row.stack} on {at.baseline} {at.size} ({at.recipe}), {evidence_text(row)}, {row.machine.name}"
    whole = in_columns(panels, len(panels), where)
    legend: list[Mark] = []
    if learning_curves(row):
        legend = [
            Line("mean technique", [(8, 44), (34, 44)]),
            Words(40, 48, row.stack),
            Line("mean reference dashed", [(208, 44), (234, 44)]),
            Words(240, 48, row.reference),
        ]
    moved = [mark.moved(0, 24) if mark is not whole.marks[0] else mark for mark in whole.marks]
    return Drawing(whole.width, whole.height + 24, [*moved, *legend, Words(440, 48, headline)], whole.label)


def _ratios(row: Row) -> Drawing | None:
    """Draws the step-time ratio of every round, where in the run it was timed; the estimate with its interval."""
    if not row.known.timed:
        return None
    ratios = np.exp(np.concatenate([timing.step_log_ratios for timing in row.known.timed]))
    frame = Frame(
        68,
        14,
        WIDTH - 16,
        HEIGHT - 46,
        Axis("progress of the run", 0.0, 1.0, logarithmic=False),
        Axis(f"step time over that of {row.reference}", *around([1.0, *map(float, ratios)])),
    )
    drawn: list[Mark] = frame.marks()
    step = row.value("step_time").interval
    if step and bounded(step):
        corners = [(frame.left, step.high), (frame.right, step.high), (frame.right, step.low), (frame.left, step.low)]
        drawn.append(Line("band technique", [(x, frame.py(ratio)) for x, ratio in corners], closed=True))
    for timing, record in enumerate(row.known.timed):
        ends = [*record.progress[1:], 1.0]
        for low, high, logs in zip(record.progress, ends, record.window_log_ratios, strict=True):
            places = low + (high - low) * (np.arange(len(logs)) + 0.5) / len(logs)
            kind = f"dot {SHADES[timing % len(SHADES)]}"
            drawn += [
                Dot(kind, frame.px(float(place)), frame.py(math.exp(log)), 1.8)
                for place, log in zip(places, logs, strict=True)
            ]
    drawn.append(Line("one", [(frame.left, frame.py(1.0)), (frame.right, frame.py(1.0))]))
    if step:
        estimate = frame.py(step.estimate)
        drawn.append(Line("mean technique", [(frame.left, estimate), (frame.right, estimate)]))
    label = f"Step time of {row.stack} over that of {row.reference}, of every round of {len(row.known.timed)} timings."
    return Drawing(WIDTH, HEIGHT, drawn, label, "ratios")


# of boards ----------------------------------------------------------------------------------------------------------


def _curves_of(board: Board) -> Drawing | None:
    rows = [row for _, row in board.ranked]
    shared = CurveFrame.of(rows)
    panels = [_titled(row.stack, drawn) for row in rows if (drawn := curves(row, shared))]
    return in_columns(panels, 4) if panels else None


PLOTS: Mapping[str, Callable[[Board], Drawing | None]] = {
    "pareto": lambda board: pareto([row for _, row in board.ranked]),
    "forest": lambda board: forest([row for _, row in board.ranked]),
    "ruler": lambda board: ruler([row for _, row in board.ranked]),
    "curves": _curves_of,
}
"""What :func:`of_boards` draws: time against memory, intervals sorted by effect, the reference's scaling curve with
every technique on it, learning curves."""


def of_boards(report: Report, plot: str) -> Drawing:
    """Draws one of :data:`PLOTS` of every board, two beside each other. Raises ValueError where there is nothing to
    draw."""
    drawn = [(board.title, PLOTS[plot](board)) for board in boards(report.rows)]
    panels: Sequence[Drawing] = [_titled(title, panel) for title, panel in drawn if panel]
    if not panels:
        raise ValueError(f"none of these rows has what the plot {plot} shows ({HEADLINE.title}, curves, costs)")
    return in_columns(panels, 1 if plot == "curves" or len(panels) == 1 else 2)


def _titled(title: str, drawn: Drawing) -> Drawing:
    moved = [mark.moved(0, 26) for mark in drawn.marks]
    return Drawing(drawn.width, drawn.height + 26, [Words(8, 18, title, kind="head"), *moved], drawn.label)
