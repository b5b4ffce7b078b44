"""Exact claims counted now: one short run of each side in this process, no timing, no statistics.

The counters and probes that ``identity`` and ``counted`` claims are about depend on the code alone, so a few steps of
a small size decide them, in seconds. A technique of several ranks runs as it would in a comparison. At a larger size
a step is counted without values (:mod:`suite.measure.paper_scale`): claims about bytes, FLOPs and parameters
need none.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache

import torch

from suite.contract.card import Card, Claim
from suite.contract.run import Run
from suite.judge.claims import ClaimPlace, Judgement, Observation, exact_command, exactly, is_exact, judge, unfit
from suite.measure import paper_scale
from suite.measure.comparison import Comparison, Procedure, train_in_lock_step, world_size
from suite.measure.paper_scale import PROVENANCE, Scale
from suite.record.job import Job, RecipeName, Setting, Size
from suite.record.schema import COUNTS, Evaluation, Outcome

STEPS = 16  # a whole run: schedules by progress come round
RANK_STEPS = 4
SIZE: Size = "nano"
TRAINED: tuple[Size, ...] = ("pico", SIZE)  # small enough to be run
RECIPE: RecipeName = "classic"  # exact arithmetic of the papers' time: float32, no fused kernel


def exact_verdicts(cards: Iterable[Card], on: Collection[str], size: Size = SIZE) -> list[Judgement]:
    """Verdicts on the exact claims of the cards, at ``size`` on those of the baselines ``on`` that they apply to."""
    return [
        judge(
            claim,
            card.id,
            _count(card, claim, baseline, size),
            ClaimPlace(baseline, RECIPE, size, command=exact_command(card, claim, baseline, size)),
        )
        for card in cards
        for claim in card.claim
        if is_exact(claim)
        for baseline in claim.baselines or card.baselines
        if baseline in on
    ]


def _count(card: Card, claim: Claim, baseline: str, size: Size) -> Observation:
    if why := unfit(claim, RECIPE, size, "cpu"):
        return Observation(reason=f"counted under {why}")
    setting = Setting(baseline=baseline, size=size, recipe=RECIPE, task=card.task)
    if size not in TRAINED:
        count = COUNTS.get(claim.metric)
        if (count is None or count.needs_values) and not claim.metric.startswith("peak."):
            return Observation(reason=f"{claim.metric} is no count of a step without values: judged at {SIZE}")
        reference, contender = at_scale(setting, card.reference), at_scale(setting, card.id)
    else:
        reference, contender = sides(setting, card.id, card.reference)
    for side in (contender, reference):
        if side.status != "ok":
            return Observation(reason=f"{side.stack}: {side.status}: {side.reason}")
    seen = exactly(claim, card.id, [(reference, contender)])
    return seen if size in TRAINED else replace(seen, note=PROVENANCE)


@cache
def at_scale(setting: Setting, stack: str) -> Outcome:
    """One step of a stack at a size that need not fit this machine."""
    count = paper_scale.counted(stack, Scale(setting))
    if count.counters is None:
        return Outcome(stack=stack, status="unavailable", reason=count.unavailable)
    return Outcome(stack=stack, counters=count.counters)


def sides(setting: Setting, stack: str, reference: str) -> tuple[Outcome, Outcome]:
    """Short runs of a reference and a stack, counted."""
    if max(world_size(setting, name) for name in (reference, stack)) == 1:
        return counted(setting, reference), counted(setting, stack)
    pair = Comparison(setting.but(steps=RANK_STEPS), (reference, stack), rounds=2)
    record = train_in_lock_step(pair, 0, Procedure(equal_time=False))
    return record.contenders[0], record.contenders[1]


@cache
def counted(setting: Setting, stack: str) -> Outcome:
    """A whole run of STEPS reference steps in this process, then one step counted. From random weights: what is
    counted does not depend on them."""
    with one_thread():
        run = Run(Job(setting=setting.but(steps=STEPS), stack=stack))
        run.train(run.recipe.steps)
        scores = run.evaluate()
        probes = dict(run.technique.probes(run))
        counters = run.count_step()
    return Outcome(
        stack=stack,
        steps=run.recipe.steps,
        curve=[Evaluation(step=run.recipe.steps, loss=scores.pop("loss"), metrics=scores)],
        probes=probes,
        counters=counters,
    )


@contextmanager
def one_thread() -> Iterator[None]:
    """Threads that wait for each other on a busy machine cost a small step many times what they save."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
