"""IsoFLOP curves of the baseline, the parametric law fitted to them, and what the published constants imply.

Hoffmann et al. (arXiv 2203.15556), figures 3 and 4: at each budget C = 6 N D several sizes are trained to the end of
their own cosine. ``isoflop`` has the minimum of each budget's parabola, ``law`` both methods' exponents beside the
published. Where the largest or smallest size is the best one, the parabola extrapolates: the table says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

from suite.comparison import canonical
from suite.records import Contender
from suite.study import Lab, Table
from techniques.large_batch.chinchilla.law import (
    GOPHER_FLOPS,
    PUBLISHED,
    Law,
    bootstrap,
    fit,
    growth,
    interval,
    isoflop,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTHS = (0.25, 0.5, 0.75, 1.0, 1.5)  # the small baselines are large for their few tokens: the optimum is below 1
BUDGETS = (0.25, 0.5, 1.0)
RUNS_PER_CONSTANT = 2  # fewer do not determine the law


class Point(NamedTuple):
    """One size at one budget, the mean over its seeds; ``flops`` is 6 N D, ``counted_flops`` what its steps did."""

    budget: float
    width: float
    parameters: float
    tokens: float
    flops: float
    counted_flops: float | None
    seeds: int
    loss: float


class Minimum(NamedTuple):
    """One budget; None where too few sizes were run, or the parabola opens downwards."""

    budget: float
    flops: float
    sizes: int
    curvature: float | None
    parameters: float | None
    tokens: float | None
    tokens_per_parameter: float | None
    within: bool


def study(lab: Lab) -> list[Table]:
    """Tables ``runs``, ``isoflop``, ``law`` and ``published``; what was not measured in the time is not in them."""
    stacks = {(b, w): canonical(f"chinchilla:width={w},compute={b}") for b in BUDGETS for w in WIDTHS}
    results = lab.runs(list(stacks.values()))
    points = [
        made for (budget, width), stack in stacks.items() if (made := point(budget, width, results.get(stack, [])))
    ]
    minima = [least for budget in BUDGETS if (least := minimum([each for each in points if each.budget == budget]))]
    return [
        Table("runs", Point._fields, [tuple(each) for each in points], "N without embeddings; final test loss"),
        Table(
            "isoflop", Minimum._fields, [tuple(each) for each in minima], "within: the minimum lies between sizes run"
        ),
        Table("law", ("constant", "fitted", "low", "high", "published"), law(points, minima), LAW_NOTE),
        Table("published", ("quantity", "value", "paper"), published(), "The published constants at Gopher's compute"),
    ]


LAW_NOTE = (
    "95 % percentile intervals over resamplings of the runs; none for fewer than ten runs, which do not determine it"
)


def point(budget: float, width: float, pairs: Sequence[tuple[Contender, Contender]]) -> Point | None:
    """The mean over the seeds that finished; None where none did."""
    done = [each for _, each in pairs if each.status == "ok" and each.curve and "chinchilla.tokens" in _probes(each)]
    if not done:
        return None
    parameters, tokens = (_probes(done[0])[f"chinchilla.{name}"] for name in ("parameters", "tokens"))
    counters, steps = done[0].counters, done[0].steps
    counted = float(counters.flops * steps) if counters and counters.flops is not None and steps else None
    loss = fmean(each.curve[-1].loss for each in done)
    return Point(budget, width, parameters, tokens, 6 * parameters * tokens, counted, len(done), loss)


def _probes(contender: Contender) -> dict[str, float]:
    """By technique and name, whether the record has the technique's name in it or not."""
    return {name if "." in name else f"chinchilla.{name}": value for name, value in contender.probes.items()}


def minimum(points: Sequence[Point]) -> Minimum | None:
    """Where a budget's parabola has its minimum; None for a budget without runs."""
    if not points:
        return None
    flops, sizes = fmean(each.flops for each in points), [each.parameters for each in points]
    parabola = isoflop(sizes, [each.loss for each in points])
    best = parabola.optimum if parabola else None
    tokens = flops / 6 / best if best else None
    ratio = tokens / best if best and tokens else None
    within = best is not None and min(sizes) <= best <= max(sizes)
    curvature = parabola.curvature if parabola else None
    return Minimum(points[0].budget, flops, len(points), curvature, best, tokens, ratio, within)


def law(
    points: Sequence[Point], minima: Sequence[Minimum]
) -> list[tuple[str, float | None, float | None, float | None, float]]:
    """The fitted constants and both methods' exponents of N*, with intervals, beside the published ones."""
    rows: list[tuple[str, float | None, float | None, float | None, float]] = []
    runs = [[each.parameters for each in points], [each.tokens for each in points], [each.loss for each in points]]
    found: Law | None = None
    draws: list[Law] = []
    if len(points) >= RUNS_PER_CONSTANT * len(Law._fields) and len(set(runs[0])) > 1 and len(set(runs[1])) > 1:
        found, draws = fit(runs[0], runs[1], runs[2]), bootstrap(runs[0], runs[1], runs[2])
    names = (*Law._fields, "size_exponent")
    for name in names:
        value = getattr(found, name) if found else None
        low, high = interval([getattr(each, name) for each in draws]) if draws else (None, None)
        rows.append((name, value, low, high, getattr(PUBLISHED, name)))
    turning = [each for each in minima if each.parameters is not None]
    exponent = growth([each.flops for each in turning], [each.parameters or 0.0 for each in turning])
    rows.append(("size_exponent_of_isoflops", exponent, None, None, PUBLISHED.size_exponent))
    return rows


def published() -> list[tuple[str, float, float]]:
    """What follows from the published constants, and what the paper says."""
    parameters, tokens = PUBLISHED.optimum(GOPHER_FLOPS)
    return [
        ("exponent of the size", PUBLISHED.size_exponent, 0.46),
        ("exponent of the tokens", PUBLISHED.token_exponent, 0.54),
        ("optimal parameters", parameters, 7e10),
        ("tokens a parameter", tokens / parameters, 20.0),
        ("loss of 70 billion on 1.4 trillion", PUBLISHED.loss(70e9, 1.4e12), float("nan")),
        ("loss of 280 billion on 300 billion", PUBLISHED.loss(280e9, 300e9), float("nan")),
    ]


def plot(tables: Sequence[Table]) -> Figure:
    """Loss over size, a colour for each budget, with the parabola and its minimum."""
    import numpy as np
    from matplotlib.figure import Figure

    points = [Point(*each) for each in tables[0].rows]
    figure = Figure(figsize=(5, 4), layout="constrained")
    axes = figure.subplots()
    for number, budget in enumerate(sorted({each.budget for each in points})):
        own = sorted((each for each in points if each.budget == budget), key=lambda each: each.parameters)
        sizes, colour = [each.parameters for each in own], f"C{number}"
        axes.semilogx(sizes, [each.loss for each in own], "o", color=colour, label=f"C = {own[0].flops:.2g}")
        if parabola := isoflop(sizes, [each.loss for each in own]):
            line = np.geomspace(min(sizes), max(sizes), 50)
            axes.semilogx(line, [parabola.at(size) for size in line], color=colour)
            if (best := parabola.optimum) and min(sizes) <= best <= max(sizes):
                axes.semilogx([best], [parabola.at(best)], "*", color=colour, markersize=12)
    axes.set(xlabel="parameters without embeddings", ylabel="final test loss (nats a token)")
    axes.legend()
    return figure
