"""One row as a figure: test loss against cost, and the paired step-time ratio of every round."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from suite.judge.metrics import COLUMNS
from suite.judge.rows import Row
from suite.record.files import replacing
from suite.show.board import text


def figure(row: Row) -> Figure:
    """Left: test loss of every seed against cost in reference steps, set-up included. Right: cost ratio per round.

    Raises ValueError when no seed finished.
    """
    if row.failed:
        raise ValueError(f"no seed of {row.stack} finished, so there is nothing to draw")
    stack, reference = (name.replace("$", r"\$") for name in (row.stack, row.reference))  # text, not mathematics
    drawn = Figure(figsize=(11, 4.2), layout="constrained")  # no pyplot: no window, no global state
    loss, ratio = drawn.subplots(1, 2)
    for each in row.replicates:
        first = each is row.replicates[0]
        spent, losses = each.costs + each.setup_cost, each.contender_curve[:, 1]
        loss.plot(*each.reference_curve.T, color="0.45", linestyle="--", label=reference if first else None)
        loss.plot(spent, losses, color="C0", label=stack if first else None)
        rounds = np.arange(each.warmup, each.warmup + len(each.step_log_ratios))
        ratio.plot(rounds, np.exp(each.step_log_ratios), ".", markersize=4, alpha=0.6, label=f"seed {each.seed}")
    loss.set(xlabel="cost in reference steps", ylabel="test loss")
    loss.legend(frameon=False)
    ratio.axhline(1.0, color="0.45", linestyle="--")
    step = row.metrics["step_time"].interval
    if step:
        ratio.axhline(step.estimate, color="C0")
        if np.isfinite(step.half_width):
            ratio.axhspan(step.low, step.high, color="C0", alpha=0.2, linewidth=0)
    ratio.set(xlabel="round", ylabel=f"step time over that of {reference}", yscale="log")
    ratio.legend(frameon=False, ncols=2)
    ratio.yaxis.set_major_formatter("{x:.2f}")
    ratio.yaxis.set_minor_formatter("{x:.2f}")
    conditions = row.conditions
    headline = ", ".join(f"{each.heading} {text(row.value(each.name), each.direction)}" for each in COLUMNS[:2])
    drawn.suptitle(
        f"{stack} on {conditions.baseline} {conditions.size} ({conditions.recipe}), {row.machine.name}\n{headline}",
        fontsize="medium",
    )
    return drawn


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
        raise ValueError(f"{path}: a picture's suffix says its format: .{', .'.join(sorted(formats))}")
