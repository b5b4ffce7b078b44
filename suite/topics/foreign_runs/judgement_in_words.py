"""Writes a judgement: a sentence, and a table with a line for each length of the contender's runs."""

from __future__ import annotations

import math

from suite.judge.statistics import Interval
from suite.topics.foreign_runs.judgement import JudgedRuns
from suite.topics.foreign_runs.run_comparison import BudgetReading, OneLength

HEAD = ("budget", "runs", "loss", "reference's", "worth", "time to the same loss", "would have shown")
UNITS = ((1e12, " T"), (1e9, " B"), (1e6, " M"))


def budget_text(budget: float, unit: str) -> str:
    """Writes ``1,750 steps``, ``2.5 B tokens``, ``3.1e+21 FLOPs``."""
    if unit == "flops":
        return f"{budget:.3g} FLOPs"
    if unit == "tokens":
        size, prefix = next(((size, prefix) for size, prefix in UNITS if budget >= size), (1.0, ""))
        return f"{budget / size:.3g}{prefix} tokens"
    return f"{budget:,.0f} {unit if budget != 1 else unit.removesuffix('s')}"


def ratio_text(interval: Interval) -> str:
    """Writes ``×1.12 [1.05, 1.20]``, with as many digits as tell the ends apart; an open end as an inequality, no
    interval as ``?``."""
    width = interval.high - interval.low
    width = width if 0 < width < math.inf else abs(interval.estimate - 1)
    digits = min(5, max(2, 1 - math.floor(math.log10(width)))) if 0 < width < 1 else 2
    centre = f"×{interval.estimate:.{digits}f}"
    open_low, open_high = interval.low <= 0, math.isinf(interval.high)
    if open_low and open_high:
        return f"{centre} [?]"
    low = "" if open_low else f"{interval.low:.{digits}f}"
    high = "" if open_high else f"{interval.high:.{digits}f}"
    return f"{centre} [{low}, {high}]" if low and high else f"{centre} [{'≥ ' + low if low else '≤ ' + high}]"


def worth_text(reading: BudgetReading) -> str:
    """Writes what a length is worth; a bound as one."""
    if reading.kind == "bound":
        beyond = reading.worth
        return f"> ×{beyond.estimate:.2f}" if math.isinf(beyond.high) else f"< ×{beyond.estimate:.2f}"
    return ratio_text(reading.worth) + (" extrapolated" if reading.kind == "extrapolated" else "")


def lines(judgement: JudgedRuns) -> list[tuple[str, ...]]:
    """Returns the table's lines, a cell for each of HEAD."""
    return [
        (
            budget_text(reading.contender.budget, judgement.unit),
            f"{len(reading.contender.runs)} + {len(reading.reference.runs) if reading.reference else 0}",
            _loss(reading.contender),
            _loss(reading.reference),
            worth_text(reading) if reading.kind != "loss ratio" else f"loss {ratio_text(reading.worth)}",
            ratio_text(reading.speedup) if reading.speedup else "-",
            _percent(reading.detectable),
        )
        for reading in judgement.readings
    ]


def _loss(length: OneLength | None) -> str:
    return f"{math.exp(length.mean):.4f}" if length else "-"


def _percent(ratio: float) -> str:
    if not ratio < 3:
        return "nothing" if math.isinf(ratio) else f"×{ratio:.2g}"
    return f"{100 * (ratio - 1):.2g} %"


def sentence(judgement: JudgedRuns) -> str:
    """Says the answer at the contender's longest runs, with its interval, and what would make it better."""
    reading = judgement.readings[-1]
    own = budget_text(reading.contender.budget, judgement.unit)
    parts = [_ratio(judgement, reading) if reading.kind == "loss ratio" else _worth(judgement, reading, own)]
    if reading.speedup:
        parts.append(f"time to the same {judgement.metric}: {ratio_text(reading.speedup)} times as fast")
    elif reading.pace:
        unit = judgement.unit.removesuffix("s") if judgement.unit != "flops" else "FLOP"
        parts.append(f"a {unit} takes {ratio_text(reading.pace)} of the time")
    if reading.detectable < math.inf and not reading.decided:
        what = "loss" if reading.kind == "loss ratio" else "budget"
        parts.append(f"a difference of {_percent(reading.detectable)} of the {what} would probably have shown")
    if reading.seeds_more:
        runs = "one more run" if reading.seeds_more == 1 else f"{reading.seeds_more} more runs"
        parts.append(f"about {runs} of each side would decide, were the difference what it looks like")
    if judgement.further:
        lengths = " and ".join(budget_text(budget, judgement.unit) for budget in judgement.further)
        parts.append(f"the reference trained for {lengths}, too, each to the end of its schedule, would make a ruler")
    return "; ".join(parts)


def _verdict(reading: BudgetReading) -> str:
    if math.isinf(reading.log_loss_error) and reading.kind != "bound":
        return "how sure that is nothing here says"
    return ("better" if reading.better else "worse") if reading.decided else "not told apart from the reference"


def _ratio(judgement: JudgedRuns, reading: BudgetReading) -> str:
    return f"the contender's {judgement.metric} is {ratio_text(reading.worth)} of the reference's: {_verdict(reading)}"


def _worth(judgement: JudgedRuns, reading: BudgetReading, own: str) -> str:
    if reading.kind == "bound":
        more = math.isinf(reading.worth.high)
        end = budget_text(reading.contender.budget * reading.worth.estimate, judgement.unit)
        says = reading.worth.estimate >= 1 if more else reading.worth.estimate <= 1
        verdict = ("better" if more else "worse") if says else "neither better nor worse follows from that"
        sure = "" if reading.decided or not says else ", as far as one can tell"
        beyond = f"{'more' if more else 'less'} than {end} of the reference, where its curve ends"
        return f"{own} of the contender are worth {beyond}: {verdict}{sure}"
    worth = budget_text(reading.contender.budget * reading.worth.estimate, judgement.unit)
    how = " (its curve continued)" if reading.kind == "extrapolated" else ""
    ratio = f"{ratio_text(reading.worth)}: {_verdict(reading)}"
    return f"{own} of the contender are worth {worth} of the reference{how}, {ratio}"
