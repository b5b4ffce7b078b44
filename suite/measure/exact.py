"""Exact claims counted now: one short run of each side in this process, no timing, no statistics.

The counters and probes that ``identity`` and ``counted`` claims are about depend on the code alone, so a few steps of
the smallest size decide them, in seconds. A technique of several ranks runs as it would in a comparison. At a larger
size a step is counted without values (:mod:`suite.measure.paper_scale`): claims about bytes, FLOPs and parameters
need none.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache

import torch

from suite.contract.baseline import RecipeName, Size, Task, baselines
from suite.contract.card import Card, Claim
from suite.contract.catalogue import build
from suite.contract.run import Run
from suite.judge.claims import Observation, Place, Verdict, exact_command, exactly, is_exact, judge, unfit
from suite.measure import paper_scale
from suite.measure.comparison import Comparison, replicate
from suite.measure.paper_scale import PROVENANCE, Scale
from suite.measure.worker import COUNTED
from suite.meters.counters import count_step
from suite.record.schema import Contender, Counters, Evaluation

STEPS = 16  # a whole run: schedules by progress come round
RANK_STEPS = 4
SIZE: Size = "nano"
WITHOUT_VALUES = frozenset(
    {
        "flops", "peak_tensor_bytes", "saved_activation_bytes", "optimizer_state_bytes", "parameter_count",
        "trainable_parameter_count",
    }
)  # fmt: skip
RECIPE: RecipeName = "classic"  # exact arithmetic of the papers' time: float32, no fused kernel


def exact_verdicts(cards: Iterable[Card], on: Collection[str], size: Size = SIZE) -> list[Verdict]:
    """Verdicts on the exact claims of the cards, at ``size`` on those of the baselines ``on`` that they apply to."""
    return [
        judge(
            claim,
            card.id,
            _count(card, claim, baseline, size),
            Place(baseline, RECIPE, size, command=exact_command(card, claim, baseline, size)),
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
    if size != SIZE:
        if claim.metric not in WITHOUT_VALUES and not claim.metric.startswith("peak."):
            return Observation(reason=f"{claim.metric} is no count of a step without values: judged at {SIZE}")
        reference, contender = (at_scale(name, baseline, card.task, size) for name in (card.reference, card.id))
    else:
        reference, contender = sides(card.id, card.reference, baseline, card.task)
    for side in (contender, reference):
        if side.status != "ok":
            return Observation(reason=f"{side.stack}: {side.status}: {side.reason}")
    seen = exactly(claim, card.id, [(reference, contender)])
    return seen if size == SIZE else replace(seen, note=PROVENANCE)


@cache
def at_scale(stack: str, baseline: str, task: Task, size: Size) -> Contender:
    """One step of a stack at a size that need not fit this machine."""
    found = paper_scale.counted(stack, Scale(baseline, size, RECIPE, task))
    if found.counters is None:
        return Contender(stack=stack, status="unavailable", reason=found.unavailable)
    counters = Counters(**{name: getattr(found.counters, name) for name in COUNTED})
    return Contender(stack=stack, counters=counters)


def sides(stack: str, reference: str, baseline: str, task: Task) -> tuple[Contender, Contender]:
    """Short runs of a reference and a stack, counted."""
    ranks = [Comparison((name,), baseline, SIZE, RECIPE, task).world_size(name) for name in (reference, stack)]
    if max(ranks) == 1:
        return counted(reference, baseline, task), counted(stack, baseline, task)
    pair = Comparison((reference, stack), baseline, SIZE, RECIPE, task, RANK_STEPS, rounds=2)
    record = replicate(pair, seed=0, equal_time=False)
    return record.contenders[0], record.contenders[1]


@cache
def counted(stack: str, baseline: str, task: Task) -> Contender:
    """A whole run of STEPS reference steps in this process, then one step counted. From random weights: what is
    counted does not depend on them."""
    with one_thread():
        run = Run(baselines()[baseline], build(stack), size=SIZE, recipe=RECIPE, task=task, steps=STEPS)
        run.train(run.recipe.steps)
        scores = run.evaluate()
        probes = dict(run.technique.probes(run))
        batch, indices = run.next_batch()
        counters = count_step(lambda: run.train_step(batch, indices), run.model, run.optimizer, batch)
    return Contender(
        stack=stack,
        steps=run.recipe.steps,
        curve=[Evaluation(step=run.recipe.steps, loss=scores.pop("loss"), metrics=scores)],
        probes=probes,
        counters=Counters(**{name: getattr(counters, name) for name in COUNTED}),
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
