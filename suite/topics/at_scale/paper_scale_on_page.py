"""Shows what one technique takes at the papers' own sizes, on its own page: counts and modelled steps, a line for a
setting.

What is counted is exact; a modelled time stands slanted with the band that it is believed in.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from markupsafe import Markup

from suite.judge.at_scale import CountsAtScale
from suite.record.paper_scale import Beside, PaperScale
from suite.record.placed import CountPlace
from suite.show.pages.board import number
from suite.show.pages.markup import fragments
from suite.show.pages.places import PlacedRow
from suite.show.pages.rendered import macros_beside
from suite.topics.at_scale import paper_scale_on_board as paper_scale
from suite.topics.modelled_time.gpu_times import ModelledTime
from suite.topics.on_board import Draws, OnPage

DRAWN = macros_beside(__file__)


@dataclass
class SizesOfStack:
    """Holds what is known of a stack's sizes; ``counted``: where it was, ``uncounted``: why it was not; ``times`` by
    setting and GPU."""

    counted: list[Beside] = field(default_factory=list)
    uncounted: dict[str, None] = field(default_factory=dict)
    times: dict[tuple[CountPlace, str], ModelledTime] = field(default_factory=dict)


def sizes(counts: PaperScale, times: Iterable[ModelledTime]) -> Mapping[str, SizesOfStack]:
    """Returns all that is known at the papers' sizes, by stack."""
    of_stacks: dict[str, SizesOfStack] = {}
    for place, every in counts.beside().items():
        for pair in every:
            own = of_stacks.setdefault(pair.stack.stack, SizesOfStack())
            if pair.ratio(paper_scale.PEAK) is not None:
                own.counted.append(pair)
            elif pair.stack.unavailable:
                own.uncounted[f"{place.title}: {pair.stack.unavailable}"] = None
    for time in times:
        of_stacks.setdefault(time.stack, SizesOfStack()).times[time.place, time.gpu] = time
    return of_stacks


def _part(placed: PlacedRow, own: SizesOfStack | None, counts: CountsAtScale) -> Markup:
    """Draws the part; where there is nothing, the command that counts it."""
    stack = placed.row.stack
    if own is None or not (own.counted or own.uncounted or own.times):
        return DRAWN.uncounted(f"leantrain count --keep -t {stack} -b {placed.row.conditions.baseline} --size base")
    gpus = list(dict.fromkeys(gpu for _, gpu in own.times))
    lines = [_line(pair, gpus, own, counts) for pair in own.counted]
    heads = fragments.head(["setting", *paper_scale.HEADINGS[1:], *(f"{gpu}, modelled" for gpu in gpus)])
    caption = f"{stack} at the papers' own sizes"
    table = fragments.table(f"{placed.technique}--sizes", caption, heads, lines) if lines else ""
    return DRAWN.sizes(table, [*own.uncounted, *_untimed(own.times.values())])


def _line(pair: Beside, gpus: Sequence[str], own: SizesOfStack, counts: CountsAtScale) -> Markup:
    place = pair.stack.place
    short = " · ".join(place.title.split(" · ")[:4])
    name = DRAWN.place(place.title, short, paper_scale.mark(counts, pair))
    cells = map(fragments.cell, paper_scale.cells(pair))
    times = (_time(own.times.get((place, gpu))) for gpu in gpus)
    return fragments.row([fragments.row_head(place.title, name), *cells, *times])


def _time(time: ModelledTime | None) -> Markup:
    if time is None or time.step_s is None:
        return fragments.cell("n/a", "", "unavailable", time.unavailable if time else "not modelled")
    ratio = f", {with_band(time)}" if time.ratio is not None else ""
    words = fragments.value("", f"{1e3 * time.step_s:.3g} ms{ratio}", "")
    return fragments.cell_of(words, f"{time.ratio or 0:.6g}", "modelled")


def with_band(time: ModelledTime) -> str:
    """Writes, as in ``×0.80 [0.64, 1.00]``: a modelled ratio with the band that it is believed in."""
    return f"×{number(time.ratio or math.nan)} [{', '.join(map(number, time.band))}]"


def _untimed(times: Iterable[ModelledTime]) -> list[str]:
    return [f"{time.place.title}, {time.gpu}: {time.unavailable}" for time in times if time.unavailable]


def _drawn(counts: CountsAtScale, times: Sequence[ModelledTime]) -> Draws:
    known = sizes(counts.counts, times)
    return lambda stack, placed: _part(placed[0], known.get(stack), counts)


ON_PAGE = OnPage(20, lambda report: _drawn(report.paper_scale, report.gpu_times.times), "At the papers' own sizes")
