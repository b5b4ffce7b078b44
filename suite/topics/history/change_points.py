"""Finds change points of paired ratios: whether a technique's gain changed over time. A screen before any alarm.

Every point is one replicate's log cost ratio: of what was timed, to the reference in the same set of processes, so that
the machine's drift cancels and a series survives its machine; of what was learned or counted, to the reference's run
that is nearest in time. A series' points, in order of time, are tested for one step: the largest standardised
Wilcoxon rank sum over all splits, against its own permutation distribution (sup-Wilcoxon; Csörgő & Horváth 1997, 2.1).
Ranks, because timings have heavy tails; a permutation, because the maximum over splits has no usable table. Where
neighbours in time are alike, whole blocks are permuted (Carlstein 1986), or drift would be called a step. Several
steps: binary segmentation. Many series: Benjamini & Hochberg 1995 over the report.

A change point is a *suspicion*, its verdict "inconclusive". Only fresh evidence of the code as it is now, against
what was known before the step, makes it an alarm, and the error of that comparison is the alarm's error.

Exact counts have no noise: where every revision has one value, every change of it is a change point, with certainty.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, TypeVar

import numpy as np
from scipy import stats

from suite.judge.known import Known, LearnedPair, timed_pair
from suite.judge.metrics import IN_HISTORY, metric_of, samples
from suite.judge.rows import card_reference
from suite.judge.sound import Piece, sentence
from suite.judge.statistics import Floats
from suite.judge.verdicts import ChangeVerdict
from suite.record.job import Setting
from suite.record.schema import Conditions, Counted, Evidence, Learned, windows_of
from suite.record.store import Records

LEAST = 3  # points on either side of a step
FEWEST = 8  # points of a series: with fewer, no order of them is improbable enough
RESAMPLES = 999
PLACE_RESAMPLES = 200
ALPHA = 0.05
SMALLEST = 5e-4
"""A change of less reads as +0.0 %, and is no news however sure it is."""
LEVEL = 0.95
METRICS = tuple(metric.name for metric in IN_HISTORY)


# one series, pure -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Split:
    """Describes the most probable step of a series: before point ``at`` (with an interval of places), and its p
    value."""

    at: int
    p_value: float
    low: int
    high: int
    block: int


def strongest_split(x: Floats, rng: np.random.Generator, resamples: int = RESAMPLES) -> Split:
    """Returns the step that explains x [n >= 2 LEAST] best. p = (1 + #{resampled statistic >= observed}) / (1 +
    resamples).

    The statistic is max over LEAST <= k <= n - LEAST of |W_k - mu_k| / sigma_k, W_k the sum of the first k midranks,
    sigma_k^2 = k (n - k) / (n - 1) times the ranks' variance, which is exact with ties. p is 1 for a constant series.
    """
    ranks = stats.rankdata(x)
    if np.ptp(ranks) == 0:
        return Split(LEAST, 1.0, LEAST, len(x) - LEAST, 1)
    at = LEAST + int(np.argmax(_scores(ranks)))
    residual = x - np.where(np.arange(len(x)) < at, np.median(x[:at]), np.median(x[at:]))
    block = block_length(residual)
    null = _scores(ranks[_orders(len(x), block, resamples, rng)]).max(axis=1)
    p_value = (1 + int((null >= _scores(ranks).max() - 1e-9).sum())) / (1 + resamples)
    low, high = _place_interval(x, at, rng)
    return Split(at, p_value, low, high, block)


def _scores(ranks: Floats) -> Floats:
    """Returns standardised rank sums [..., n] -> [..., n - 2 LEAST + 1], of the splits before LEAST .. n - LEAST."""
    n = ranks.shape[-1]
    k = np.arange(LEAST, n - LEAST + 1)
    sums = np.cumsum(ranks - ranks.mean(axis=-1, keepdims=True), axis=-1)[..., k - 1]
    variance = ranks.var(axis=-1, keepdims=True) * k * (n - k) / (n - 1)
    scores: Floats = np.abs(sums) / np.sqrt(variance)
    return scores


def block_length(residual: Floats) -> int:
    """Returns (2 rho / (1 - rho^2))^(2/3) n^(1/3), Carlstein's length for AR(1); 1 where neighbours are not alike.

    rho is the lag-1 autocorrelation of the residuals, corrected for its bias: about -(1 + 4 rho) / n
    for each of the two fitted levels (Marriott & Pope 1954).
    """
    n = len(residual)
    centred = residual - residual.mean()
    power = float(centred @ centred)
    if power == 0:
        return 1
    raw = float(centred[:-1] @ centred[1:]) / power
    rho = min(0.9, (n * raw + 2) / max(1.0, n - 8))
    if rho <= 1 / math.sqrt(n):  # a standard error of rho under independence
        return 1
    return max(1, min(n // 4, math.ceil((2 * rho / (1 - rho**2)) ** (2 / 3) * n ** (1 / 3))))


def _orders(n: int, block: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """Returns random orders [count, n] of whole blocks, cut at a random place of the circle."""
    starts = np.arange(0, n, block)
    keys = rng.random((count, len(starts)))
    shift = rng.integers(0, n, (count, 1)) if block > 1 else np.zeros((count, 1), dtype=int)
    order = np.argsort(np.repeat(keys, block, axis=1)[:, :n], axis=1, kind="stable")
    rolled: np.ndarray = (order + shift) % n
    return rolled


def _place_interval(x: Floats, at: int, rng: np.random.Generator) -> tuple[int, int]:
    """Returns the 95 % bootstrap interval of the step's place: each side resampled by itself, the strongest split found
    again."""
    n = len(x)
    left = rng.integers(0, at, (PLACE_RESAMPLES, at))
    right = rng.integers(at, n, (PLACE_RESAMPLES, n - at))
    again = stats.rankdata(x[np.concatenate([left, right], axis=1)], axis=1)
    again = again + 1e-9 * rng.random(again.shape)  # a resample may be constant
    places = LEAST + np.argmax(_scores(again), axis=1)
    low, high = np.quantile(places, [0.025, 0.975], method="nearest")
    return min(at, int(low)), max(at, int(high))


def segments(x: Floats, level: float, rng: np.random.Generator, first: Split | None = None) -> list[Split]:
    """Returns all steps with p <= ``level``, by binary segmentation, in order; ``first`` is the whole's, if known."""
    if len(x) < FEWEST:
        return []
    strongest = first or strongest_split(x, rng)
    at = strongest.at
    if strongest.p_value > level:
        return []
    right = [
        replace(segment, at=segment.at + at, low=segment.low + at, high=segment.high + at)
        for segment in segments(x[at:], level, rng)
    ]
    return [*segments(x[:at], level, rng), strongest, *right]


def shift(before: Floats, after: Floats) -> float:
    """Returns Hodges & Lehmann's estimate: the median of all differences after - before."""
    return float(np.median(np.subtract.outer(after, before)))


# series of records ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SeriesPoint:
    """Describes one replicate: ``log_ratio`` contender over reference, lower is better. ``revision``: all code behind
    it."""

    started: str
    replicate: int
    log_ratio: float
    revision: tuple[str, ...]
    machine: str
    commit: str
    record: str


@dataclass(frozen=True)
class Series:
    """Holds a pair's metric under one set of conditions, oldest point first. ``source``: of points that were merged
    from elsewhere, which are a series of their own; else empty."""

    stack: str
    reference: str
    conditions: Conditions
    metric: str
    points: tuple[SeriesPoint, ...]
    source: str = ""

    @property
    def values(self) -> Floats:
        return np.array([point.log_ratio for point in self.points])

    @property
    def name(self) -> str:
        c = self.conditions
        measured = f" of {self.source}" if self.source else ""
        return f"{self.stack} against {self.reference} on {c.baseline} {c.size} ({c.recipe}){measured}: {self.metric}"

    @property
    def setting(self) -> Setting:
        """Returns the setting that measures it again; of data that the user brought, a record knows the hash and not
        the place."""
        known = self.conditions.model_dump(include=set(Setting.model_fields))
        return Setting(**known | {"data": None})

    @property
    def exact(self) -> bool:
        """Tells whether every revision has one value."""
        seen: dict[tuple[str, ...], float] = {}
        metric = metric_of(self.metric)
        return (
            metric is not None
            and metric.exact
            and all(seen.setdefault(point.revision, point.log_ratio) == point.log_ratio for point in self.points)
        )


@dataclass(frozen=True)
class ChangePoint:
    """Describes a step of a series before its point ``at``. ``shift``: of the log ratio; above 0 is dearer.

    ``p_value`` is adjusted over the report, 0 for exact counts. ``fresh`` are the log ratios of a fresh comparison, if
    there was one, and ``verdict`` is what they say: "inconclusive" before it, and after one that does not decide;
    "regressed" or "improved" where it confirms the step, "equivalent" where it refutes it; "not comparable" where a
    later step hides this one from it.
    """

    series: Series
    at: int
    low: int
    high: int
    shift: float
    p_value: float
    before: Floats
    after: Floats
    last: bool
    verdict: ChangeVerdict = "inconclusive"
    fresh: tuple[float, ...] = ()

    @property
    def standing(self) -> str:
        """Tells how far the suspicion has come, in a word."""
        return {
            "inconclusive": "undecided" if self.fresh else "suspected",
            "equivalent": "not confirmed",
            "not comparable": "superseded",
        }.get(self.verdict, "confirmed")

    @property
    def changed(self) -> list[str]:
        """Tells what else changed there: code, machine, or nothing that is recorded."""
        a, b = self.series.points[self.at - 1], self.series.points[self.at]
        commits = f" ({a.commit[:8] or '?'} to {b.commit[:8] or '?'})" if a.commit != b.commit else ""
        code = [f"the code{commits}"] if a.revision != b.revision else []
        return code + ([f"the machine ({a.machine} to {b.machine})"] if a.machine != b.machine else [])

    def as_dict(self) -> dict[str, Any]:
        points = self.series.points
        return {
            "pair": {
                **self.series.conditions.model_dump(include={"baseline", "recipe", "task"}),
                "reference": self.series.reference,
                "stack": self.series.stack,
            },
            "size": self.series.conditions.size,
            "metric": self.series.metric,
            "points": len(points),
            "since": points[self.at].started,
            "between": [points[self.low - 1].started, points[min(self.high, len(points) - 1)].started],
            "records": [points[self.at - 1].record, points[self.at].record],
            "change": math.expm1(self.shift),
            "p_value": self.p_value,
            "changed": self.changed,
            "verdict": self.verdict,
            "fresh_ratios": [math.exp(log_ratio) for log_ratio in self.fresh],
        }

    def sentence(self) -> str:
        more = math.expm1(self.shift)
        sure = "exact" if self.p_value == 0 else f"p = {self.p_value:.2g} over the report"
        since = self.series.points[self.at].started[:10]
        what = ", ".join(self.changed) or "nothing that records tell"
        return (
            f"{self.standing}: {self.series.name} {more:+.1%} since {since} ({sure}; "
            f"{len(self.before)} replicates before, {len(self.after)} after); changed there: {what}"
        )


def series(
    records: Records,
    stacks: Sequence[str] = (),
    metrics: Sequence[str] = METRICS,
    left_out: list[str] | None = None,
) -> list[Series]:
    """Returns every pair's metrics by conditions; what failed has no point. ``stacks``: only these.

    A timing is a point, and so is every learned run and count of a stack that has one of its reference: of the same
    seed and machine where it was learned. What was merged from elsewhere makes no point of a series of ours.
    What gives no number is no point, with a sentence in ``left_out`` where nothing but the record's content says why.
    """
    unfit: dict[str, str] = {}
    points: dict[tuple[str, str, str, str, str], list[SeriesPoint]] = {}
    known: dict[str, Conditions] = {}
    for moment in _moments(records):
        if stacks and moment.stack not in stacks:
            continue
        line, c = moment.evidence, moment.evidence.conditions
        known[c.key] = c
        try:
            of_metrics = samples(moment.known, IN_HISTORY)
        except Exception as error:  # of one record, whatever it holds
            unfit.setdefault(line.id, sentence(records, line, error))
            continue
        for metric, values in of_metrics.items():
            for value in values.values() if metric in metrics else ():
                point = SeriesPoint(
                    line.started,
                    moment.replicate,
                    value,
                    moment.revision,
                    line.home.name,
                    str(line.machine.context.get("git_commit") or ""),
                    line.id,
                )
                points.setdefault((moment.stack, moment.reference, c.key, metric, line.source), []).append(point)
    if left_out is not None:
        left_out += unfit.values()
    return [
        Series(stack, reference, known[key], metric, tuple(sorted(its_points, key=lambda point: point.started)), source)
        for (stack, reference, key, metric, source), its_points in points.items()
    ]


@dataclass(frozen=True)
class _Moment:
    """Describes a piece of evidence that compares a stack with its reference. ``revision``: all code behind it."""

    evidence: Piece
    reference: str
    stack: str
    revision: tuple[str, ...]
    replicate: int
    known: Known


def _moments(records: Records) -> Iterator[_Moment]:
    counts: dict[tuple[str, str, str], list[Counted]] = defaultdict(list)
    for counted in records.counted:
        if counted.status == "ok":
            counts[counted.conditions.key, counted.source, counted.stack].append(counted)
    for timed in records.timed:
        reference, key, source = timed.reference, timed.conditions.key, timed.source
        for index, side in enumerate(timed.contenders[1:], 1):
            if {side.status, reference.status} != {"ok"}:
                continue
            if timed.windows_of(index) < windows_of(
                [*counts.get((key, source, reference.stack), ()), *counts.get((key, source, side.stack), ())]
            ):
                continue  # of the run's beginning alone, and its cost changes
            try:
                pair = timed_pair(timed, index)
            except (ValueError, ArithmeticError):
                continue  # its samples give no ratio; the leaderboard says which
            revision = (str(timed.protocol), reference.code.trajectory, side.code.trajectory)
            yield _Moment(timed, reference.stack, side.stack, revision, timed.replicate, Known(timed=(pair,)))
    runs: dict[tuple[str, str, str, int, str], list[Learned]] = defaultdict(list)
    for run in records.learned:
        if run.status == "ok":
            runs[run.conditions.key, run.source, run.bits, run.seed, run.stack].append(run)
    for (key, source, bits, seed, stack), of_stack in runs.items():
        against = card_reference(stack)
        references = runs.get((key, source, bits, seed, against), ()) if stack != against else ()
        for ours, theirs in _beside(of_stack, references):
            code = (theirs.code.trajectory, ours.code.trajectory)
            yield _Moment(ours, against, stack, code, seed, Known(learned=(LearnedPair(theirs, ours),)))
    for (key, source, stack), counts_of_stack in counts.items():
        against = card_reference(stack)
        for mine, other in _beside(counts_of_stack, counts.get((key, source, against), ()) if stack != against else ()):
            code = (other.code.counts, mine.code.counts)
            yield _Moment(mine, against, stack, code, 0, Known(counted=(other, mine)))


E = TypeVar("E", bound=Evidence)


def _beside(contenders: Sequence[E], references: Sequence[E]) -> Iterator[tuple[E, E]]:
    """Yields each contender's evidence with that of the reference that was started nearest to it; none without
    references."""
    ordered = sorted(references, key=lambda reference: reference.started)
    starts = [datetime.fromisoformat(reference.started) for reference in ordered]
    for contender in contenders if references else ():
        start = datetime.fromisoformat(contender.started)
        after = bisect_left(starts, start)
        near = range(max(0, after - 1), min(len(starts), after + 1))
        yield contender, ordered[min(near, key=lambda at: abs(starts[at] - start))]


def change_points(all_series: Iterable[Series]) -> list[ChangePoint]:
    """Returns the change points of all series, Benjamini-Hochberg over the report; the same for the same records."""
    rng = np.random.default_rng(0)
    exact: list[tuple[Series, list[Split]]] = []
    tested: list[tuple[Series, Split]] = []
    for series in all_series:
        if series.exact:
            steps = np.flatnonzero(np.diff(series.values)) + 1
            exact.append((series, [Split(int(at), 0.0, int(at), int(at), 1) for at in steps]))
        elif len(series.points) >= FEWEST:
            tested.append((series, strongest_split(series.values, rng)))
    adjusted = stats.false_discovery_control([split.p_value for _, split in tested]) if tested else np.zeros(0)
    passing = [position for position, p in enumerate(adjusted) if p <= ALPHA]
    level = max((tested[position][1].p_value for position in passing), default=0.0)
    noisy = [
        (tested[position][0], segments(tested[position][0].values, level, rng, tested[position][1]))
        for position in passing
    ]
    factor = len(tested) / max(1, len(passing))  # what adjusting does to the largest p that passes
    every = (point for timeline, splits in [*exact, *noisy] for point in _change_points(timeline, splits, factor))
    return [point for point in every if abs(math.expm1(point.shift)) >= SMALLEST]


def _change_points(series: Series, splits: Sequence[Split], factor: float) -> Iterable[ChangePoint]:
    x = series.values
    cuts = [0, *(split.at for split in splits), len(x)]
    for position, split in enumerate(splits):
        before, after = x[cuts[position] : split.at], x[split.at : cuts[position + 2]]
        yield ChangePoint(
            series,
            split.at,
            split.low,
            split.high,
            shift(before, after),
            min(1.0, split.p_value * factor),
            before,
            after,
            last=position == len(splits) - 1,
        )


# confirming -----------------------------------------------------------------------------------------------------------


def judged(step: ChangePoint, fresh: Floats) -> ChangePoint:
    """Returns the change point with the verdict of a fresh comparison [replicates].

    Confirmed: Welch's interval of fresh - before lies wholly on the step's side of 0. Refuted: it lies wholly short of
    half the step. Inconclusive else: more replicates tell. An exact count is confirmed by the value after the step.
    """
    confirmed: ChangeVerdict = "regressed" if step.shift > 0 else "improved"
    verdict: ChangeVerdict
    if step.series.exact:
        verdict = confirmed if np.allclose(fresh, step.after[-1], rtol=0, atol=1e-12) else "equivalent"
    else:
        ends = stats.ttest_ind(fresh, step.before, equal_var=False).confidence_interval(LEVEL)
        low, high = sorted(math.copysign(1, step.shift) * float(end) for end in (ends.low, ends.high))
        half = abs(step.shift) / 2
        verdict = confirmed if low > 0 else "equivalent" if high < half else "inconclusive"
    return replace(step, verdict=verdict, fresh=tuple(map(float, fresh)))


def alarms(steps: Iterable[ChangePoint]) -> list[ChangePoint]:
    """Returns the changes for the worse that a fresh comparison confirmed."""
    return [step for step in steps if step.verdict == "regressed"]


def summary(all_series: Sequence[Series], steps: Sequence[ChangePoint]) -> str:
    """Tells how many series were searched, and how many were too short for that."""
    short = [series for series in all_series if not series.exact and len(series.points) < FEWEST]
    most = max((len(series.points) for series in short), default=0)
    left = f"; {len(short)} too short to tell ({FEWEST} replicates needed, they have up to {most})" if short else ""
    return f"{len(steps)} change points in {len(all_series)} series{left}"
