"""Places names beside the points of a plot, none over another: greedy and deterministic, with a line where one stands
off.

A name takes the first free place of a fixed list, the nearest first, in twelve directions. Points and what else is to
stay readable are given as boxes. A name for which there is no room is left out; a pointer finds it.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from suite.judge.statistics import Floats
from suite.show.pictures.drawing import Line, Mark, Words

Box = tuple[float, float, float, float]  # left, top, right, bottom

HEIGHT = 13.0
LETTER = 6.9  # of 12 px type, on average; names are of small letters and digits
LONGEST = 28
CLEAR = 9.0  # of the point's own mark
STEP = 6.0  # between the boxes that keep a leading line free

AWAY, _TURN = (
    grid.ravel()
    for grid in np.meshgrid(
        (0.0, 12.0, 24.0, 38.0, 54.0, 72.0, 92.0),
        np.radians((0, 180, -30, 30, 210, 150, -60, 60, 240, 120, -90, 90)),  # clockwise from the right
        indexing="ij",
    )
)
ACROSS, DOWN = np.cos(_TURN), np.sin(_TURN)
EDGE = CLEAR / np.maximum(np.abs(ACROSS), np.abs(DOWN))  # of the square that the point takes
BEHIND = np.where(ACROSS > 0.1, 0.0, np.where(ACROSS < -0.1, 1.0, 0.5))  # the share of the name left of its place


class Labels:
    """Places for names inside ``bounds``, clear of the boxes ``taken``."""

    def __init__(self, bounds: Box, taken: Iterable[Box] = ()) -> None:
        self._bounds = bounds
        self._taken: Floats = np.zeros((0, 4))
        self.take(taken)

    def take(self, boxes: Iterable[Box]) -> None:
        """Keeps later names off these, too."""
        new = np.array(list(boxes), dtype=np.float64).reshape(-1, 4)
        self._taken = np.concatenate([self._taken, new])

    def place(self, x: float, y: float, name: str) -> list[Mark]:
        """Returns the name of the point at (x, y), and a line to it where it stands off; nothing where there is no
        room."""
        short = shortened(name)
        boxes = _candidates(x, y, LETTER * len(short))
        left, top, right, bottom = self._bounds
        inside = (boxes[:, 0] >= left) & (boxes[:, 1] >= top) & (boxes[:, 2] <= right) & (boxes[:, 3] <= bottom)
        boxes, which = boxes[inside], np.flatnonzero(inside)
        for at in np.flatnonzero(self._free(boxes)):
            lead = _lead(x, y, int(which[at]))
            around = [_around(*point, 1.5) for point in lead]
            if not lead or self._free(np.array(around)).all():
                box = boxes[at]
                self.take([tuple(box), *around])
                ends: list[Mark] = [Line("lead", [lead[0], lead[-1]])] if lead else []
                return [*ends, Words(float(box[0]), float(box[3]) - 3, short, kind="name")]
        return []

    def _free(self, boxes: Floats) -> NDArray[np.bool_]:
        """Tells which of the boxes [n, 4] lie over nothing that is taken."""
        new, old = boxes[:, None, :], self._taken[None, :, :]
        over = (new[..., 0] < old[..., 2]) & (old[..., 0] < new[..., 2])
        over &= (new[..., 1] < old[..., 3]) & (old[..., 1] < new[..., 3])
        return np.asarray(~over.any(axis=1))


def shortened(name: str) -> str:
    """Returns the name as it is drawn."""
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…"


def _around(x: float, y: float, half: float) -> Box:
    return x - half, y - half, x + half, y + half


def point_box(x: float, y: float) -> Box:
    """Returns the box that a point's own mark takes."""
    return _around(x, y, CLEAR - 2)


def _candidates(x: float, y: float, length: float) -> Floats:
    """Returns boxes [n, 4] for a name of this length, in the order of preference."""
    left = x + ACROSS * (EDGE + AWAY) - BEHIND * length
    top = y + DOWN * (EDGE + AWAY) + HEIGHT / 2 * (DOWN - 1)
    return np.column_stack([left, top, left + length, top + HEIGHT])


def _lead(x: float, y: float, which: int) -> list[tuple[float, float]]:
    """Returns points along the line to a candidate; none where it is near."""
    if not AWAY[which]:
        return []
    reach = np.linspace(EDGE[which], EDGE[which] + AWAY[which] - 2, 2 + int(AWAY[which] // STEP))
    return [(x + float(ACROSS[which] * distance), y + float(DOWN[which] * distance)) for distance in reach]
