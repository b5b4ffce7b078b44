"""What a person with a GPU and a larger model asks first, of each technique: bytes and FLOPs counted at the papers' own
sizes, a step's time modelled on named GPUs, the equivalent budget with its trend. What was measured here stands behind.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from suite.judge.at_scale import CountsAtScale
from suite.judge.metrics import METRICS
from suite.judge.rows import Row
from suite.judge.trend import in_words, trend
from suite.record.gpu_times import GpuTimes, ModelledTime
from suite.record.job import RecipeName, Size
from suite.record.paper_scale import Beside
from suite.record.text import in_html
from suite.show.pages.board import leaning, number, shown_interval, text
from suite.show.pages.markup import data

GPUS = ("A100-80", "H100")
BUDGET = METRICS["equivalent_budget"]
COUNTED: Mapping[str, str] = {"peak_tensor_bytes": "memory at paper's size", "flops": "FLOPs at paper's size"}
PREFERRED: tuple[tuple[Size, RecipeName], ...] = (
    ("large", "modern"), ("base", "modern"), ("large", "classic"), ("base", "classic"),
)  # fmt: skip
"""Of several places of a baseline, the one whose counts are shown."""

GOALS: Mapping[str, str] = {
    "memory": "less memory", "time": "less time", "flops": "fewer FLOPs", "trained": "cheap fine-tuning",
    "traffic": "less traffic",
}  # fmt: skip
"""What a reader may want, by the attribute that a line is then sorted by."""


@dataclass(frozen=True)
class AtPaperSize:
    """One stack: its counts beside the reference's, one place a baseline; modelled times by GPU."""

    counts: Sequence[Beside] = ()
    times: Mapping[str, Sequence[ModelledTime]] = field(default_factory=dict)
    changed: bool = False

    def ratios(self, quantity: str) -> dict[str, float]:
        """Ratios by place."""
        return {
            counted.stack.place.title: ratio
            for counted in self.counts
            if (ratio := counted.ratio(quantity)) is not None
        }

    def known_times(self, gpu: str) -> list[ModelledTime]:
        return [each for each in self.times.get(gpu, ()) if each.ratio is not None]


NOTHING = AtPaperSize()


def at_paper_sizes(counts: CountsAtScale, times: GpuTimes) -> dict[str, AtPaperSize]:
    """Counts and times at the papers' sizes, by stack."""
    by_stack: dict[str, dict[str, list[Beside]]] = {}
    for every in counts.counts.beside().values():
        for each in every:
            if each.ratio("peak_tensor_bytes") is not None:
                by_stack.setdefault(each.stack.stack, {}).setdefault(each.stack.place.baseline, []).append(each)
    modelled: dict[str, dict[str, list[ModelledTime]]] = {}
    for time in times.times:
        modelled.setdefault(time.stack, {}).setdefault(time.gpu, []).append(time)
    shown = {stack: [min(of, key=_preference) for of in by.values()] for stack, by in by_stack.items()}
    return {
        stack: AtPaperSize(
            shown.get(stack, ()), modelled.get(stack, {}), any(map(counts.has_changed, shown.get(stack, ())))
        )
        for stack in {**shown, **modelled}
    }


def _preference(each: Beside) -> int:
    at = each.stack.place
    return PREFERRED.index((at.size, at.recipe)) if (at.size, at.recipe) in PREFERRED else len(PREFERRED)


def heads(sized: Mapping[str, AtPaperSize]) -> list[tuple[str, bool]]:
    """The columns' titles, each with whether the largest is the best; what nothing was counted or modelled for has
    none."""
    counted = [title for name, title in COUNTED.items() if any(each.ratios(name) for each in sized.values())]
    modelled = [
        f"step on {gpu.partition('-')[0]}" for gpu in GPUS if any(each.known_times(gpu) for each in sized.values())
    ]
    return [*((f"{title}\xa0↓", False) for title in [*counted, *modelled]), (f"{BUDGET.title}, trend\xa0↑", True)]


def cells(own: AtPaperSize, rows: Sequence[Row], every: Sequence[Row], sized: Mapping[str, AtPaperSize]) -> list[str]:
    """The cells below :func:`heads`. ``rows``: those that the line shows; ``every``: all of its stack."""
    drawn = [_counted(own, name) for name in COUNTED if any(each.ratios(name) for each in sized.values())]
    drawn += [_modelled(own, gpu) for gpu in GPUS if any(each.known_times(gpu) for each in sized.values())]
    return [*drawn, _budget(rows, every)]


def _cell(label: str, words: str, sort: str, kind: str = "", title: str = "") -> str:
    """A cell that says on a small screen, where no head stands above it, what it is."""
    hovered = f' title="{in_html(title)}"' if title else ""
    return f'<td{data(sort=sort, label=label)} class="{f"sized {kind}".strip()}"{hovered}>{in_html(words)}</td>'


def _counted(own: AtPaperSize, quantity: str) -> str:
    ratios, label = own.ratios(quantity), COUNTED[quantity]
    if not ratios:
        return _cell(label, "–", "", "unavailable", "not counted at the paper's size: leantrain count --keep")
    low, high = min(ratios.values()), max(ratios.values())
    words = f"={_range(low, high)}{'†' if own.changed else ''}"
    kind = "better" if number(high) != "1.00" and high < 1 else ""
    return _cell(label, words, f"{high:.6g}", kind, "; ".join(f"{at}: {number(x, 3)}" for at, x in ratios.items()))


def _modelled(own: AtPaperSize, gpu: str) -> str:
    """A cell, in the style of modelled values: slanted, after ≈, without colour, with its band."""
    times, label = own.known_times(gpu), f"step on {gpu}"
    if not times:
        why = "; ".join(dict.fromkeys(each.unavailable for each in own.times.get(gpu, ()) if each.unavailable))
        return _cell(
            label, "n/a" if why else "–", "", "unavailable", why or f"not modelled: leantrain count --keep --gpu {gpu}"
        )
    ratios = [time.ratio or math.nan for time in times]
    bands = [_band(time) for time in times]
    title = "; ".join(f"{time.place.title}: {_with_band(time)}, modelled" for time in times)
    words = f"≈{_range(min(ratios), max(ratios))} [{number(min(bands)[0])}, {number(max(high for _, high in bands))}]"
    return _cell(label, words, f"{max(ratios):.6g}", "cost modelled", title)


def _band(each: ModelledTime) -> tuple[float, float]:
    ratio, width = each.ratio or math.nan, 1 + (each.half_width or 0.0)
    return ratio / width, ratio * width


def _with_band(each: ModelledTime) -> str:
    low, high = _band(each)
    return f"{number(each.ratio or math.nan)} [{number(low)}, {number(high)}]"


def _budget(rows: Sequence[Row], every: Sequence[Row]) -> str:
    """The range over baselines, and the trend of those that have several sizes; the rest is said to a pointer."""
    values = {row.conditions.baseline: row.value(BUDGET.name) for row in rows if not row.failed}
    known = {at: value for at, value in values.items() if value.kind in ("measured", "bound")}
    if not known:
        return _cell(BUDGET.title, "", "")
    numbers = [1 / each.number for each in known.values() if each.number]
    trends = dict(trends_of(every))
    arrows = " ".join(dict.fromkeys(trend if len(trend) == 1 else "?" for trend in trends.values())) or "?"
    leans = {leaning(each) for each in known.values()}
    kind = {1: "better", -1: "worse"}.get(leans.pop(), "") if len(leans) == 1 else ""
    said = [f"{at}: {text(each, BUDGET.direction)}, {trends.get(at, in_words(None))}" for at, each in known.items()]
    bounded = any(shown_interval(each, BUDGET.direction) is None for each in known.values())
    words = f"{'~' if bounded else ''}×{_range(min(numbers), max(numbers))} {arrows}"
    return _cell(BUDGET.title, words, f"{min(numbers):.6g}", kind, "; ".join(said))


def trends_of(rows: Sequence[Row]) -> Iterator[tuple[str, str]]:
    """(baseline, arrow) of each baseline with several sizes."""
    for baseline in dict.fromkeys(row.conditions.baseline for row in rows):
        slope = trend(row for row in rows if row.conditions.baseline == baseline)
        if slope is not None:
            yield baseline, in_words(slope)


def _range(low: float, high: float) -> str:
    a, b = number(low), number(high)
    return a if a == b else f"{a}–{b}"


# by goal ------------------------------------------------------------------------------------------------------------


def goals(own: AtPaperSize, rows: Sequence[Row]) -> dict[str, str]:
    """What a line is sorted by for each of GOALS: the cost ratio, at the papers' sizes where it is known there, the
    largest of several; nothing where it is not surely less, or nobody knows."""
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
    """The time of a step, modelled, where both ends of its band are less; else measured here, to the same quality."""
    times = own.known_times(GPUS[0])
    if times:
        sure = all(_band(time)[1] < 1 for time in times)
        return max(time.ratio or math.nan for time in times) if sure else None
    values = [row.value("time_to_quality") for row in rows]
    leans = {leaning(value) for value in values}
    sooner = [value.number for value in values if leaning(value) > 0]
    return min(sooner) if sooner and -1 not in leans else None
