"""Tells which stacks are worth a user's time: a choice among them by counts and records, as pure functions.

Of every entry the records say what it costs in time, in bytes and in quality, each as the logarithm of a cost ratio to
the baseline: below 0 is better. A stack is expected to cost the sum, as if gains multiplied; what they do together is
then counted, and measured. Two members of one category do the same job, and two that fill one slot of a technique's
contract exclude each other; both are left out. Whatever is left out has a reason.

    entries ── useful ── stacks ── by_promise ── counted ── ranked ── measured ── halved
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Literal, get_args

from pydantic import Field

from suite.judge.statistics import QUALITY_TOLERANCE, Interval, replicate_interval
from suite.loop.technique import SLOTS
from suite.record.files import Stored
from suite.record.job import Spelling, join

Goal = Literal["time", "memory", "quality"]
GOALS: tuple[Goal, ...] = get_args(Goal)

MOST_MEMBERS = 3
A_CATEGORY = 2  # members that are counted: most of one are nearly as good as each other
WORTH = math.log(1.02)  # a gain below 2 % is none that these records can tell
KEEPS = 0.8  # of the reference's budget: a stack that is worth less is no saving of memory, but another training
FINALISTS = 2  # of the last rung
NORMAL = 1.96  # half-width of a 95 % interval, in standard errors
EXPECTED = "expected of its members"
BY_FLOPS = "by its FLOPs"


@dataclass(frozen=True)
class Estimate:
    """Holds ln of a cost ratio to the baseline, and its standard error (0: exact); ``source``: in words, where it is
    from. One that is no more than a bound is infinite to the side that is open."""

    log: float
    error: float = 0.0
    source: str = ""

    @property
    def ends(self) -> tuple[float, float]:
        """Returns the 95 % interval of the cost ratio; of one replicate unbounded."""
        if not math.isfinite(self.error):
            return 0.0, math.inf
        return math.exp(self.log - NORMAL * self.error), math.exp(self.log + NORMAL * self.error)

    @classmethod
    def of(cls, log: Interval, source: str) -> Estimate:
        return cls(log.estimate, log.half_width / NORMAL, source)


SAME = Estimate(0.0)
UNKNOWN = Estimate(0.0, source="unknown")
"""Of which nothing is known: it orders as if it changed nothing."""


def together(estimates: Iterable[Estimate]) -> Estimate:
    """Returns what a stack is expected to cost: ratios multiply, variances of their logarithms add."""
    logs = list(estimates)
    if len(logs) == 1:
        return logs[0]
    return Estimate(sum(log.log for log in logs), math.hypot(*(log.error for log in logs)), EXPECTED)


@dataclass(frozen=True)
class Member:
    """Describes an entry, as a choice sees it.

    Attributes:
        changes: the methods of the contract that it changes.
        plans: whether it schedules the passes of the model's blocks.
        time: of training, by reference step; None where nothing is known, as for the next two.
        quality: the inverse of its equivalent budget.
        peak: most bytes at once.
        progress: ln of its steps over the reference's.
        why_not: why no stack may have it; empty where one may.
        note: what a reader should know of its evidence.
    """

    id: str
    category: str
    changes: frozenset[str] = frozenset()
    plans: bool = False
    time: Estimate | None = None
    quality: Estimate | None = None
    peak: Estimate | None = None
    progress: float = 0.0
    why_not: str = ""
    note: str = ""

    @property
    def slots(self) -> frozenset[str]:
        return self.changes.intersection(SLOTS)

    @property
    def to_quality(self) -> float:
        """Returns ln of the time to the same quality; what is not known of it changes nothing."""
        return sum(estimate.log for estimate in (self.time, self.quality) if estimate)

    @property
    def costs(self) -> tuple[float, float, float]:
        """Returns ln of what it costs in time to the same quality, in bytes, in quality."""
        return self.to_quality, self.peak.log if self.peak else 0.0, self.quality.log if self.quality else 0.0


def useful(members: Iterable[Member]) -> tuple[list[Member], dict[str, str]]:
    """Returns the members that stacks are made of, and why each other is not among them: no stack may have it, nothing
    is known of its quality, it gains nothing, or one of its category is as good in every respect."""
    left_out: dict[str, str] = {}
    gaining: list[Member] = []
    for member in members:
        if member.why_not:
            left_out[member.id] = member.why_not
        elif member.quality is None:
            left_out[member.id] = "no record of its quality here"
        elif min(member.costs) > -WORTH:
            left_out[member.id] = "by the records it saves neither time to the same quality, nor bytes, nor ends better"
        else:
            gaining.append(member)
    chosen = []
    for member in gaining:
        if better := next((other for other in gaining if _dominates(other, member)), None):
            left_out[member.id] = f"{better.id}, of its category, is as good in time, bytes and quality, by the records"
        else:
            chosen.append(member)
    return chosen, left_out


def _dominates(one: Member, other: Member) -> bool:
    """Tells whether one of a category is nowhere worse, and better somewhere; of equals the first by name."""
    if one.category != other.category or one.id == other.id:
        return False
    ours, theirs = one.costs, other.costs
    return all(a <= b for a, b in zip(ours, theirs)) and (ours != theirs or one.id < other.id)


def shortlist(goal: Goal, members: Sequence[Member], most: int) -> list[Member]:
    """Returns the members that are worth a count, ``most`` at most: by turns the next by the goal, in bytes and in
    time, two of a category."""
    orders = [
        sorted(members, key=lambda member: (score(of, member.time or SAME, member.quality, member.costs[1]), member.id))
        for of in dict.fromkeys((goal, "memory", "time"))
    ]
    chosen: dict[str, Member] = {}
    for member in (pick for turn in zip(*orders) for pick in turn):
        of_category = sum(other.category == member.category for other in chosen.values())
        if len(chosen) < most and (member.id in chosen or of_category < A_CATEGORY):
            chosen[member.id] = member
    return list(chosen.values())


Combination = tuple[Member, ...]


def conflict(members: Sequence[Member]) -> str:
    """Tells why these cannot be, or need not be tried as, one stack; empty where they can."""
    for one, other in combinations(members, 2):
        if shared := one.slots & other.slots:
            return f"{one.id} and {other.id} each replace the {' and the '.join(sorted(shared)).replace('_', ' ')}"
        if one.plans and other.plans:
            return f"{one.id} and {other.id} each schedule the passes of the same blocks"
        if one.category == other.category:
            return f"{one.id} and {other.id} are both {one.category.replace('_', ' ')}"
    return ""


def stacks(members: Sequence[Member], most: int = MOST_MEMBERS) -> list[Combination]:
    """Returns every stack of up to ``most`` members without a conflict. What changes the model comes first, for the
    others to find it as it will be."""
    ordered = sorted(members, key=lambda member: ("model" not in member.changes, member.id))
    return [chosen for count in range(1, most + 1) for chosen in combinations(ordered, count) if not conflict(chosen)]


def spelled(members: Sequence[Member]) -> str:
    return join([(member.id, {}) for member in members])


def _finite(error: float) -> float:
    """Returns a standard error; 0 of one replicate, which has none: it is compared by what it says."""
    return error if math.isfinite(error) else 0.0


def score(goal: Goal, time: Estimate, quality: Estimate | None, peak_log: float) -> tuple[bool, float, float]:
    """Returns what a goal orders by, the least first: whether it gives up too much quality; the goal; and what decides
    between equals. The time is the time to the same quality; quality is that at the worse end of its interval."""
    quality = quality or SAME
    to_quality, lost = time.log + quality.log, quality.log > -math.log(KEEPS)
    if goal == "time":
        return False, to_quality, peak_log
    if goal == "memory":
        return lost, peak_log, to_quality
    return False, quality.log + NORMAL * _finite(quality.error), to_quality


def by_promise(goal: Goal, candidates: Iterable[Combination], log_room: float) -> list[Combination]:
    """Returns the order in which to count: those first that are expected to fit, by the goal, then by how little they
    lack.

    ``log_room``: ln of the memory over the baseline's peak.
    """

    def key(chosen: Combination) -> tuple[object, ...]:
        peak = sum(member.peak.log for member in chosen if member.peak)
        time = together(member.time or SAME for member in chosen)
        quality = together(member.quality or SAME for member in chosen)
        lacking = max(0.0, peak - log_room)
        return (lacking > 0, lacking, *score(goal, time, quality, peak), len(chosen))

    return sorted(candidates, key=key)


# counted ------------------------------------------------------------------------------------------------------------


class StepCost(Stored):
    """Holds the counts of one step of a stack at the user's size; ``peak_by_kind``: what the peak is made of, in bytes;
    ``step_s`` is modelled, None where no GPU was named or nothing is modelled. ``why_not``: why there are no counts: it
    does not attach, or reads values."""

    stack: str
    peak_bytes: int = 0
    peak_by_kind: dict[str, int] = Field(default_factory=dict)
    flops: int = 0
    parameter_bytes: int = 0
    step_s: float | None = None
    step_band: float = 0.0
    why_not: str = ""


def counted(member: Member, own: StepCost, plain: StepCost) -> Member:
    """Returns the member, with what was counted of it alone at the user's size in place of what records say of
    another."""
    return replace(
        member,
        why_not=own.why_not,
        peak=None if own.why_not else Estimate(math.log(own.peak_bytes / plain.peak_bytes), 0.0, "counted"),
        time=_modelled(own, plain, member.progress) or member.time or _by_flops(own, plain, member.progress),
    )


def _modelled(own: StepCost, plain: StepCost, progress: float) -> Estimate | None:
    if own.step_s is None or plain.step_s is None:
        return None
    error = math.log1p(own.step_band) / NORMAL
    return Estimate(math.log(own.step_s / plain.step_s) + progress, error, "modelled")


def _by_flops(own: StepCost, plain: StepCost, progress: float) -> Estimate | None:
    """Returns what a training is expected to take of which no time is known: as long as its FLOPs over the
    baseline's."""
    if not own.flops or not plain.flops:
        return None
    return Estimate(math.log(own.flops / plain.flops) + progress, source=BY_FLOPS)


@dataclass(frozen=True)
class Candidate:
    """Describes a stack that was counted: what it costs, and what is expected of it: of the baseline itself that it is
    the :data:`SAME`; ``quality`` is None where nothing is known."""

    stack: str
    cost: StepCost
    time: Estimate = SAME
    quality: Estimate | None = SAME
    notes: tuple[str, ...] = ()

    def score(self, goal: Goal, plain: StepCost) -> tuple[bool, float, float]:
        return score(goal, self.time, self.quality, math.log(self.cost.peak_bytes / plain.peak_bytes))


def candidate(members: Sequence[Member], cost: StepCost, plain: StepCost) -> Candidate:
    """Returns what is known of a counted stack: its own modelled time, else what its members' records make expected,
    else its FLOPs."""
    progress = sum(member.progress for member in members)
    time = _modelled(cost, plain, progress) or _of_all(member.time for member in members)
    return Candidate(
        cost.stack,
        cost,
        time or _by_flops(cost, plain, progress) or UNKNOWN,
        _of_all(member.quality for member in members),
        tuple(member.note for member in members if member.note),
    )


def _of_all(estimates: Iterable[Estimate | None]) -> Estimate | None:
    """Returns what is expected of members together; None where nothing is known of one."""
    known = list(estimates)
    return together(estimate for estimate in known if estimate) if all(known) else None


@dataclass(frozen=True)
class Ranking:
    """Holds the counted stacks: those that fit, the best first, those that do not, the smallest first, those not
    counted."""

    fitting: tuple[Candidate, ...]
    too_large: tuple[Candidate, ...]
    uncounted: tuple[StepCost, ...]

    @property
    def least_bytes(self) -> int:
        """Returns the smallest peak of all; 0 where nothing was counted."""
        return min((option.cost.peak_bytes for option in (*self.fitting, *self.too_large)), default=0)


def ranked(goal: Goal, candidates: Iterable[Candidate], plain: StepCost, memory_bytes: float) -> Ranking:
    """Returns the candidates by what the goal orders by; what cannot fit is never run."""
    known = list(candidates)
    counts = [option for option in known if not option.cost.why_not]
    return Ranking(
        tuple(
            sorted(
                (counted for counted in counts if counted.cost.peak_bytes <= memory_bytes),
                key=lambda counted: (*counted.score(goal, plain), counted.stack.count("+"), counted.stack),
            )
        ),
        tuple(
            sorted(
                (counted for counted in counts if counted.cost.peak_bytes > memory_bytes),
                key=lambda counted: counted.cost.peak_bytes,
            )
        ),
        tuple(option.cost for option in known if option.cost.why_not),
    )


# measured -----------------------------------------------------------------------------------------------------------

Score = tuple[bool, float, float]


@dataclass(frozen=True)
class Trial:
    """Records what a finalist did beside the reference: ln of cost ratios, as in :class:`Estimate`.

    Attributes:
        time: the whole training, set-up included.
        quality: the inverse of the equivalent budget; None where no scaling curve of the reference is known.
        loss: final loss.
        peak_log: ln of its counted peak over the baseline's.
        failure: how it ended, where it did.
    """

    stack: str
    time: Estimate = SAME
    quality: Estimate | None = None
    loss: Estimate | None = None
    peak_log: float = 0.0
    failure: str = ""

    def score(self, goal: Goal) -> Score:
        """Returns the key of :func:`score`; without a scaling curve a loss that is higher gives up quality, and a time
        is one at as many steps."""
        if self.quality is not None or self.loss is None:
            return score(goal, self.time, self.quality, self.peak_log)
        lost, pessimistic = self.loss.log > QUALITY_TOLERANCE, self.loss.log + NORMAL * _finite(self.loss.error)
        by_goal = {"time": self.time.log, "memory": self.peak_log, "quality": pessimistic}[goal]
        return lost and goal != "quality", by_goal, self.time.log


def halved(goal: Goal, trials: Iterable[Trial], keep: int) -> list[str]:
    """Returns the ``keep`` best of those that ended well, the best first: a rung of successive halving (Jamieson &
    Talwalkar 2016)."""
    well = [trial for trial in trials if not trial.failure]
    return [trial.stack for trial in sorted(well, key=lambda trial: (trial.score(goal), trial.stack))][:keep]


def rungs(finalists: int) -> list[int]:
    """Tells how many are left after each rung before the last, in which two are: ``6 -> [3, 2]``."""
    left = []
    while finalists > FINALISTS:
        finalists = max(FINALISTS, math.ceil(finalists / 2))
        left.append(finalists)
    return left


def without_each(stack: str) -> dict[str, str]:
    """Returns what is left of a stack without each of its members, by the member; the baseline of one that has no
    other."""
    whole = Spelling(stack)
    return {name: whole.without(name) for name in whole.names}


def paired(best: Mapping[int, float], other: Mapping[int, float], source: str) -> Estimate | None:
    """Returns ln of what the best costs over what another costs, by replicates that both have; None where they share
    none."""
    shared = sorted(best.keys() & other.keys())
    if not shared:
        return None
    return Estimate.of(replicate_interval([best[replicate] - other[replicate] for replicate in shared]), source)
