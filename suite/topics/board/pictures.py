"""Draws the board's two pictures: memory against a step's time at the paper's size, and the time to the same quality
beside what others published at real scale. A point's name leads to its technique.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from suite.judge.helps import Gain
from suite.show.pages.labels import LETTER, Labels, point_box, shortened
from suite.show.pictures.axes import Axis, Frame, around
from suite.show.pictures.drawing import Dot, Drawing, Line, Mark, MarkGroup, Words, in_columns
from suite.topics.board.goals import ORDER, GoalLine, GoalTable, in_words, tables
from suite.topics.board.report import Report
from suite.topics.board.standing import Standing

WIDTH = 800
TIMES_WORTH_DRAWING = (0.3, 6.0)
MOST_LINES = 30
LINE, TOP, BESIDE = 22, 64, 140
KEY = (("same", "the same quality"), ("better", "better"), ("worse", "worse"), ("reference", "not known"))
"""Colours of the first picture, by what a technique does to quality."""
Links = Mapping[str, str]


@dataclass(frozen=True)
class SizedCost:
    """A technique's peak and step time at the paper's size, over its reference's; ``kind``: the colour of its
    quality."""

    name: str
    memory: float
    time: float
    kind: str = "reference"

    @property
    def says(self) -> str:
        return f"{self.name}: {self.memory:.2f} of the peak, {self.time:.2f} of a step's time"


def costs(tables: Sequence[GoalTable]) -> tuple[str, list[SizedCost]]:
    """Returns the model that most are known of, and its points: counted peaks beside modelled steps of one place."""
    by_place: dict[str, list[SizedCost]] = {}
    for line in (line for table in tables for line in table.lines):
        if line.at is None or line.time is None or not line.time.ratio or line.at.stack.place != line.time.place:
            continue
        if line.has_more_hardware:
            continue
        memory = line.at.ratio("peak_tensor_bytes")
        if memory and TIMES_WORTH_DRAWING[0] < line.time.ratio < TIMES_WORTH_DRAWING[1]:
            place = line.time.place
            by_place.setdefault(f"{place.baseline} {place.size}", []).append(
                SizedCost(line.stack, memory, line.time.ratio, _kind(line.quality_gain))
            )
    if not by_place:
        return "", []
    where = max(by_place, key=lambda name: (len(by_place[name]), name.startswith(ORDER[0])))
    return where, by_place[where]


def _kind(quality: Gain) -> str:
    if not quality.known:
        return "reference"
    return {1: "better", -1: "worse", 0: "same"}[quality.sure]


def front(points: Sequence[SizedCost]) -> list[SizedCost]:
    """Chooses those that none equals in memory and time while beating it in one; none whose quality is worse."""
    sound = [point for point in points if point.kind != "worse"]

    def beaten(a: SizedCost, b: SizedCost) -> bool:
        return (b.memory, b.time) != (a.memory, a.time) and b.memory <= a.memory and b.time <= a.time

    return sorted((a for a in sound if not any(beaten(a, b) for b in sound)), key=lambda point: point.time)


def memory_and_step(tables: Sequence[GoalTable], links: Links | None = None) -> Drawing | None:
    """Draws peak memory against a step's modelled time, a point a technique; None where nothing is known."""
    where, points = costs(tables)
    if not points:
        return None
    best = front(points)
    height = 500
    frame = Frame(
        64,
        44,
        WIDTH - 16,
        height - 50,
        Axis("step time on an A100 over the reference's, modelled", *around([1.0, *(point.time for point in points)])),
        Axis(f"peak memory over the reference's, {where}, exact", *around([1.0, *(point.memory for point in points)])),
    )
    px, py = frame.px, frame.py
    marks: list[Mark] = [
        *_key(8, 20),
        *frame.marks(),
        Line("one", [(px(1), frame.top), (px(1), frame.bottom)]),
        Line("one", [(frame.left, py(1)), (frame.right, py(1))]),
        Line("mean technique dashed", [(px(point.time), py(point.memory)) for point in best]),
    ]
    labels = Labels(
        (frame.left, frame.top, frame.right, frame.bottom),
        [point_box(px(point.time), py(point.memory)) for point in points],
    )
    for point in sorted(points, key=lambda point: (point not in best, point.memory, point.name)):
        x, y = px(point.time), py(point.memory)
        named = labels.place(x, y, point.name) if point in best or point.memory < 0.95 or point.time > 1.3 else []
        ring = [Dot("ring", x, y, 7.5)] if point in best else []
        marks.append(MarkGroup([*ring, _point(point, x, y), *named], point.says, (links or {}).get(point.name, "")))
    label = f"Peak memory against a step's modelled time of {len(points)} techniques on {where}; the tables have all."
    return Drawing(WIDTH, height, marks, label, "costs")


def _point(point: SizedCost, x: float, y: float) -> Mark:
    """Draws a point by its quality: form and colour alike say which."""
    if point.kind == "worse":
        return Line("dot worse", [(x, y - 6), (x + 6, y + 4), (x - 6, y + 4)], closed=True)
    return Dot(f"{'open' if point.kind == 'reference' else 'dot'} {point.kind}", x, y, 4.5)


def _key(x: float, y: float) -> list[Mark]:
    drawn: list[Mark] = [Words(x, y + 4, "quality:", kind="tick")]
    x += 58
    for kind, words in KEY:
        drawn += [_point(SizedCost("", 1, 1, kind), x, y), Words(x + 10, y + 4, words)]
        x += 34 + LETTER * len(words)
    front_at = [(x, y), (x + 26, y)]
    return [*drawn, Line("mean technique dashed", front_at), Words(x + 32, y + 4, "nothing takes less of both")]


def render(report: Report) -> str:
    """Draws both pictures as one file, an SVG. Raises ValueError where nothing is known of either."""
    of_goals = tables(Standing.of(report))
    drawn = [drawing for drawing in (memory_and_step(of_goals), same_quality(of_goals)) if drawing]
    if not drawn:
        raise ValueError("there is nothing to draw yet; measure some with: leantrain run")
    return in_columns(drawn, 1).file()


# the time to the same quality ---------------------------------------------------------------------------------------


def same_quality(tables: Sequence[GoalTable], links: Links | None = None) -> Drawing | None:
    """Draws the speedup at equal quality, a line a technique with its interval, the best first, and beside it what
    others published; None where nothing is known."""
    every = [line for table in tables for line in table.lines]
    known = [line for line in every if line.time_gain.known and line.time_gain.number > 0]
    known.sort(key=lambda line: (-line.time_gain.number, line.stack))
    published = [line for line in every if line not in known and line.others.words.startswith("×")]
    published.sort(key=lambda line: (-(line.others.sort or 0.0), line.stack))
    shown = [*_telling(known), *published][:MOST_LINES]
    if not shown:
        return None
    names = 12 + LETTER * max(len(shortened(line.stack)) for line in shown)
    height = TOP + LINE * len(shown) + 50
    ends = [end for line in shown for end in (line.time_gain.low, line.time_gain.high)]
    places = [end for end in ends if 0 < end < math.inf]
    low, high = around([1.0, *(min(max(place, 1 / 8), 8) for place in places)])
    axis = Axis("speedup at equal quality over the reference, measured here", low, high)
    frame = Frame(names + 8, TOP - 8, WIDTH - 320, height - 46, axis)
    one = frame.px(1)
    marks: list[Mark] = [
        Words(frame.left, 24, "here, small models", kind="head"),
        Words(frame.right + BESIDE, 24, "published, at real scale", kind="head"),
        *frame.marks(),
        Line("one", [(one, frame.top), (one, frame.bottom)]),
    ]
    for position, line in enumerate(shown):
        marks.append(_line(line, frame, TOP + LINE * (position + 0.5) - 8, names, (links or {}).get(line.stack, "")))
    label = f"Speedup at equal quality of {len(shown)} techniques with 95 % intervals, the best first."
    return Drawing(WIDTH, height, marks, label, "same-quality")


def _telling(known: Sequence[GoalLine]) -> list[GoalLine]:
    """Returns the lines that tell most, in order: what is sure or published first, where there is no room for all."""
    order = sorted(known, key=lambda line: (not line.time_gain.sure, not line.others.words))
    return [line for line in known if line in order[:MOST_LINES]]


def _line(line: GoalLine, frame: Frame, y: float, names: float, target: str) -> MarkGroup:
    gain, words = line.time_gain, in_words(line.time_gain) or "not known here"
    published = f"{line.others.words} ({line.others.note})" if line.others.note else line.others.words
    kind = {1: "better", -1: "worse", 0: "same"}[gain.sure] if gain.known else "reference"
    drawn: list[Mark] = [Words(names, y + 4, shortened(line.stack), "end", "name")]
    if gain.known and gain.number > 0:
        drawn += [Line(f"span {kind}", [(frame.px(gain.low), y), (frame.px(gain.high), y)])]
        drawn += [Dot(f"dot {kind}", frame.px(gain.number), y, 4)]
    drawn += [
        Words(frame.right + 10, y + 4, words, kind=f"number {kind}"),
        Words(frame.right + BESIDE, y + 4, published or "–"),
    ]
    return MarkGroup(drawn, f"{line.stack}: {words}; published: {published or 'nothing at scale'}", target)
