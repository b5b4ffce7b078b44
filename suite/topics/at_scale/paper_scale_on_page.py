"""Shows what one technique takes at the papers' own sizes, on its own page: counts and modelled steps, a line for a
setting.

What is counted is exact; a modelled time stands slanted after ≈, with the band that it is believed in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from suite.judge.at_scale import CountsAtScale
from suite.record.paper_scale import Beside, PaperScale
from suite.record.placed import CountPlace
from suite.record.text import in_html
from suite.show.on_board import Draws, OnPage
from suite.show.pages import markup
from suite.show.pages.places import PlacedRow
from suite.topics.at_scale import paper_scale_on_board as paper_scale
from suite.topics.at_scale.answer import GPUS, with_band
from suite.topics.modelled_time.gpu_times import ModelledTime


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


def _part(placed: PlacedRow, own: SizesOfStack | None, counts: CountsAtScale) -> str:
    """Draws the part; where there is nothing, the command that counts it."""
    stack, title = placed.row.stack, "<h4>At the papers' own sizes</h4>"
    if own is None or not (own.counted or own.uncounted or own.times):
        command = f"leantrain count --keep -t {stack} -b {placed.row.conditions.baseline} --size base"
        return f"{title}<p>Not counted yet: {markup.code(command)}</p>"
    gpus = [gpu for gpu in GPUS if any(of == gpu for _, of in own.times)]
    lines = [_line(pair, gpus, own, counts) for pair in own.counted]
    heads = markup.head(["setting", *paper_scale.HEADINGS[1:], *(f"{gpu}, modelled" for gpu in gpus)])
    caption = f"{stack} at the papers' own sizes"
    drawn = markup.table(f"{placed.technique}--sizes", caption, heads, "\n" + "\n".join(lines) + "\n") if lines else ""
    reasons = [*own.uncounted, *_untimed(own.times.values())]
    why = markup.folded("Not counted or not modelled, and why", f"<ul>{markup.items(map(in_html, reasons))}</ul>")
    return f"{title}{drawn}{why if reasons else ''}"


def _line(pair: Beside, gpus: Sequence[str], own: SizesOfStack, counts: CountsAtScale) -> str:
    place = pair.stack.place
    short = " · ".join(place.title.split(" · ")[:4])
    name = f'<span title="{in_html(place.title)}">{in_html(short)}</span>{paper_scale.mark(counts, pair)}'
    cells = [markup.cell(words) for words in paper_scale.cells(pair)]
    return (
        f"<tr>{markup.row_head(place.title, name)}{''.join(cells)}"
        f"{''.join(_time(own.times.get((place, gpu))) for gpu in gpus)}</tr>"
    )


def _time(time: ModelledTime | None) -> str:
    if time is None or time.step_s is None:
        return markup.cell("n/a", "", "unavailable", time.unavailable if time else "not modelled")
    ratio = f", ≈{with_band(time)}" if time.ratio is not None else ""
    words = f'<span class="number">≈{1e3 * time.step_s:.3g} ms{in_html(ratio)}</span>'
    return markup.cell_of(words, f"{time.ratio or 0:.6g}", "modelled")


def _untimed(times: Iterable[ModelledTime]) -> list[str]:
    return [f"{time.place.title}, {time.gpu}: {time.unavailable}" for time in times if time.unavailable]


def _drawn(counts: CountsAtScale, times: Sequence[ModelledTime]) -> Draws:
    known = sizes(counts.counts, times)
    return lambda stack, placed: _part(placed[0], known.get(stack), counts)


ON_PAGE = OnPage(20, lambda report: _drawn(report.paper_scale, report.gpu_times.times))
