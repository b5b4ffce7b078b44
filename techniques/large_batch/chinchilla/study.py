"""Draws IsoFLOP curves of the baseline, fits the parametric law to them, and tells what the published constants imply.

Hoffmann et al. (arXiv 2203.15556), figures 3 and 4: at each budget several sizes are trained to the end of their own
cosine. ``isoflop`` has the minimum of each budget's parabola, in two accounts: as the paper has it, C = 6 N D with N
without embeddings, and with the operations counted and N with embeddings. The runs are of equal 6 N D; for the second
account each size's loss is interpolated, over the logarithm of what its runs counted, to the mean of the budget. Where
the largest or smallest size is the best one, the parabola extrapolates: such a minimum is shown and not used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, geometric_mean
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from suite.judge.known import counters_of
from suite.record.job import canonical
from suite.record.schema import Counted, Learned
from suite.topics.studies.lab import Lab, StudyTable
from techniques.large_batch.chinchilla.law import (
    GOPHER_FLOPS,
    PUBLISHED,
    Law,
    Values,
    bootstrap,
    fit,
    growth,
    growth_bootstrap,
    interval,
    isoflop,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTHS = (0.25, 0.5, 0.75, 1.0, 1.5)  # the small baselines are large for their few tokens: the optimum is below 1
BUDGETS = (0.5, 1.0, 2.0, 4.0)  # gpt at nano has its first minimum between the sizes at 4
RUNS_PER_CONSTANT = 2  # fewer do not determine the law
SIX_N_D, COUNTED = "6 N D, without embeddings", "counted, with embeddings"
LAW_NOTE = (
    "95 % percentile intervals over resamplings of the runs, for IsoFLOPs of each budget's own; N and D at C are the "
    "fitted law's optimum; no law for fewer than ten runs, which do not determine it"
)
VERDICT = ("statement", "account", "paper", "measured", "low", "high", "holds")
VERDICT_NOTE = "Equal growth holds if the interval contains 0.50, the rest if the value does; of curvatures the least"

Estimate = tuple[float | None, float | None, float | None]  # with the ends of its interval
Rows = list[tuple[Any, ...]]  # of a table


class Point(NamedTuple):
    """Records one size at one budget, the mean over its seeds; ``flops`` is 6 N D, ``counted_flops`` what its steps
    did.

    ``parameters`` are without embeddings, ``all_parameters`` with them.
    """

    budget: float
    width: float
    parameters: float
    tokens: float
    flops: float
    counted_flops: float | None
    all_parameters: float | None
    seeds: int
    loss: float


class Minimum(NamedTuple):
    """Records one budget in one account; None where too few sizes were run, or the parabola opens downwards."""

    account: str
    budget: float
    flops: float
    sizes: int
    curvature: float | None
    parameters: float | None
    tokens: float | None
    tokens_per_parameter: float | None
    within: bool


def study(lab: Lab) -> list[StudyTable]:
    """Returns the tables ``runs``, ``isoflop``, ``law``, ``published`` and ``verdicts``; only what was measured in the
    time."""
    stacks = {(b, w): canonical(f"chinchilla:width={w},compute={b}") for b in BUDGETS for w in WIDTHS}
    runs, counts = lab.runs(list(stacks.values())), lab.counts(list(stacks.values()))
    points = [
        entry
        for (budget, width), stack in stacks.items()
        if (entry := point(budget, width, [contender for _, contender in runs[stack]], counts.get(stack)))
    ]
    accounts = {SIX_N_D: by_budget(points), COUNTED: by_budget(counted(points))}
    minima = [minimum(account, group) for account, groups in accounts.items() for group in groups]
    exponents = {account: exponent(groups) for account, groups in accounts.items()}
    return [
        StudyTable("runs", Point._fields, [tuple(run) for run in points], "N without embeddings; final test loss"),
        StudyTable("isoflop", Minimum._fields, [tuple(minimum) for minimum in minima], "within: between the sizes run"),
        StudyTable("law", ("constant", "fitted", "low", "high", "published"), law(points, exponents), LAW_NOTE),
        StudyTable(
            "published", ("quantity", "value", "paper"), published(), "The published constants at Gopher's compute"
        ),
        StudyTable("verdicts", VERDICT, verdicts(minima, exponents), VERDICT_NOTE),
    ]


def point(budget: float, width: float, seeds: Sequence[Learned], counts: Counted | None) -> Point | None:
    """Returns the mean over the seeds that finished; None where none did."""
    done = [seed for seed in seeds if seed.status == "ok" and "chinchilla.tokens" in seed.probes]
    losses = [seed.final.loss for seed in done if seed.final]
    if not losses:
        return None
    parameters, tokens = (done[0].probes[f"chinchilla.{name}"] for name in ("parameters", "tokens"))
    counters, steps = counters_of(counts), done[0].steps
    spent, size = (
        (float(counters.flops * steps), float(counters.parameter_count)) if counters and steps else (None, None)
    )
    return Point(budget, width, parameters, tokens, 6 * parameters * tokens, spent, size, len(losses), fmean(losses))


def by_budget(points: Sequence[Point]) -> list[list[Point]]:
    return [
        [entry for entry in points if entry.budget == budget] for budget in sorted({entry.budget for entry in points})
    ]


def counted(points: Sequence[Point]) -> list[Point]:
    """Returns the points at equal counted operations: each budget's geometric mean, as far as a size's runs reach over
    it."""
    known = [
        entry._replace(parameters=entry.all_parameters, flops=entry.counted_flops)
        for entry in points
        if entry.all_parameters and entry.counted_flops
    ]
    moved = []
    for group in by_budget(known):
        flops = geometric_mean(point.flops for point in group)
        for width in sorted({point.width for point in known}):
            own = sorted((point for point in known if point.width == width), key=lambda point: point.flops)
            spent = np.log([point.flops for point in own])
            if spent[0] <= np.log(flops) <= spent[-1]:
                loss = float(np.interp(np.log(flops), spent, [point.loss for point in own]))
                tokens = float(np.exp(np.interp(np.log(flops), spent, np.log([point.tokens for point in own]))))
                moved.append(own[0]._replace(budget=group[0].budget, flops=flops, tokens=tokens, loss=loss))
    return moved


def minimum(account: str, points: Sequence[Point]) -> Minimum:
    """Finds the minimum of the parabola through one budget's points; D* is interpolated from the sizes that were
    run."""
    flops, sizes = fmean(entry.flops for entry in points), [entry.parameters for entry in points]
    parabola = isoflop(sizes, [entry.loss for entry in points])
    best = parabola.optimum if parabola else None
    tokens = ratio = None
    if best:
        line = np.polyfit(np.log(sizes), np.log([entry.tokens for entry in points]), 1)
        tokens = float(np.exp(np.polyval(line, np.log(best))))
        ratio = tokens / best
    within = best is not None and min(sizes) <= best <= max(sizes)
    curvature = parabola.curvature if parabola else None
    return Minimum(account, points[0].budget, flops, len(points), curvature, best, tokens, ratio, within)


def exponent(groups: Sequence[Sequence[Point]]) -> Estimate:
    """Fits the power of C by which the budgets' minima grow, with its interval."""
    budgets = {
        fmean(point.flops for point in group): [(point.parameters, point.loss) for point in group] for group in groups
    }
    value = growth(budgets)
    draws = [] if value is None else growth_bootstrap(budgets)
    return value, *(interval(draws) if draws else (None, None))


def law(points: Sequence[Point], exponents: Mapping[str, Estimate]) -> Rows:
    """Returns the fitted constants, every method's exponent of N*, the fitted optimum at each budget; beside the
    published."""
    rows: Rows = []
    runs = [
        [entry.parameters for entry in points],
        [entry.tokens for entry in points],
        [entry.loss for entry in points],
    ]
    fitted: list[Law] = []
    draws: list[Law] = []
    if len(points) >= RUNS_PER_CONSTANT * len(Law._fields) and len(set(runs[0])) > 1 and len(set(runs[1])) > 1:
        fitted, draws = [fit(runs[0], runs[1], runs[2])], bootstrap(runs[0], runs[1], runs[2])
    for name in (*Law._fields, "size_exponent"):
        value = getattr(fitted[0], name) if fitted else None
        low, high = interval([getattr(draw, name) for draw in draws]) if draws else (None, None)
        rows.append((name, value, low, high, getattr(PUBLISHED, name)))
    rows += [
        (f"size_exponent of IsoFLOPs: {name}", *value, PUBLISHED.size_exponent) for name, value in exponents.items()
    ]
    for group in by_budget(points) if fitted else []:
        flops = fmean(point.flops for point in group)
        estimates, theirs = optima([*fitted, *draws], flops), optima([PUBLISHED], flops)[:, 0]
        for name, (value, *spread), paper in zip(("N", "D", "D/N"), estimates.tolist(), theirs.tolist(), strict=True):
            finite = [entry for entry in spread if np.isfinite(entry)]
            ends = interval(finite) if finite else (None, None)
            rows.append((f"{name} at C = {flops:.3g}", value if np.isfinite(value) else None, *ends, paper))
    return rows


def optima(laws: Sequence[Law], flops: float) -> Values:
    """Computes, as [3, laws]: N*, D* and D*/N*; not finite where a law has no optimum."""
    together = Law(*np.array(laws, dtype=np.float64).T)
    with np.errstate(all="ignore"):
        parameters, tokens = together.optimum(flops)
        ratios = np.array([parameters, tokens, np.divide(tokens, parameters)])
    return np.where(np.minimum(together.alpha, together.beta) > 0, ratios, np.nan)


def verdicts(minima: Sequence[Minimum], exponents: Mapping[str, Estimate]) -> Rows:
    """Compares the paper's statements about IsoFLOP curves with these curves; None where nothing was measured."""
    rows: Rows = []
    for account, (value, low, high) in exponents.items():
        curvatures = [
            minimum.curvature for minimum in minima if minimum.account == account and minimum.curvature is not None
        ]
        least = min(curvatures, default=None)
        equal = None if low is None or high is None else low <= 0.5 <= high
        near = None if value is None else 0.3 <= value <= 0.7
        rows += [
            ("N and D grow equally: exponent 0.50", account, 0.5, value, low, high, equal),
            ("the exponent lies within 0.3 and 0.7", account, 0.5, value, low, high, near),
            ("every parabola has a minimum", account, None, least, None, None, None if least is None else least > 0),
        ]
    return rows


def published() -> list[tuple[str, float, float]]:
    """Returns the quantities that follow from the published constants, beside the paper's own."""
    parameters, tokens = PUBLISHED.optimum(GOPHER_FLOPS)
    return [
        ("exponent of the size", PUBLISHED.size_exponent, 0.46),
        ("exponent of the tokens", PUBLISHED.token_exponent, 0.54),
        ("optimal parameters", parameters, 7e10),
        ("tokens a parameter", tokens / parameters, 20.0),
        ("loss of 70 billion on 1.4 trillion", PUBLISHED.loss(70e9, 1.4e12), float("nan")),
        ("loss of 280 billion on 300 billion", PUBLISHED.loss(280e9, 300e9), float("nan")),
    ]


def plot(tables: Sequence[StudyTable]) -> Figure:
    """Draws loss over size, a colour for each budget, with the parabola and its minimum."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    points = [Point(*record) for record in tables[0].rows]
    figure = Figure(figsize=(5, 4), layout="constrained")
    axes = figure.subplots()
    for number, budget in enumerate(sorted({entry.budget for entry in points})):
        own = sorted((entry for entry in points if entry.budget == budget), key=lambda entry: entry.parameters)
        run, colour = [entry.parameters for entry in own], f"C{number}"
        axes.semilogx(run, [entry.loss for entry in own], "o", color=colour, label=f"C = {own[0].flops:.2g}")
        if parabola := isoflop(run, [entry.loss for entry in own]):
            line = np.geomspace(min(run), max(run), 50)
            axes.semilogx(line, [parabola.at(size) for size in line], color=colour)
            if (best := parabola.optimum) and min(run) <= best <= max(run):
                axes.semilogx([best], [parabola.at(best)], "*", color=colour, markersize=12)
    sizes = sorted({entry.parameters for entry in points})
    axes.set_xticks(sizes, map(EngFormatter(places=0), sizes))
    axes.minorticks_off()
    axes.set(xlabel="parameters without embeddings", ylabel="final test loss (nats a token)")
    axes.legend()
    return figure
