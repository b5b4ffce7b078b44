"""Draws a number in a cell of the page: its interval drawn and written, its form by its kind, its colour by the
interval."""

from __future__ import annotations

from markupsafe import Markup

from suite.judge.metrics import Direction, Metric, MetricValue
from suite.show.pages.board import (
    change,
    decimals,
    ends,
    leaning,
    mark,
    number,
    reads_as_one,
    shown_interval,
    shown_number,
    text,
)
from suite.show.pages.markup import fragments
from suite.show.pictures.charts import whisker

LEANS = {1: "better", -1: "worse", 0: ""}


def value_cell(metric: Metric, value: MetricValue, half_width: float) -> Markup:
    """Draws the value of a metric; ``half_width``: that of the whisker's axis, in logs."""
    if value.kind in ("missed", "unavailable"):
        return fragments.cell(text(value, metric.direction), "", value.kind, value.reason)
    interval = shown_interval(value, metric.direction)
    shown = shown_number(value, metric.direction)
    drawn = whisker(interval, half_width) if interval else ""
    figure = f"{mark(value, metric.direction)}{number(shown, decimals(interval))}"
    return fragments.cell_of(
        fragments.value(drawn, figure, ends(interval)),
        "" if value.kind == "modelled" else f"{shown:.6g}",  # sorted after all that is measured, never among it
        " ".join(filter(None, (value.kind, lean(value, metric.direction)))),
        "; ".join(filter(None, (change(value, metric.unit), value.note))),
    )


def lean(value: MetricValue, direction: Direction) -> str:
    """Returns ``better`` or ``worse`` where the interval excludes 1; empty elsewhere, and for what only describes."""
    return "" if reads_as_one(value) or direction == "none" else LEANS[leaning(value)]
