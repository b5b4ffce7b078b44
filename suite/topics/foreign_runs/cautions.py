"""Warns of what makes a comparison wrong, as far as logs alone can tell: each a sentence that names its runs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from suite.topics.foreign_runs.guessed_columns import Roles
from suite.topics.foreign_runs.run_comparison import SAME_LENGTH, BudgetReading, Curve, OneLength, by_length
from suite.topics.foreign_runs.run_of_log import ForeignRun

Runs = Sequence[ForeignRun]
TUNED = ("both", "contender", "no")
DECAYED = 0.1  # of the largest learning rate: what is left of a schedule that has ended
BEST_BEFORE = 0.005  # of ln loss: an earlier evaluation that much better than the last is worth a word
MORE_OFTEN = 1.5
OTHER_UNIT = (300.0, 3000.0)  # paces that differ so much are of milliseconds and seconds


def cautions(
    theirs: Runs, ours: Runs, curve: Curve | None, readings: Sequence[BudgetReading], roles: Roles, tuned: str
) -> list[str]:
    """Returns what a reader of the comparison must know, gravest first."""
    runs = [*theirs, *ours]
    return [
        *_schedules(runs, curve),
        *_beyond(curve, readings),
        *_curve_flat(curve),
        *_alike(theirs, ours, roles),
        *_lengths(theirs, ours, curve),
        *_seeds(theirs, ours, readings),
        *_evaluations(theirs, ours, roles),
        *_best(runs, roles),
        *_tuning(tuned),
        *_clocks(theirs, ours),
    ]


def refuse(theirs: Runs, ours: Runs) -> None:
    """Raises ValueError for a run that is there twice, and where two logs' times cannot be of one unit."""
    known: dict[tuple[bytes, bytes], ForeignRun] = {}
    for run in (*theirs, *ours):
        key = (run.budgets.tobytes(), run.losses.tobytes())
        if key in known and len(run.losses) > 1:
            raise ValueError(f"{known[key].source} and {run.source} hold the same run; leave one of them out")
        known[key] = run
    timed = sorted((run for run in (*theirs, *ours) if math.isfinite(run.log_pace)), key=lambda run: run.log_pace)
    if timed:
        apart = math.exp(timed[-1].log_pace - timed[0].log_pace)
        if OTHER_UNIT[0] < apart < OTHER_UNIT[1]:
            raise ValueError(
                f"{timed[-1].source} takes {apart:,.0f} times as long as {timed[0].source}: one of them is in "
                "milliseconds; write both in seconds, or name another column with --seconds"
            )


def _some(runs: Runs, chosen: Callable[[ForeignRun], bool]) -> tuple[ForeignRun, str] | None:
    """Returns the first of the runs that are so, and the words for it and the others."""
    own = [run for run in runs if chosen(run)]
    return (own[0], own[0].source + (f" and {len(own) - 1} more" if len(own) > 1 else "")) if own else None


def _schedules(runs: Runs, curve: Curve | None) -> Iterator[str]:
    if curve and curve.within:
        yield (
            "the curve is read inside runs whose schedule had not ended there: it flatters whatever decays earlier, "
            "and rankings change before the end"
        )
    if found := _some(runs, lambda run: run.planned > 1 + SAME_LENGTH):
        yield (
            f"{found[1]} stopped at {100 / found[0].planned:.0f} % of the planned steps: unless it goes by time, the "
            "schedule had not ended"
        )
    elif found := _some(runs, lambda run: run.rate_left > DECAYED):
        yield f"{found[1]} ended with {found[0].rate_left:.0%} of the largest learning rate: it had not decayed"
    if found := _some(runs, lambda run: run.logged > 1 + SAME_LENGTH):
        yield f"{found[1]} went on to {found[0].logged:.2f} times the budget of its last evaluation, which is judged"


def _beyond(curve: Curve | None, readings: Sequence[BudgetReading]) -> Iterator[str]:
    if curve is None:
        return
    low, high = curve.ends
    if any(reading.kind == "bound" for reading in readings):
        yield f"losses beyond the reference's curve ({low:g} to {high:g}) give bounds; train the reference there, too"
    if any(reading.kind == "extrapolated" for reading in readings):
        yield "losses a little beyond the reference's curve are read on its last piece, continued; train it there, too"


def _curve_flat(curve: Curve | None) -> Iterator[str]:
    for before, after in zip(curve.lengths, curve.lengths[1:]) if curve and not curve.within else ():
        if after.mean >= before.mean:
            yield (
                f"the reference ends no better after {after.budget:g} than after {before.budget:g}: there its curve "
                "tells nothing apart"
            )


def _alike(theirs: Runs, ours: Runs, roles: Roles) -> Iterator[str]:
    consequence = {
        "batch": "equal steps are not equal work; judge it in --unit tokens"
        if roles.unit == "steps"
        else "so do steps",
        "data": "losses on different data are no measure of a technique",
        "hardware": "times compare the machines, too",
    }
    for fact, then in consequence.items():
        sides = [sorted({run.facts[fact] for run in side if fact in run.facts}) for side in (theirs, ours)]
        if sides[0] and sides[1] and _differ(*sides):
            yield f"{fact} differs, {' and '.join(sides[0])} against {' and '.join(sides[1])}: {then}"


def _differ(theirs: Sequence[str], ours: Sequence[str]) -> bool:
    """Tells whether two sides' facts differ; numbers do by more than a length may."""
    try:
        amounts = [float(fact.split()[0].replace(",", "")) for fact in (*theirs, *ours)]
    except ValueError:
        return theirs != ours
    return max(amounts) > min(amounts) * (1 + SAME_LENGTH)


def _lengths(theirs: Runs, ours: Runs, curve: Curve | None) -> Iterator[str]:
    if curve:
        return
    lengths = [length.budget for length in by_length(theirs)]
    for own in by_length(ours):
        near = min(lengths, key=lambda budget: abs(math.log(budget / own.budget)))
        if abs(own.budget / near - 1) > SAME_LENGTH:
            yield (
                f"lengths differ, {own.budget:g} of the contender against {near:g} of the reference: the ratio of "
                "losses holds what the longer run had more"
            )


def _seeds(theirs: Runs, ours: Runs, readings: Sequence[BudgetReading]) -> Iterator[str]:
    for side, runs in (("reference", theirs), ("contender", ours)):
        lengths = by_length(runs)
        if all(len(length.runs) == 1 for length in lengths):
            yield f"one run of the {side}{' of each length' if len(lengths) > 1 else ''}: {_stands_for(readings)}"
        yield from _seeds_of(side, [length for length in lengths if len(length.runs) > 1])


def _stands_for(readings: Sequence[BudgetReading]) -> str:
    how = {reading.scatter for reading in readings}
    if "the curve" in how:
        return "how far the curve's points lie off a smooth curve stands for the noise of seeds"
    return (
        "it is taken to be as noisy as the other side"
        if how & {"own runs", "the other side's runs"}
        else ("nothing here says how much seeds differ, so there is no interval")
    )


def _seeds_of(side: str, lengths: Sequence[OneLength]) -> Iterator[str]:
    if any(not run.seed for length in lengths for run in length.runs):
        yield f"the {side}'s runs name no seeds: those of one length are taken as of different ones"
        return
    for length in lengths:
        seed, count = Counter(run.seed for run in length.runs).most_common(1)[0]
        if count > 1:
            yield f"{count} of the {side}'s runs of {length.budget:g} have seed {seed}: they say less of the noise"


def _evaluations(theirs: Runs, ours: Runs, roles: Roles) -> Iterator[str]:
    if not roles.held_out:
        yield (
            f"{roles.metric} is of training batches: the mean over the last twentieth of each run is judged; log a "
            "loss on held-out data"
        )
        return
    counts = [float(np.median([len(run.losses) for run in side])) for side in (theirs, ours)]
    if max(counts) > MORE_OFTEN * min(counts) and min(counts) > 1:
        yield (
            f"{counts[0]:g} evaluations a run of the reference, {counts[1]:g} of the contender: a best, or a first "
            "crossing, favours whoever looks more often; the last is judged"
        )
    if found := _some((*theirs, *ours), lambda run: len(run.losses) == 1):
        yield f"{found[1]}: one evaluation, taken for the run's last"


def _best(runs: Runs, roles: Roles) -> Iterator[str]:
    words = roles.metric.lower().replace("/", "_").split("_")
    if {"best", "min", "max"} & set(words):
        yield f"{roles.metric} is the best of many checkpoints, which favours whoever evaluates more often"
    elif roles.held_out and (found := _some(runs, lambda run: _before(run) > BEST_BEFORE)):
        at = found[0].budgets[int(np.argmin(found[0].losses))]
        yield f"{found[1]} was better before its end, at {at:g} {roles.unit}: the last is judged, not the best of many"


def _before(run: ForeignRun) -> float:
    return run.log_loss - math.log(float(run.losses.min()))


def _tuning(tuned: str) -> Iterator[str]:
    if tuned == "contender":
        yield "the contender is tuned and the reference is not: what tuning gives is counted for the technique"
    elif tuned == "no":
        yield "neither side is tuned: one learning rate may suit one of them better"
    elif not tuned:
        yield "whether both sides were tuned alike no log says; say it: --tuned both, contender or no"


def _clocks(theirs: Runs, ours: Runs) -> Iterator[str]:
    timed = [[run for run in side if math.isfinite(run.log_pace)] for side in (theirs, ours)]
    if all(timed) and min(map(len, timed)) == 1:
        yield "one side's time is one run's clock: its noise is not in the interval of the time"
