"""Finds the stacks that fit a memory, in the order of a goal: chosen by records, decided by counts, and nothing is run.

::

    the baseline ── a shortlist of members, each alone ── stacks of these, the most promising first

All of it counts at the user's own size (:mod:`suite.topics.recommend.costs`). What is promising is what members'
records and their own counts make expected; what fits is counted of each stack as a whole.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from suite.entries.catalogue import catalogue, lookup
from suite.measure.at_scale.full_size import Scale
from suite.measure.provenance import Progress, portion, silent
from suite.record.job import BASELINE, Spelling, StackError, canonical
from suite.topics.modelled_time.aside import aside
from suite.topics.modelled_time.devices import Gpu
from suite.topics.recommend.choice import (
    Candidate,
    Goal,
    Member,
    Ranking,
    StepCost,
    by_promise,
    candidate,
    counted,
    ranked,
    shortlist,
    spelled,
    stacks,
    useful,
)
from suite.topics.recommend.costs import Counting
from suite.topics.recommend.members import members_for

ALONE = 3  # one of so many counts is of a member alone


@dataclass(frozen=True)
class Question:
    """Says what is asked: how to train a model at a scale within a memory, for a goal.

    ``gpu``: whose step times are modelled; None for those that records have. ``counts``: stacks that are counted at
    most. ``stacks``: the user's own, which are counted and ranked besides.
    """

    scale: Scale
    memory_bytes: float
    goal: Goal = "time"
    gpu: Gpu | None = None
    counts: int = 30
    stacks: tuple[str, ...] = ()


@dataclass(frozen=True)
class CountedChoice:
    """Holds what fits, in order, and what was not tried.

    Attributes:
        plain: the baseline's cost.
        ranking: of the counted stacks; the baseline is one of them.
        left_out: why no stack has an entry, by its id.
        uncounted: how many stacks of the entries that are left were not counted.
    """

    question: Question
    plain: StepCost
    ranking: Ranking
    left_out: Mapping[str, str]
    uncounted: int


def check(question: Question) -> None:
    """Raises UnknownId, and StackError for a stack of the user's that excludes itself or does not apply to a loop."""
    with aside() as apart:
        apart.check(question.stacks)
    for stack in question.stacks:
        for name in Spelling(stack).names:
            if reason := lookup("technique", name, catalogue()).card.own_loop:
                raise StackError(f"{name} does not apply to a loop of your own: {reason}")


def choose(question: Question, folder: Path, progress: Progress = silent) -> CountedChoice:
    """Counts what is promising, and ranks it; records are those of ``folder``.

    Raises ValueError where the scale does not fit the model, and what :func:`check` does.
    """
    check(question)
    counting = Counting(question.scale, question.gpu)
    progress(0.0, "count the model as it is")
    (plain,) = counting.costs([BASELINE])
    if plain.why_not:
        raise ValueError(f"the model cannot be counted, so nothing says what fits: {plain.why_not}")
    progress(0.02, "read the records")
    everyone = members_for(question.scale.setting, folder, question.gpu.name if question.gpu else None, plain)
    useful_ones, left_out = useful(everyone)
    need: Goal = question.goal if plain.peak_bytes <= question.memory_bytes else "memory"  # what fits comes first
    few = shortlist(need, useful_ones, max(1, question.counts // ALONE))
    left_out |= {one.id: "others promise more for this goal" for one in useful_ones if one not in few}
    alone, few, costs = _alone(few, counting, plain, portion(progress, 0.1, 0.1 + 0.9 / ALONE))
    room = math.log(question.memory_bytes / plain.peak_bytes)
    combinations = [stack for stack in stacks(few) if len(stack) > 1]
    promising = by_promise(question.goal, combinations, room)[: max(0, question.counts - len(costs))]
    step = portion(progress, 0.1 + 0.9 / ALONE, 0.9)
    together = [
        candidate(members, cost, plain)
        for members, cost in zip(promising, counting.costs([spelled(combination) for combination in promising], step))
    ]
    own = _own(question.stacks, everyone, counting, plain, portion(progress, 0.9, 1.0))
    candidates = {option.stack: option for option in (Candidate(BASELINE, plain), *alone, *together, *own)}
    return CountedChoice(
        question,
        plain,
        ranked(question.goal, candidates.values(), plain, question.memory_bytes),
        left_out,
        len(combinations) - len(promising),
    )


def _alone(
    few: Sequence[Member], counting: Counting, plain: StepCost, progress: Progress
) -> tuple[list[Candidate], list[Member], list[StepCost]]:
    """Returns each member alone as a candidate, those that attach with what was counted of them, and all counts."""
    costs = list(counting.costs([member.id for member in few], progress))
    known = [counted(member, cost, plain) for member, cost in zip(few, costs)]
    alone = [candidate((member,), cost, plain) for member, cost in zip(known, costs)]
    return alone, [member for member in known if not member.why_not], costs


def _own(
    asked: Sequence[str], everyone: Sequence[Member], counting: Counting, plain: StepCost, progress: Progress
) -> list[Candidate]:
    """Returns the user's own stacks."""
    by_id = {member.id: member for member in everyone}
    spelled_so = [canonical(stack) for stack in asked]
    members = [tuple(by_id[name] for name in Spelling(stack).names) for stack in spelled_so]
    return [candidate(member, cost, plain) for member, cost in zip(members, counting.costs(spelled_so, progress))]
