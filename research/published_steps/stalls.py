"""Tells which rows of a grid over ranks say nothing of operators or links, by pairs of its rows and never by a model.

Two rows of one layout (model, nodes, and how data, tensors and stages lie on them) differ in their micro batch or in
ZeRO's stage alone. They do the same work, so a row is set apart where its pairs say that something else was timed:

    stalled   it takes a quarter more than another of its layout, its own passes counted for as long as the other's
    fixed     its pass takes as long as another's of twice the sequences or more: what it waits for is no work
    alone     it is on several nodes, where pairs show both, and no other row of its layout has a result

An update of a layout on one node is never so; on 64 nodes most are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

SLACK = 1.25
"""Rows that repeat a configuration differ by 5 to 25 %."""
LAYOUT = ("model", "kv_heads", "nodes", "dp", "pp", "tp")
STALLED = "it stalled: another row of its layout does the same work in much less"
FIXED = "its passes take as long as those of twice the sequences: they wait for something that is no work"
ALONE = "no other row of its layout says whether it stalled"
Line = Mapping[str, str]


def set_apart(lines: Sequence[Line]) -> list[str]:
    """Returns why each line is set apart; empty for those that are judged, and for those without a result."""
    layouts: dict[tuple[str, ...], list[Line]] = defaultdict(list)
    for line in lines:
        if line["status"] == "measured":
            layouts[tuple(line[name] for name in LAYOUT)].append(line)
    return [
        _why(line, [other for other in layouts[tuple(line[name] for name in LAYOUT)] if other is not line])
        if line["status"] == "measured"
        else ""
        for line in lines
    ]


def _why(line: Line, others: Sequence[Line]) -> str:
    if any(_seconds(line) > SLACK * _seconds(other) * max(1.0, _passes(line) / _passes(other)) for other in others):
        return STALLED
    of_more = [other for other in others if int(other["micro_batch"]) >= 2 * int(line["micro_batch"])]
    if any(_seconds(other) / _passes(other) < SLACK * _seconds(line) / _passes(line) for other in of_more):
        return FIXED
    return ALONE if int(line["nodes"]) > 1 and not others else ""


def _seconds(line: Line) -> float:
    return float(line["step_time_ms"]) / 1e3


def _passes(line: Line) -> int:
    return int(line["grad_accumulation"]) + int(line["pp"]) - 1
