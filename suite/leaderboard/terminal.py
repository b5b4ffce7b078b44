"""One row as lines for a terminal: what a comparison found."""

from __future__ import annotations

from suite.leaderboard.board import COLUMNS, failure_lines, remarks, setup_text, text
from suite.results import Row
from suite.statistics import WITHIN_ONE_SEED

ABSOLUTE = {"step_time": ("ms", 1e3), "loss": ("", 1.0), "peak_tensor_bytes": ("MiB", 2.0**-20)}


def summary(row: Row) -> str:
    """Ratios with their intervals, then what the numbers do not say."""
    conditions = row.conditions
    where = f"{conditions.baseline} {conditions.size} {conditions.recipe} {conditions.task}"
    seeds = f"{len(row.seeds)} seed{'s' if len(row.seeds) != 1 else ''}"
    lines = [f"{row.stack} against {row.reference}: {where}, {seeds}, {row.machine.name}"]
    if row.failed:
        return "\n".join([*lines, *failure_lines(row)])
    columns = [column for column in COLUMNS if column.value(row).kind != "unavailable"]
    for column in columns:
        value = column.value(row)
        line = f"  {column.title + ' ' + column.arrow:22} {text(column, value):22}"
        if value.reference is not None and value.contender is not None and column.metric in ABSOLUTE:
            unit, scale = ABSOLUTE[column.metric]
            line += f" {value.reference * scale:.4g} -> {value.contender * scale:.4g} {unit}"
        lines.append(line.rstrip())
    lines.append(f"  {'set-up':22} {setup_text(row)} reference steps")
    lines += [f"  note: {each}" for each in remarks(row, columns)]
    lines.append("  ratios to the reference, 95 % intervals; ↑ a speedup, ↓ a cost; = exact count")
    step = row.metrics["step_time"].log
    if step and step.method == WITHIN_ONE_SEED:
        lines.append("  ° within one seed: it cannot see how processes differ; --seeds 3 can")
    return "\n".join(lines)
