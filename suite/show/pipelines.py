"""A pipeline's schedule as the papers draw it: a row for each rank, a box for each pass, the bubble left blank."""

from __future__ import annotations

from suite.pipeline.schedule import Schedule
from suite.pipeline.simulate import Timeline, simulated
from suite.show.drawing import Drawing, Group, Line, Mark, Words

UNIT, ROW, LEFT, TOP = 20.0, 22.0, 60.0, 8.0
STYLE = {"forward": "band technique", "backward": "band worse"}
MOST_UNITS = 44.0


def picture(schedule: Schedule, steps: int = 2, backward: int = 2) -> Drawing:
    """The first training steps, a forward pass being one unit long and a backward pass ``backward``. A box has the
    number of its micro-batch; blue goes forward, orange backward; a line is an update of the rank's weights."""
    timeline = simulated(schedule.program(steps), schedule.stages, backward)
    shown = min(float(timeline.end), MOST_UNITS)
    marks: list[Mark] = []
    for rank in range(len(timeline.ranks)):
        marks.append(Words(LEFT - 8, TOP + (rank + 0.7) * ROW, f"rank {rank}", anchor="end"))
        marks += _row(timeline, rank, shown)
    bubble = float(timeline.bubble())
    label = f"{len(timeline.ranks)} ranks, {steps} training steps of {schedule.micro_batches} micro-batches"
    below = TOP + len(timeline.ranks) * ROW + 18
    marks.append(Words(LEFT, below, f"{label}: the ranks wait {bubble:.0%} of the time", kind="tick"))
    return Drawing(LEFT + shown * UNIT + 8, below + 8, marks, label)


def _row(timeline: Timeline, rank: int, shown: float) -> list[Mark]:
    top, marks = TOP + rank * ROW, list[Mark]()
    for slot in timeline.ranks[rank]:
        start, end = LEFT + float(slot.start) * UNIT, LEFT + float(slot.end) * UNIT
        if float(slot.end) > shown:
            continue
        if slot.op.kind == "update":
            marks.append(Line("axis", [(start, top), (start, top + ROW - 3)]))
            continue
        box = [(start + 0.5, top), (end - 0.5, top), (end - 0.5, top + ROW - 3), (start + 0.5, top + ROW - 3)]
        number = Words((start + end) / 2, top + ROW - 8, str(slot.op.micro), anchor="middle")
        says = f"{slot.op.kind} pass of micro-batch {slot.op.micro} on stage {slot.op.stage}, version {slot.op.version}"
        marks.append(Group([Line(STYLE[slot.op.kind], box, closed=True), number], says))
    return marks
