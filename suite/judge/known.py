"""Collects what is known of a pair, a contender against its reference: counted, learned seed by seed, timed set by set.

Every ratio is a *cost*, contender over reference: below 1 is better, a speedup is its inverse. The sides may have
different numbers of steps, so the unit of progress is the *reference step*: a contender of half the steps makes two
with each of its own. Training cost is the time per such step.

A step's cost may change during a run (growth, pruning, freezing): each timed window is priced at the median of its
rounds' log ratios, which keeps the hiccups of a shared machine out, and all windows weigh alike. What the warm-up took
beyond that pace (compilation) belongs to the set-up cost.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from suite.judge.ruler import Ruler
from suite.judge.statistics import Floats, median, round_log_ratios
from suite.record.schema import Counted, Counters, Evaluation, Learned, Side, Timed


@dataclass(frozen=True)
class Facts:
    """Records what one run of a stack gives without noise: its counts, and how it ended; or why there is nothing."""

    stack: str
    steps: int | None = None
    counters: Counters | None = None
    final: Evaluation | None = None
    probes: Mapping[str, float] = field(default_factory=dict)
    unavailable: str = ""


def counters_of(counted: Counted | None) -> Counters | None:
    """Returns the counts of a run: FLOPs are the mean over its fifths, all else is of the step with the largest
    peak."""
    if counted is None or not counted.points:
        return None
    counts = [point.counters for point in counted.points]
    largest = max(counts, key=lambda counters: counters.peak_tensor_bytes)
    return largest.model_copy(update={"flops": round(sum(counters.flops for counters in counts) / len(counts))})


@dataclass(frozen=True)
class LearnedPair:
    """Describes one seed: what both sides learned. ``twins``: runs of other stacks that had the reference's trajectory
    to the bit, such as the contender's at zero strength: what they measured is measured of the reference."""

    reference: Learned
    contender: Learned
    twins: tuple[Learned, ...] = ()

    @property
    def seed(self) -> int:
        return self.contender.seed

    @property
    def sides(self) -> tuple[Learned, Learned]:
        return self.reference, self.contender

    @property
    def reference_probes(self) -> dict[str, float]:
        """Returns the reference's own probes, and its twins'."""
        return {name: value for run in (*self.twins, self.reference) for name, value in run.probes.items()}


def equals_reference(theirs: Mapping[int, Learned], ours: Mapping[int, Learned]) -> bool:
    """Tells whether a stack had the reference's trajectory and end to the bit, in every seed that both have learned,
    and measured nothing besides: then it has them in all other seeds, too, and none of them needs a run.

    What recomputes or moves tensors changes no bit of a run. The rule is the one by which a single repeated run renews
    those of all seeds.
    """
    both = [(theirs[seed], ours[seed]) for seed in theirs.keys() & ours.keys()]
    return bool(both) and all(
        (a.status, a.trajectory_sha256, a.final) == (b.status, b.trajectory_sha256, b.final)
        and b.status == "ok"
        and b.trajectory_sha256
        and not b.probes
        for a, b in both
    )


def completed(theirs: Mapping[int, Learned], ours: Mapping[int, Learned]) -> Mapping[int, Learned]:
    """Returns a stack's runs by seed; the reference's stand for those that it need not repeat."""
    return {**theirs, **ours} if equals_reference(theirs, ours) else ours


@dataclass(frozen=True)
class TimedPair:
    """Describes one set of processes: what both sides cost. ``record``: the timing's id; ``processor``: the CPU's name.

    ``window_log_ratios``: of each window the ln of the contender's time per own step over the reference's, a value a
    round. ``setup_cost``: what the contender's set-up took more than the reference's, in reference steps, what its
    warm-up took beyond its pace included; negative when it took less.
    """

    replicate: int
    record: str
    processor: str
    threads: int
    reference: Side
    contender: Side
    progress: tuple[float, ...]
    window_log_ratios: tuple[Floats, ...]
    reference_step_s: float
    setup_cost: float

    @property
    def sides(self) -> tuple[Side, Side]:
        return self.reference, self.contender

    @cached_property
    def step_log_ratios(self) -> Floats:
        """Returns the log ratios of a step in all rounds."""
        return np.concatenate(self.window_log_ratios)

    @cached_property
    def paces(self) -> Floats:
        """Returns ln of the time per reference step of progress [windows]."""
        assert self.contender.steps and self.reference.steps
        progress = math.log(self.contender.steps / self.reference.steps)
        return np.array([median(ratio) for ratio in self.window_log_ratios]) + progress

    @property
    def training_log_ratio(self) -> float:
        """Returns ln of the contender's training time over the reference's."""
        return math.log(float(np.exp(self.paces).mean()))

    @property
    def training_log_samples(self) -> Floats:
        """Returns the rounds' log ratios, moved so that the middle of each window is :attr:`training_log_ratio`."""
        middles = np.array([median(ratio) for ratio in self.window_log_ratios])
        around = np.concatenate([ratio - middle for ratio, middle in zip(self.window_log_ratios, middles, strict=True)])
        return around + self.training_log_ratio

    @property
    def log_cost(self) -> float:
        """Returns ln of the contender's whole cost, set-up included, over that of the reference's training."""
        assert self.reference.steps
        whole = math.exp(self.training_log_ratio) + self.setup_cost / self.reference.steps
        return math.log(whole) if whole > 0 else -math.inf

    def cost_at(self, progress: Floats) -> Floats:
        """Returns what the contender has spent when shares of its run are done, in shares of the reference's
        training."""
        assert self.reference.steps
        ends = np.array([*self.progress, 1.0])
        spent = np.concatenate([[0.0], np.cumsum(np.exp(self.paces) * np.diff(ends))])
        cost: Floats = np.interp(progress, ends, spent) + self.setup_cost / self.reference.steps
        return cost


def timed_pair(timed: Timed, index: int) -> TimedPair:
    """Compares contender ``index`` of a timing with its reference; both have status ok.

    Raises ValueError with one sentence on samples that give no ratio.
    """
    reference, contender = timed.reference, timed.contenders[index]
    if not (reference.steps and contender.steps):
        raise ValueError("the number of steps was not recorded")
    if reference.setup_s is None or contender.setup_s is None:
        raise ValueError("the set-up time was not recorded")
    shared = min(len(reference.windows), len(contender.windows))
    windows = list(zip(reference.windows[:shared], contender.windows[:shared], strict=True))
    if not windows or any(len(a.block_s) != len(b.block_s) for a, b in windows):
        raise ValueError("the sides were not timed in the same rounds")
    ratios, paces_s = [], []
    for a, b in windows:
        times_a, times_b = (np.array(window.block_s, dtype=np.float64) / window.block_steps for window in (a, b))
        ratios.append(round_log_ratios(times_a, times_b))
        paces_s.append(median(times_a.mean(axis=1)))
    pair = TimedPair(
        replicate=timed.replicate,
        record=timed.id,
        processor=str(timed.machine.facts.get("cpu") or ""),
        threads=timed.conditions.threads,
        reference=reference,
        contender=contender,
        progress=tuple(a.progress for a, _ in windows),
        window_log_ratios=tuple(ratios),
        reference_step_s=paces_s[0],
        setup_cost=(_setup_s(contender) - _setup_s(reference)) / paces_s[0],
    )
    if not np.isfinite([pair.training_log_ratio, pair.setup_cost, pair.reference_step_s, pair.log_cost]).all():
        raise ValueError("its times are not those of a run")
    return pair


def _setup_s(side: Side) -> float:
    """Returns the seconds of the set-up, and of the warm-up beyond the pace of the first window."""
    assert side.setup_s is not None
    first = side.windows[0]
    pace_s = median(np.array(first.block_s).mean(axis=1)) / first.block_steps
    excess_s = side.warmup_s - side.warmup_steps * pace_s if side.warmup_s is not None else 0.0
    return side.setup_s + excess_s


@dataclass(frozen=True)
class Known:
    """Holds all that is known of a pair. ``counted`` are both sides, reference first."""

    counted: tuple[Counted | None, Counted | None] = (None, None)
    learned: Sequence[LearnedPair] = ()
    timed: Sequence[TimedPair] = ()
    ruler: Ruler | None = None

    @property
    def does_the_same(self) -> bool:
        """Tells whether the contender is the reference by another name: its runs are the reference's to the bit,
        and its steps cost the same by every count. How its times differ is chance, then, and what such pairs are
        good for."""
        theirs, ours = self.counted
        if not (theirs and ours and self.learns_the_same):
            return False
        costs = [[point.counters for point in side.points] for side in (theirs, ours)]
        return costs[0] == costs[1]

    @property
    def learns_the_same(self) -> bool:
        """Tells whether every run of the contender is the reference's to the bit, whatever its steps cost."""
        sides = [(run.reference, run.contender) for run in self.learned]
        return bool(sides) and all((a.train_loss, a.final) == (b.train_loss, b.final) for a, b in sides)

    def never_acted(self, probes: Iterable[str]) -> str:
        """Tells which of these probes, of what a mechanism does, is 0 in every seed; empty where none is, or nobody
        knows."""
        for name in probes:
            values = [run.contender.probes.get(name) for run in self.learned]
            if values and all(value is not None and value <= 0 for value in values):
                return f"{name} is 0 in every seed: the mechanism never acted"
        return ""

    @cached_property
    def counters(self) -> tuple[Counters | None, Counters | None]:
        """Returns the counts of both sides' runs."""
        theirs, ours = map(counters_of, self.counted)
        return theirs, ours

    def facts(self) -> list[tuple[Facts, Facts]]:
        """Returns both sides of every seed; where nothing was learned, one pair with the counts alone."""

        def counts(index: int) -> Facts:
            counted = self.counted[index]
            of_steps = counted.probes if counted else {}
            return Facts(counted.stack if counted else "", counters=self.counters[index], probes=of_steps)

        def side(index: int, learned: Learned, probes: Mapping[str, float]) -> Facts:
            counted = self.counted[index]
            of_steps = counted.probes if counted else {}
            return Facts(learned.stack, learned.steps, self.counters[index], learned.final, {**probes, **of_steps})

        if not self.learned:
            return [(counts(0), counts(1))] if any(self.counted) else []
        return [
            (side(0, run.reference, run.reference_probes), side(1, run.contender, run.contender.probes))
            for run in self.learned
        ]

    def losses(self) -> tuple[list[float], list[float]]:
        """Returns the final test losses of the references and of the contenders, by seed. Raises ValueError where one
        is none."""
        if not self.learned:
            raise ValueError("nothing was learned yet")
        theirs, ours = (
            [side.final.loss if side.final else math.nan for side in sides]
            for sides in zip(*(run.sides for run in self.learned), strict=True)
        )
        if not all(loss > 0 for loss in (*theirs, *ours)):
            raise ValueError("no final test loss, positive and finite, was recorded")
        return theirs, ours
