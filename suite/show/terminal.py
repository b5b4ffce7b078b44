"""Writes one row as plain lines for a terminal."""

from __future__ import annotations

import math

from suite.judge.metrics import COLUMNS
from suite.judge.rows import Row, of_version
from suite.show.pages.board import (
    HEADLINE,
    SAID,
    THREEFOLD,
    against_text,
    change,
    effect_text,
    evidence_text,
    failure_lines,
    leaning,
    missing,
    number,
    setup_text,
    text,
    unverified_text,
)


def summary(row: Row) -> str:
    """Says what was compared, every number with its interval or the reason why there is none, and what failed."""
    lines = [f"{row.stack} {against_text(row)}, {evidence_text(row)}, {row.machine.name}"]
    lines += [f"{unverified_text(row)}: the code changed since; measure again"] if row.unverified else []
    lines += [of_version(row)] if row.newer_version else []
    lines += [f"failed: {line}" for line in failure_lines(row)]
    if row.failed:
        return "\n".join(lines)
    for column in COLUMNS:
        value = row.value(column.name)
        higher = "higher is better" if column.direction == "higher" and value.kind in ("measured", "bound") else ""
        reason = "" if value.reason in SAID else value.reason
        note = "" if value.note == f"curve learned on {row.machine.name}" else value.note
        remark = "; ".join(filter(None, (higher, change(value, column.unit) or reason, note)))
        lines.append(f"  {column.heading:<26}{text(value, column.direction):<24}{remark}".rstrip())
    if row.setup:
        lines.append(f"  {'set-up':<26}{setup_text(row):<24}reference steps beyond the reference's own")
    for name, interval in row.probes.items():
        lines.append(f"  {name:<25} {number(interval.estimate, 3)}")
    if math.isfinite(row.detectable_effect):
        lines.append(_visible(row))
    return "\n".join([*lines, *row.notes, *filter(None, [missing(row), answer(row)])])


def _visible(row: Row) -> str:
    """Says the smallest change that would have shown."""
    if row.detectable_effect > THREEFOLD:
        return f"not even a threefold change of the {HEADLINE.title} would probably have shown"
    return f"a change of the {HEADLINE.title} of {effect_text(row.detectable_effect)} or more would probably have shown"


def answer(row: Row) -> str:
    """Writes the headline as a sentence; empty where it is not known."""
    value = row.value(HEADLINE.name)
    if value.kind not in ("measured", "bound"):
        return ""
    factor = text(value, HEADLINE.direction).replace("×", "")
    sure = {1: "sooner", -1: "later", 0: "no sooner and no later, as far as one can tell"}[leaning(value)]
    return f"{row.stack} comes to the same quality {sure}: {factor} times as fast as {row.reference}"
