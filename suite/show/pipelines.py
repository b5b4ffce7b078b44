"""Draws a pipeline's schedule as the papers draw it: a row for each rank, a box for each pass, the bubble left
blank."""

from __future__ import annotations

from fractions import Fraction

from suite.pipeline.simulated import Timeline, bubble_in_the_middle, bubble_of_a_step, simulated
from suite.pipeline.timetable import PipelineSchedule, Program
from suite.show.pictures.drawing import Drawing, Line, Mark, MarkGroup, Words

UNIT, ROW, LEFT, TOP = 20.0, 22.0, 60.0, 8.0
STYLE = {"forward": "band technique", "backward": "band worse"}
SHOWN_UNITS = 44
MANY_STEPS = 60  # after which a pipeline that never drains has long been full


def picture(schedule: PipelineSchedule, backward: int = 2) -> Drawing:
    """Draws the first 44 units of time, a forward pass being one unit long and a backward pass ``backward``. A box has
    the number of its micro-batch; blue goes forward, orange backward; a line is an update of the rank's weights."""
    steps, timeline = 1, simulated(schedule.program(1), schedule.stages, backward)
    while min(slots[-1].end for slots in timeline.ranks) < SHOWN_UNITS:
        steps += 1
        timeline = simulated(schedule.program(steps), schedule.stages, backward)
    marks: list[Mark] = []
    for rank in range(schedule.ranks):
        marks.append(Words(LEFT - 8, TOP + (rank + 0.7) * ROW, f"rank {rank}", anchor="end"))
        marks += _row(timeline, rank)
    batch = "1 micro-batch" if schedule.micro_batches == 1 else f"{schedule.micro_batches} micro-batches"
    label = f"{schedule.ranks} ranks, {batch} a training step"
    below = TOP + schedule.ranks * ROW + 18
    marks.append(Words(LEFT, below, f"{label}: {_waiting(schedule, backward)}"))
    return Drawing(LEFT + SHOWN_UNITS * UNIT + 8, below + 8, marks, label)


def _waiting(schedule: PipelineSchedule, backward: int) -> str:
    if _drains(schedule.step(0)):
        return f"the ranks wait {_percent(bubble_of_a_step(schedule, backward))} of the time"
    bubble = bubble_in_the_middle(schedule, MANY_STEPS, backward)
    return f"once it is full, the ranks wait {_percent(bubble)} of the time"


def _percent(share: Fraction) -> str:
    return f"{float(share):.0%}".replace("%", " %")


def _drains(step: Program) -> bool:
    """Tells whether a training step leaves nothing under way."""
    kinds = [op.kind for ops in step for op in ops]
    return kinds.count("forward") == kinds.count("backward")


def _row(timeline: Timeline, rank: int) -> list[Mark]:
    top, marks = TOP + rank * ROW, list[Mark]()
    for slot in timeline.ranks[rank]:
        start, end = LEFT + float(slot.start) * UNIT, LEFT + float(slot.end) * UNIT
        if slot.end > SHOWN_UNITS:
            break
        if slot.op.kind == "update":
            marks.append(Line("axis", [(start, top), (start, top + ROW - 3)]))
            continue
        box = [(start + 0.5, top), (end - 0.5, top), (end - 0.5, top + ROW - 3), (start + 0.5, top + ROW - 3)]
        number = Words((start + end) / 2, top + ROW - 8, str(slot.op.micro), anchor="middle")
        says = f"{slot.op.kind} pass of micro-batch {slot.op.micro} on stage {slot.op.stage}, version {slot.op.version}"
        marks.append(MarkGroup([Line(STYLE[slot.op.kind], box, closed=True), number], says))
    return marks
