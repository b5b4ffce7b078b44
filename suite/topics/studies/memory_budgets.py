"""Measures time against memory: every solver at a series of budgets, as predicted and as measured, on a baseline's own
model.

Chains are profiled on this machine's clock. Each plan is then executed: its pass is timed beside a plain one, in turn,
and its peak counted. The second tier is the host's memory behind a link that is paced: it carries what a plain pass
saves in the time that pass takes, so that neither offloading nor recomputation is free. The meter that counts the peak
slows the pass down, and the link with it.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from suite.chain.chain import Chain, Link
from suite.chain.engine import scheduled
from suite.chain.plan import Plan, budget_between, unplanned
from suite.chain.tiers import HostTier
from suite.entries.together import run_of
from suite.loop.chains import blocks_of, chains_of
from suite.loop.run import Run
from suite.measure.exact import one_thread
from suite.meters.live import LiveBytes
from suite.model.calls import undisturbed
from suite.record.job import BASELINE, Job
from suite.topics.memory_plan.within_budgets import solved, solvers
from suite.topics.studies.lab import Lab, StudyTable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHARES = (0.0, 0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 1.0)
PASSES = 15
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
LARGEST_BYTES, ALL_BYTES = 32 << 20, (1 << 31) - 1  # the most that they may be
TABLE = "time_against_memory"
NOTE = (
    "Budgets are shares of the way from the least peak without a second tier (0) to a plain pass's (1). Times are over "
    "a plain pass's: predicted from the profile on this clock, measured as the median of passes in turn with plain "
    "ones. Peaks are of a pass: activations and gradients. What moves to the second tier is alive until its transfer "
    "ends: with it peaks depend on times, without it they are exact. Predictions have a block's backward pass wait for "
    "all that it needs, where autograd begins with what is there, and asking for a transfer cost nothing. n/a: the "
    "solver has no schedule for the budget"
)


class BudgetRow(NamedTuple):
    """Describes one solver at one budget; None where it has no schedule."""

    technique: str
    budget_share: float
    budget_bytes: int
    predicted_time: float | None
    measured_time: float | None
    predicted_peak_bytes: int | None
    measured_peak_bytes: int | None
    extra_forwards: int | None
    moved_bytes: int | None
    solve_s: float


@dataclass(frozen=True)
class _Bench:
    """Holds a model, its chains, and a batch to pass through it; ``slowed``: times as long a pass takes whose live
    bytes are counted."""

    run: Run
    chains: list[Chain]
    one_pass: Callable[[], None]
    slowed: float

    @property
    def link(self) -> Link:
        """Returns a link that carries what a plain pass saves in a plain pass's time."""
        rate = sum(prediction.turn_bytes for prediction in unplanned(self.chains).predictions) / self.chains[0].pass_s
        return Link(rate, rate)

    def predicted_time(self, plan: Plan) -> float:
        """Returns the pass's seconds over a plain one's."""
        return (plan.time_s + self.chains[0].outside_s) / self.chains[0].pass_s

    def executed(self, plan: Plan, slowed: float) -> ExitStack:
        """Returns the context in which the plan runs, with a tier of its own behind a link as much slower as the pass
        is."""
        contexts, tier = ExitStack(), HostTier(link_bytes_per_s=self.link.out_bytes_per_s / slowed)
        for blocks, schedule in zip(blocks_of(self.run), plan.schedules, strict=True):
            contexts.enter_context(scheduled(blocks, schedule, tier))
        return contexts

    def peak_bytes(self, plan: Plan) -> int:
        live = LiveBytes()
        with self.executed(plan, self.slowed), live:
            self.one_pass()
        return live.high_bytes

    def time_ratio(self, plan: Plan) -> float:
        """Returns the median over PASSES of a pass's seconds over those of the plain ones before and after it. The link
        is as fast or slow as the plain one before it, so that a shared machine's speed is not in the ratio."""
        ratios: list[float] = []
        before_s = _seconds(self.one_pass)
        for _ in range(PASSES + 1):
            with self.executed(plan, before_s / self.chains[0].pass_s):
                planned_s = _seconds(self.one_pass)
            after_s = _seconds(self.one_pass)
            ratios.append(planned_s / ((before_s + after_s) / 2))
            before_s = after_s
        return median(ratios[1:])


def keep_freed_memory() -> None:
    """Has glibc's allocator keep what is freed, as a GPU's does: pages that go back to the system and come again cost
    a pass more than copying them."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, LARGEST_BYTES)
        mallopt(M_TRIM_THRESHOLD, ALL_BYTES)


def _seconds(one_pass: Callable[[], None]) -> float:
    started = time.perf_counter()
    one_pass()
    return time.perf_counter() - started


def study(lab: Lab) -> list[StudyTable]:
    """Returns the table ``time_against_memory``: a row for each solver and budget."""
    run = run_of(Job(setting=lab.setting, stack=BASELINE))
    keep_freed_memory()
    with one_thread(), undisturbed(run.model):
        run.model.train()
        return [StudyTable(TABLE, BudgetRow._fields, _rows(lab, _bench(run)), NOTE)]


def _bench(run: Run) -> _Bench:
    batch, _ = run.next_batch()

    def one_pass() -> None:
        run.optimizer.zero_grad(set_to_none=True)
        run.forward(batch).backward()

    chains = chains_of(run, on_the_clock=True)
    with LiveBytes():
        metered_s = median(_seconds(one_pass) for _ in range(PASSES))
    return _Bench(run, chains, one_pass, metered_s / chains[0].pass_s)


def _rows(lab: Lab, bench: _Bench) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    known: dict[tuple[object, ...], tuple[float, int]] = {}  # schedules that were executed
    wanted = [(name, solver, share) for name, solver in solvers().items() for share in SHARES]
    for done, (name, solver, share) in enumerate(wanted):
        lab.progress(done / len(wanted), name)
        budget = budget_between(bench.chains, share)
        answer = solved(name, solver, bench.chains, budget, bench.link)
        plan = answer.plan
        if plan is None:
            rows.append((name, share, budget, *[None] * 6, answer.solve_s))
            continue
        if plan.schedules not in known:
            known[plan.schedules] = bench.time_ratio(plan), bench.peak_bytes(plan)
        measured_time, measured_peak = known[plan.schedules]
        rows.append(
            tuple(
                BudgetRow(
                    name,
                    share,
                    budget,
                    bench.predicted_time(plan),
                    measured_time,
                    plan.peak_bytes,
                    measured_peak,
                    sum(schedule.extra_forwards for schedule in plan.schedules),
                    sum(prediction.out_bytes for prediction in plan.predictions),
                    answer.solve_s,
                )
            )
        )
    return rows


def plot(tables: Sequence[StudyTable]) -> Figure:
    """Draws time over a plain pass's against the peak: a line for each solver as predicted, points as measured."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5.5), layout="constrained")
    axes = figure.add_subplot()
    (table,) = (table for table in tables if table.name == TABLE)
    rows = [BudgetRow(*row) for row in table.rows]
    plain = max(row.budget_bytes for row in rows)
    for number, name in enumerate(dict.fromkeys(row.technique for row in rows)):
        own = [row for row in rows if row.technique == name and row.predicted_time is not None]
        predicted, measured = (
            [(float(peak or 0) / plain, float(time_ratio or 0)) for peak, time_ratio in cells]
            for cells in (
                [(row.predicted_peak_bytes, row.predicted_time) for row in own],
                [(row.measured_peak_bytes, row.measured_time) for row in own],
            )
        )
        colour, line = f"C{number % 10}", ("-", "--", ":")[number // 10 % 3]
        axes.plot(*_columns(sorted(predicted)), color=colour, linestyle=line, linewidth=1.2, label=name)
        axes.plot(*_columns(measured), "o", color=colour, markersize=3.5)
    axes.axhline(1, color="0.7", linewidth=0.8)
    axes.set_xlabel("peak of a pass, over a plain pass's (activations and gradients)")
    axes.set_ylabel("time of a pass, over a plain pass's")
    axes.set_title("Lines: predicted. Points: measured here.", fontsize=10, loc="left")
    axes.legend(fontsize=8, ncols=2, frameon=False, loc="upper right")
    return figure


def _columns(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]
