"""One row as plain lines for a terminal."""

from __future__ import annotations

import math

from suite.judge.metrics import COLUMNS
from suite.judge.rows import Row
from suite.show.board import against_text, change, count_text, failure_lines, number, setup_text, text


def summary(row: Row) -> str:
    """What was compared, every number with its interval or the reason why there is none, and what failed."""
    lines = [f"{row.stack} {against_text(row)}, {count_text(len(row.seeds))}, {row.machine.name}"]
    lines += [f"stale: {each}; measure again" for each in row.stale]
    lines += [f"failed: {line}" for line in failure_lines(row)]
    if row.failed:
        return "\n".join(lines)
    for column in COLUMNS:
        value = row.value(column.name)
        higher = "higher is better" if column.direction == "higher" and value.known else ""
        remark = "; ".join(filter(None, (higher, change(value, column.unit) or value.reason, value.note)))
        lines.append(f"  {column.heading:<18}{text(value, column.direction):<24}{remark}".rstrip())
    lines.append(f"  {'set-up':<18}{setup_text(row):<24}reference steps beyond the reference's own")
    for name, interval in row.probes.items():
        lines.append(f"  {name:<17} {number(interval.estimate, 3)}")
    if math.isfinite(row.detectable_effect):
        least = math.expm1(row.detectable_effect)
        lines.append(f"a step-time change below {least:.1%} would probably not have been seen")
    return "\n".join([*lines, *row.notes])
