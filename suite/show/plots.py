"""One row as a figure: what it learned, what every round of its timing cost, and what its loss is worth."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from suite.judge.metrics import COLUMNS
from suite.judge.rows import Row
from suite.record.files import replacing
from suite.show.board import bounded, evidence_text, text
from suite.show.charts import BAND, DOTS, learning_curves, loss_ticks, ruler_points

REFERENCE, TECHNIQUE = "0.45", "C0"


def figure(row: Row) -> Figure:
    """A panel for each kind of evidence that the row has: learning curves, paired step times, the ruler.

    Raises ValueError when there is none to draw.
    """
    panels: list[Callable[[Row, Axes], None]] = []
    panels += [_curves] if learning_curves(row) else []
    panels += [_ratios] if row.known.timed else []
    panels += [_ruler] if row.known.ruler else []
    if row.failed or not panels:
        raise ValueError(f"nothing of {row.stack} was learned or timed, so there is nothing to draw")
    drawn = Figure(figsize=(1.5 + 4.75 * len(panels), 4.2), layout="constrained")  # no pyplot: no window, no globals
    for panel, axes in zip(panels, drawn.subplots(1, len(panels), squeeze=False)[0], strict=True):
        panel(row, axes)
    at = row.conditions
    shown = [COLUMNS[0], *(each for each in COLUMNS if each.name == "step_time")]
    headline = ", ".join(f"{each.heading} {text(row.value(each.name), each.direction)}" for each in shown)
    where = f"{row.stack} on {at.baseline} {at.size} ({at.recipe}), {evidence_text(row)}, {row.machine.name}"
    drawn.suptitle(_plain(f"{where}\n{headline}"), fontsize="medium")
    return drawn


def _plain(words: str) -> str:
    """The words as text, not as mathematics."""
    return words.replace("$", r"\$")


def _curves(row: Row, axes: Axes) -> None:
    """Validation loss over progress: the mean over seeds, each seed thin."""
    for side in learning_curves(row):
        ours = side.kind == "technique"
        colour, dashes = (TECHNIQUE, "-") if ours else (REFERENCE, "--")
        for line in side.seeds:
            axes.plot(*line.T, color=colour, linewidth=0.6, alpha=0.5)
        axes.plot(*side.mean.T, color=colour, linestyle=dashes, label=_plain(row.stack if ours else row.reference))
    axes.set(xlabel="progress in reference steps", ylabel="validation loss")
    axes.legend(frameon=False)


def _ratios(row: Row, axes: Axes) -> None:
    """The step-time ratio of every round, where in the run it was timed."""
    for each in row.known.timed:
        ends = [*each.progress[1:], 1.0]
        places = [
            low + (high - low) * (np.arange(len(ratios)) + 0.5) / len(ratios)
            for low, high, ratios in zip(each.progress, ends, each.window_log_ratios, strict=True)
        ]
        axes.plot(
            np.concatenate(places), np.exp(each.step_log_ratios), ".", markersize=4, alpha=0.6,
            label=f"timing {each.replicate}",
        )  # fmt: skip
    for edge in row.known.timed[0].progress[1:]:
        axes.axvline(edge, color="0.85", linewidth=0.8)
    axes.axhline(1.0, color=REFERENCE, linestyle="--")
    step = row.value("step_time").interval
    if step:
        axes.axhline(step.estimate, color=TECHNIQUE)
        if bounded(step):
            axes.axhspan(step.low, step.high, color=TECHNIQUE, alpha=0.2, linewidth=0)
    axes.set(xlabel="progress of the run", ylabel=_plain(f"step time over that of {row.reference}"), yscale="log")
    axes.set_xlim(0, 1)
    axes.legend(frameon=False, ncols=2, fontsize="small")
    axes.yaxis.set_major_formatter("{x:.2f}")
    axes.yaxis.set_minor_formatter("{x:.2f}")


def _ruler(row: Row, axes: Axes) -> None:
    """The reference's final loss against its budget, and where the technique ended."""
    curve = row.known.ruler
    assert curve is not None
    budgets = np.exp(curve.log_budgets)
    for losses in curve.losses:
        axes.plot(budgets, losses, ".", color=REFERENCE, markersize=3, alpha=0.7)
    fine = np.linspace(curve.log_budgets[0], curve.log_budgets[-1], DOTS)
    fitted = np.array([curve.log_loss(each) for each in fine])
    half = BAND * np.interp(fine, curve.log_budgets, curve.log_errors)
    axes.plot(np.exp(fine), np.exp(fitted), color=REFERENCE, label="reference")
    axes.fill_between(
        np.exp(fine), np.exp(fitted - half), np.exp(fitted + half), color=REFERENCE, alpha=0.2, linewidth=0
    )
    for point in ruler_points([row]):
        if point.beyond:
            end = budgets[-1 if point.beyond > 0 else 0]
            axes.plot(end, point.loss, ">" if point.beyond > 0 else "<", color=TECHNIQUE, label=_plain(row.stack))
        else:
            spread = [[point.budget - point.low], [point.high - point.budget]]
            axes.errorbar(point.budget, point.loss, xerr=spread, fmt="o", color=TECHNIQUE, label=_plain(row.stack))
    axes.axvline(1.0, color="0.85", linewidth=0.8)
    axes.set(xlabel="budget over the reference's own", ylabel="final test loss", xscale="log", yscale="log")
    axes.set_xticks(budgets, [f"{share:g}×" for share in curve.shares])
    axes.minorticks_off()
    low, high = axes.get_ylim()
    ticks = loss_ticks(math.log(low), math.log(high))
    axes.set_yticks([math.exp(tick) for tick, _ in ticks], [words for _, words in ticks])
    axes.legend(frameon=False)


def draw(row: Row, path: Path) -> None:
    """Writes the figure in the format of the file's suffix. Raises ValueError for one that matplotlib cannot write."""
    save(figure(row), path)


def save(drawn: Figure, path: Path) -> None:
    """Writes a figure, whole or not at all, in the format of the file's suffix. Raises ValueError for another."""
    check_format(path)
    with replacing(path) as partial:
        drawn.savefig(partial, dpi=150, format=path.suffix[1:])


def check_format(path: Path) -> None:
    """Raises ValueError, before minutes are spent, for a suffix that matplotlib cannot write."""
    formats = Figure().canvas.get_supported_filetypes()
    if path.suffix[1:].lower() not in formats:
        raise ValueError(f"{path}: a picture's suffix says its format: .{', '.join(sorted(formats))}")
