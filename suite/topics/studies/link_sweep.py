"""Measures speed-up against bandwidth: a stack on several ranks and its reference, in lock-step on one rate-limited
link.

The link is that of :mod:`suite.measure.links`, each rank a node. At each rate the sides take turns, so that what a rate
or a neighbour does to one it does to the other. Beside what was measured stands the alpha-beta model: a step takes what
it takes without a limit and, all of it waited for, what its bytes and messages take longer on the link. Where no
link can be made the model is all there is, and the tables say why.

The crossover is the bandwidth at which both sides take equally long: the line between two rates says where, and a step
is measured there, too. What takes long is measured less often: at a slow rate one side is far ahead.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from suite.entries.card import LinkSweep
from suite.entries.catalogue import reference_of
from suite.judge.statistics import median_interval
from suite.measure.contenders.contender import Contender, LinkSpeed, StepTraffic
from suite.measure.contenders.lockstep import in_rounds
from suite.measure.links import BURST_BYTES, LinkedNodes, reason_without_links
from suite.pipeline.link import AlphaBeta
from suite.record.job import Job, canonical
from suite.topics.studies.lab import Lab, StudyTable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BY_BANDWIDTH, CROSSOVERS = "speedup_by_bandwidth", "crossover"
ROUNDS = 6  # of two blocks a side: as few as have an interval
RATE_S = 8.0  # of rounds at one rate: no round begins that would end later, but for the first
BURNED = 0.3  # of a schedule: a warm-up of a quarter of it is over when the first step is timed
NOTE = (
    "Both sides in turn on one link; step times are medians of the rounds, up to {rounds} of them within {seconds:g} "
    "s; of {rounds} the speed-up has an interval (of its median, 95 %). Rate and latency are those of all-reduces on "
    "the link as it was. Modelled: the step without a limit, and alpha and beta of all that it sends but for the "
    "limiter's burst, as if nothing overlapped; where nothing was measured, at the rate asked for."
)
READING = "Where both sides take equally long: the stack is faster below it where its speed-up falls with the rate."
MEASURED, MODELLED, PAPER = "measured", "modelled", "paper"


class LinkRow(NamedTuple):
    """Describes one rate; None: no limit, and nothing measured where there is no link. Times in ms, latency too; the
    ends of the speed-up where there were enough rounds."""

    mbit: float | None
    link_mbit: float | None
    latency_ms: float | None
    reference_ms: float | None
    stack_ms: float | None
    speedup: float | None
    speedup_low: float | None
    speedup_high: float | None
    rounds: int
    modelled_reference_ms: float
    modelled_ms: float
    modelled_speedup: float


class CrossoverRow(NamedTuple):
    """Says where the stack and its reference take equally long, and where the paper measured."""

    evidence: str
    mbit: float | None
    speedup: float | None
    reading: str


@dataclass(frozen=True)
class StepModel:
    """Holds the alpha-beta model of a step: its seconds on a ``free`` link, and what it sends."""

    seconds: float
    sent: StepTraffic
    free: AlphaBeta

    def at(self, link: AlphaBeta) -> float:
        """Returns the seconds of a step on the link."""
        size, messages = self.sent.sent_bytes, self.sent.messages
        return self.seconds + link.seconds(size, messages) - self.free.seconds(size, messages)


@dataclass
class Sides:
    """Holds the two contenders that take turns; ``network`` is None where no link can be made."""

    contenders: dict[str, Contender]
    network: LinkedNodes | None

    def speed(self, burst_bytes: float = 0.0) -> AlphaBeta:
        """Returns the speed of the link as it is; what its limiter saves up is known."""
        several = next(contender for contender in reversed(self.contenders.values()) if contender.world_size > 1)
        link: LinkSpeed = several.link()
        return AlphaBeta(link.latency_s, link.bytes_per_s, burst_bytes)

    def times(self, coin: random.Random) -> dict[str, list[float]]:
        """Returns the seconds of a step of each side, of each round that there is time for; of one at least."""

        def block(side: str, _: int) -> float:
            return self.contenders[side].block(1).seconds

        seconds: dict[str, list[float]] = {side: [] for side in self.contenders}
        start_s = time.monotonic()
        for done, timed_round in enumerate(in_rounds(list(self.contenders), ROUNDS, coin, block), 1):
            for side, pair in timed_round.block_s.items():
                seconds[side].append(math.exp((math.log(pair[0]) + math.log(pair[1])) / 2))
            if (time.monotonic() - start_s) * (done + 1) / done > RATE_S:
                break
        return seconds


def study(lab: Lab, asked: LinkSweep) -> list[StudyTable]:
    """Returns the tables ``speedup_by_bandwidth`` and ``crossover``. Raises ContenderFailed where a side fails."""
    stack, (reference, _) = canonical(asked.stack), reference_of(asked.stack)
    why = reason_without_links()
    if why:
        lab.warn(f"no link between ranks: unavailable ({why}): times are modelled")
    steps, burned = schedule_of(len(asked.mbit))
    setting = lab.setting.but(steps=steps)
    end_s = time.monotonic() + 60 * lab.minutes
    with ExitStack() as held:
        contenders: dict[str, Contender] = {
            side: Contender(Job(setting=setting, stack=side)) for side in (reference, stack)
        }
        ranks = max(side.world_size for side in contenders.values())
        network = None if why else held.enter_context(LinkedNodes(ranks))
        for contender in contenders.values():
            contender.network = network
            held.enter_context(contender)
        sides = Sides(contenders, network)
        for contender in contenders.values():
            contender.prepare()
            contender.set_up()
            contender.block(burned)
        rows = measured(sides, asked.mbit, lab, end_s)
    note = NOTE.format(rounds=ROUNDS, seconds=RATE_S) + (f" Measured: unavailable ({why})." if why else "")
    return [
        StudyTable(BY_BANDWIDTH, LinkRow._fields, [tuple(row) for row in rows], note),
        StudyTable(CROSSOVERS, CrossoverRow._fields, [tuple(row) for row in crossovers(rows, asked)], READING),
    ]


def schedule_of(rates: int) -> tuple[int, int]:
    """Steps of a schedule, and those of them before the first that is timed: of as many ``rates``, of none, and of one
    between two, and a step whose traffic is counted."""
    timed = 2 * ROUNDS * (rates + 2) + 1
    steps = math.ceil(timed / (1 - BURNED))
    return steps, steps - timed


def measured(sides: Sides, rates: Sequence[float], lab: Lab, end_s: float) -> list[LinkRow]:
    """Returns a row without a limit, one for each rate, the fastest first, and one for where the sides take equally
    long by those; of those that the time is up for the model."""
    coin = random.Random(0)
    none = StepTraffic(sent_bytes=0, messages=0)
    traffic = [contender.traffic() if contender.world_size > 1 else none for contender in sides.contenders.values()]
    free, taken = sides.speed(), list(sides.times(coin).values())
    models = [StepModel(median(own), sent, free) for own, sent in zip(taken, traffic, strict=True)]
    on_links = sides.network is not None
    burst = BURST_BYTES if on_links else 0  # that a step begins with: it is longer than a limiter takes to save it

    def at(rate: float) -> LinkRow:
        if sides.network is None or time.monotonic() >= end_s:
            return row_of(rate, None, None, models, AlphaBeta(free.latency_s, rate * 1e6 / 8, burst))
        sides.network.limit(rate)
        link, own = sides.speed(burst), list(sides.times(coin).values())
        return row_of(rate, link, own, models, link)

    rows = []
    for done, rate in enumerate(sorted(rates, reverse=True)):
        lab.progress((done + 1) / (len(rates) + 2), f"{rate:g} Mbit/s")
        rows.append(at(rate))
    points = [(row.mbit, row.speedup) for row in rows if row.mbit and row.speedup]
    if len(points) == len(rows) and (between := crossover(MEASURED, points).mbit):
        lab.progress((len(rates) + 1) / (len(rates) + 2), f"{between:.3g} Mbit/s")
        rows.append(at(float(f"{between:.3g}")))
    first = row_of(None, free if on_links else None, taken if on_links else None, models, free)
    return [first, *sorted(rows, key=lambda row: row.mbit or 0.0, reverse=True)]


def row_of(
    mbit: float | None,
    link: AlphaBeta | None,
    taken: Sequence[Sequence[float]] | None,
    models: Sequence[StepModel],
    modelled: AlphaBeta,
) -> LinkRow:
    """Returns the row of a rate: what was ``taken`` there by the reference and the stack, if anything, and what the
    ``models`` say of a link."""
    there = [model.at(modelled) for model in models]
    theirs = (1e3 * there[0], 1e3 * there[1], there[0] / there[1])
    if link is None or taken is None:
        return LinkRow(mbit, None, None, None, None, None, None, None, 0, *theirs)
    ratio = median_interval([math.log(a / b) for a, b in zip(*taken, strict=True)]).ratio()
    reference_s, stack_s = (median(own) for own in taken)
    low, high = (ratio.low, ratio.high) if math.isfinite(ratio.high) else (None, None)
    now = link.bytes_per_s * 8 / 1e6, 1e3 * link.latency_s
    return LinkRow(mbit, *now, 1e3 * reference_s, 1e3 * stack_s, ratio.estimate, low, high, len(taken[0]), *theirs)


def crossovers(rows: Sequence[LinkRow], asked: LinkSweep) -> list[CrossoverRow]:
    """Returns the crossovers by what was measured, by the model, and the paper's setting."""
    seen = [(row.link_mbit, row.speedup) for row in rows if row.link_mbit and row.speedup]
    modelled = [(row.link_mbit or row.mbit, row.modelled_speedup) for row in rows]
    marks = [crossover(MEASURED, seen)] if seen else []
    marks.append(crossover(MODELLED, [(mbit, speedup) for mbit, speedup in modelled if mbit]))
    return [*marks, CrossoverRow(PAPER, asked.paper_mbit, asked.paper_speedup, asked.paper or "it names no bandwidth")]


def crossover(evidence: str, points: Sequence[tuple[float, float]]) -> CrossoverRow:
    """Finds where the line through (Mbit/s, speed-up), both logarithmic, crosses a speed-up of 1; the lowest such
    rate."""
    ordered = sorted(points)
    for (below, left), (above, right) in pairwise(ordered):
        if (left - 1) * (right - 1) < 0:
            share = math.log(left) / (math.log(left) - math.log(right))
            at = math.exp(math.log(below) + share * (math.log(above) - math.log(below)))
            return CrossoverRow(evidence, at, 1.0, f"faster {'below' if left > 1 else 'above'} {at:.3g} Mbit/s")
    always = "faster" if ordered[0][1] > 1 else "slower"
    low, high = ordered[0][0], ordered[-1][0]
    return CrossoverRow(evidence, None, None, f"{always} at all rates from {low:.3g} to {high:.3g} Mbit/s")


def plot(tables: Sequence[StudyTable]) -> Figure:
    """Draws speed-up against bandwidth, measured with intervals and modelled; crossovers, and where the paper
    measured."""
    from matplotlib.figure import Figure

    rows = [LinkRow(*row) for row in tables[0].rows]
    marks = [CrossoverRow(*row) for row in tables[1].rows]
    figure = Figure(figsize=(6, 4.2), layout="constrained")
    axes = figure.subplots()
    seen = sorted((row for row in rows if row.link_mbit and row.speedup), key=lambda row: row.link_mbit or 0)
    if seen:
        middle = [row.speedup or 1 for row in seen]
        low = [max(0.0, at - (row.speedup_low or at)) for at, row in zip(middle, seen, strict=True)]
        high = [max(0.0, (row.speedup_high or at) - at) for at, row in zip(middle, seen, strict=True)]
        axes.errorbar([row.link_mbit or 0 for row in seen], middle, [low, high], marker="o", label="measured")
    line = sorted((mbit, row.modelled_speedup) for row in rows if (mbit := row.link_mbit or row.mbit))
    axes.plot([mbit for mbit, _ in line], [speedup for _, speedup in line], "--", color="grey", label="modelled")
    axes.axhline(1.0, color="black", linewidth=0.8)
    for mark in marks:
        if mark.mbit is None:
            continue
        said = mark.reading if mark.evidence != PAPER else f"the paper's network: {mark.mbit:g} Mbit/s"
        style = {MEASURED: "-", MODELLED: "--", PAPER: ":"}[mark.evidence]
        axes.axvline(mark.mbit, linestyle=style, linewidth=0.8, color="grey")
        axes.plot([mark.mbit], [mark.speedup or 1.0], "s" if mark.evidence == PAPER else "x", label=said)
    axes.set(xlabel="bandwidth between ranks (Mbit/s)", ylabel="speed-up over the reference", xscale="log")
    axes.set_yscale("log")
    axes.legend(fontsize="small")
    return figure
