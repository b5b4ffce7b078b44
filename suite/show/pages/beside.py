"""Shows what a technique is worth and costs beside what it is compared with: a line for each comparison.

Accuracy is of the test examples; memory is the peak of all tensors of a step. A cell has the reference's number, the
technique's and, where it is not of accuracy, their ratio with its interval.
"""

from __future__ import annotations

from collections.abc import Iterable

from suite.judge.metrics import METRICS, MetricValue
from suite.judge.rows import Row
from suite.show.pages.board import change, text

ACCURACY, TRAINED = "final.accuracy", "trainable_parameter_count"
COSTS = ("peak_tensor_bytes", "step_time")
HEAD = ("baseline", "technique", "beside", "accuracy", "trainable parameters", "memory", "time of a step")


def beside(rows: Iterable[Row]) -> list[tuple[str, ...]]:
    """Builds the cells of :data:`HEAD` of each row."""
    return [
        (
            row.conditions.baseline,
            row.stack,
            row.reference,
            _scores(row.value(ACCURACY)),
            _count(row.value(TRAINED)),
            *(_cost(row.value(name), METRICS[name].unit) for name in COSTS),
        )
        for row in rows
    ]


def _scores(value: MetricValue) -> str:
    if value.reference is None or value.contender is None:
        return "n/a"
    return f"{value.reference:.3f} → {value.contender:.3f}"


def _count(value: MetricValue) -> str:
    if value.reference is None or value.contender is None:
        return "n/a"
    return f"{value.reference:,.0f} → {value.contender:,.0f} ({text(value, 'lower')})"


def _cost(value: MetricValue, unit: str) -> str:
    ratio = text(value, "lower")
    return f"{change(value, unit)} ({ratio})" if value.known else ratio
