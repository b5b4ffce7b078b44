"""Answers what a person with a GPU and a larger model asks first, of each technique: bytes and FLOPs counted at the
papers' own sizes, a step's time modelled on named GPUs, the equivalent budget with its trend. What was measured here
stands behind.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from suite.judge.at_scale import CountsAtScale
from suite.judge.metrics import METRICS
from suite.judge.rows import Row
from suite.judge.trend import in_words, trend
from suite.judge.verdicts import NOT_EXERCISED
from suite.record.job import RecipeName, Size
from suite.record.paper_scale import Beside
from suite.show.pages.board import bound_sign, bounded, leaning, number, reads_as_one, shown_interval, text
from suite.topics.modelled_time.gpu_times import GpuTimes, ModelledTime

GPUS = ("A100-80", "H100")
BUDGET = METRICS["equivalent_budget"]
COUNTED: Mapping[str, str] = {"peak_tensor_bytes": "memory at paper's size", "flops": "FLOPs at paper's size"}
PREFERRED: tuple[tuple[Size, RecipeName], ...] = (
    ("large", "modern"),
    ("base", "modern"),
    ("large", "classic"),
    ("base", "classic"),
)
"""Of several places of a baseline, the one whose counts are shown."""

GOALS: Mapping[str, str] = {
    "memory": "less memory",
    "time": "less time",
    "flops": "fewer FLOPs",
    "trained": "cheap fine-tuning",
    "traffic": "less traffic",
}
"""What a reader may want, by the attribute that a line is then sorted by."""


@dataclass(frozen=True)
class AtPaperSize:
    """Holds what is known of one stack: its counts beside the reference's, one place a baseline, and why it has none
    elsewhere; modelled times by GPU."""

    counts: Sequence[Beside] = ()
    times: Mapping[str, Sequence[ModelledTime]] = field(default_factory=dict)
    changed: bool = False
    uncounted: Sequence[str] = ()

    def ratios(self, quantity: str) -> dict[str, float]:
        """Returns the ratios by place."""
        return {pair.stack.place.title: ratio for pair in self.counts if (ratio := pair.ratio(quantity)) is not None}

    def known_times(self, gpu: str) -> list[ModelledTime]:
        return [time for time in self.times.get(gpu, ()) if time.ratio is not None]


NOTHING = AtPaperSize()


@dataclass(frozen=True)
class SizedCell:
    """Holds what one column says of one stack. ``label``: of the column; ``kind``: its form, and better or worse where
    that is sure; ``sort``: what the column is sorted by; ``title``: what it rests on, or why there is nothing."""

    label: str
    words: str
    sort: str = ""
    kind: str = ""
    title: str = ""


def at_paper_sizes(counts: CountsAtScale, times: GpuTimes) -> dict[str, AtPaperSize]:
    """Counts and times at the papers' sizes, by stack."""
    pairs: dict[str, dict[str, list[Beside]]] = {}
    without: dict[str, dict[str, None]] = {}
    for every in counts.counts.beside().values():
        for pair in every:
            if pair.ratio("peak_tensor_bytes") is not None:
                pairs.setdefault(pair.stack.stack, {}).setdefault(pair.stack.place.baseline, []).append(pair)
            elif pair.stack.unavailable:
                without.setdefault(pair.stack.stack, {})[f"{pair.stack.place.title}: {pair.stack.unavailable}"] = None
    modelled: dict[str, dict[str, list[ModelledTime]]] = {}
    for time in times.times:
        modelled.setdefault(time.stack, {}).setdefault(time.gpu, []).append(time)
    shown = {stack: [min(of, key=_preference) for of in by.values()] for stack, by in pairs.items()}
    return {
        stack: AtPaperSize(
            shown.get(stack, ()),
            modelled.get(stack, {}),
            any(map(counts.has_changed, shown.get(stack, ()))),
            tuple(without.get(stack, ())),
        )
        for stack in {**shown, **modelled, **without}
    }


def _preference(pair: Beside) -> int:
    at = pair.stack.place
    return PREFERRED.index((at.size, at.recipe)) if (at.size, at.recipe) in PREFERRED else len(PREFERRED)


def heads(sized: Mapping[str, AtPaperSize]) -> list[tuple[str, bool]]:
    """Lists the columns' titles, each with whether the largest is the best; what nothing was counted or modelled for
    has none."""
    counted = [title for name, title in COUNTED.items() if any(figures.ratios(name) for figures in sized.values())]
    modelled = [
        f"step on {gpu.partition('-')[0]}"
        for gpu in GPUS
        if any(figures.known_times(gpu) for figures in sized.values())
    ]
    return [*((f"{title}\xa0↓", False) for title in [*counted, *modelled]), (f"{BUDGET.title}, trend\xa0↑", True)]


def cells(
    own: AtPaperSize, rows: Sequence[Row], every: Sequence[Row], sized: Mapping[str, AtPaperSize]
) -> list[SizedCell]:
    """Builds the cells below :func:`heads`. ``rows``: those that the line shows; ``every``: all of its stack."""
    drawn = [_counted(own, name) for name in COUNTED if any(figures.ratios(name) for figures in sized.values())]
    drawn += [_modelled(own, gpu) for gpu in GPUS if any(figures.known_times(gpu) for figures in sized.values())]
    return [*drawn, _budget(rows, every)]


def _counted(own: AtPaperSize, quantity: str) -> SizedCell:
    ratios, label = own.ratios(quantity), COUNTED[quantity]
    if not ratios:
        why = "; ".join(own.uncounted) or "not counted at the paper's size: leantrain count --keep"
        return SizedCell(label, "n/a" if own.uncounted else "–", kind="unavailable", title=why)
    low, high = min(ratios.values()), max(ratios.values())
    words = f"={_range(low, high)}{'†' if own.changed else ''}"
    kind = "better" if number(high) != "1.00" and high < 1 else ""
    return SizedCell(label, words, f"{high:.6g}", kind, "; ".join(f"{at}: {number(x, 3)}" for at, x in ratios.items()))


def _modelled(own: AtPaperSize, gpu: str) -> SizedCell:
    """Builds a cell, in the style of modelled values: slanted, after ≈, without colour, with its band."""
    times, label = own.known_times(gpu), f"step on {gpu.partition('-')[0]}"
    if not times:
        why = "; ".join(dict.fromkeys(time.unavailable for time in own.times.get(gpu, ()) if time.unavailable))
        title = why or f"not modelled: leantrain count --keep --gpu {gpu}"
        return SizedCell(label, "n/a" if why else "–", kind="unavailable", title=title)
    ratios = [time.ratio or math.nan for time in times]
    bands = [_band(time) for time in times]
    title = "; ".join(f"{time.place.title}: {with_band(time)}, modelled" for time in times)
    words = f"≈{_range(min(ratios), max(ratios))} [{number(min(bands)[0])}, {number(max(high for _, high in bands))}]"
    return SizedCell(label, words, f"{max(ratios):.6g}", "cost modelled", title)


def _band(time: ModelledTime) -> tuple[float, float]:
    ratio, width = time.ratio or math.nan, 1 + (time.half_width or 0.0)
    return ratio / width, ratio * width


def with_band(time: ModelledTime) -> str:
    """Writes, as in ``0.80 [0.64, 1.00]``: a modelled ratio with the band that it is believed in."""
    low, high = _band(time)
    return f"{number(time.ratio or math.nan)} [{number(low)}, {number(high)}]"


def _budget(rows: Sequence[Row], every: Sequence[Row]) -> SizedCell:
    """Shows the range over baselines, the ends of their intervals, and the trend of those that have several sizes; the
    rest is said to a pointer."""
    values = {row.conditions.baseline: row.value(BUDGET.name) for row in rows if not row.failed}
    known = {at: value for at, value in values.items() if value.kind in ("measured", "bound")}
    if not known:
        why = "; ".join(dict.fromkeys(value.reason for value in values.values() if value.reason))
        inactive = any(row.inactive for row in rows)
        return SizedCell(BUDGET.title, NOT_EXERCISED if inactive else "–", kind="unavailable", title=why)
    numbers = [1 / value.number for value in known.values() if value.number]
    trends = dict(trends_of(every))
    arrows = " ".join(dict.fromkeys(arrow if len(arrow) == 1 else "?" for arrow in trends.values())) or "?"
    leans = {0 if reads_as_one(value) else leaning(value) for value in known.values()}
    kind = {1: "better", -1: "worse"}.get(leans.pop(), "") if len(leans) == 1 else ""
    said = [f"{at}: {text(value, BUDGET.direction)}, {trends.get(at, in_words(None))}" for at, value in known.items()]
    intervals = [shown_interval(value, BUDGET.direction) for value in known.values()]
    spans = [interval for interval in intervals if interval and bounded(interval)]
    whole = len(spans) == len(intervals)
    ends = f" [{number(min(span.low for span in spans))}, {number(max(span.high for span in spans))}]" if whole else ""
    signs = {bound_sign(value, BUDGET.direction) if value.kind == "bound" else "" for value in known.values()}
    sign = "" if whole else f"{signs.pop()} " if len(signs) == 1 else "~"
    words = f"{sign}×{_range(min(numbers), max(numbers))}{ends} {arrows}"
    return SizedCell(BUDGET.title, words, f"{min(numbers):.6g}", kind, "; ".join(said))


def trends_of(rows: Sequence[Row]) -> Iterator[tuple[str, str]]:
    """Yields (baseline, arrow) of each baseline with several sizes."""
    for baseline in dict.fromkeys(row.conditions.baseline for row in rows):
        slope = trend(row for row in rows if row.conditions.baseline == baseline)
        if slope is not None:
            yield baseline, in_words(slope)


def _range(low: float, high: float) -> str:
    a, b = number(low), number(high)
    return a if a == b else f"{a}–{b}"


# by goal ------------------------------------------------------------------------------------------------------------


def goals(own: AtPaperSize, rows: Sequence[Row]) -> dict[str, str]:
    """Returns what a line is sorted by for each of GOALS: the cost ratio, at the papers' sizes where it is known there,
    the largest of several; nothing where it is not surely less, or nobody knows."""
    alone = [row for row in rows if row.split_over == 1 and not row.failed]
    ratios = {
        "memory": _most(own, alone, "peak_tensor_bytes", "peak_tensor_bytes"),
        "flops": _most(own, alone, "flops", "training_flops"),
        "trained": _most(own, alone, "trainable_parameter_count", "trainable_parameter_count"),
        "traffic": _most(own, [row for row in rows if not row.failed], "communication_bytes", "communication_bytes"),
        "time": _time(own, alone),
    }
    return {f"goal-{name}": f"{x:.6g}" for name, x in ratios.items() if x is not None and x < 1}


def _most(own: AtPaperSize, rows: Iterable[Row], counted: str, here: str) -> float | None:
    there = own.ratios(counted).values()
    known = list(there) or [value.number for row in rows if (value := row.value(here)).known]
    return max(known, default=None)


def _time(own: AtPaperSize, rows: Sequence[Row]) -> float | None:
    """Returns the time of a step, modelled, where both ends of its band are less; else measured here, to the same
    quality."""
    times = own.known_times(GPUS[0])
    if times:
        sure = all(_band(time)[1] < 1 for time in times)
        return max(time.ratio or math.nan for time in times) if sure else None
    values = [row.value("time_to_quality") for row in rows]
    leans = {leaning(value) for value in values}
    sooner = [value.number for value in values if leaning(value) > 0]
    return min(sooner) if sooner and -1 not in leans else None
