"""Counts exact claims now: one short run of each side in this process, no timing, no statistics.

The counters and probes that ``identity`` and ``counted`` claims are about depend on the code alone, so a few steps of
a small size decide them, in seconds. A technique of several ranks runs as it would in a comparison. At a larger size
a step is counted without values (:mod:`suite.measure.at_scale.full_size`): claims about bytes, FLOPs and parameters
need none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache

import torch

from suite.entries.card import Card, Claim
from suite.judge.claims import (
    Judgement,
    Observation,
    VerdictBasis,
    control_of,
    exact_command,
    exactly,
    is_exact,
    judge,
    stack_of,
    unfit,
)
from suite.judge.distance import EvidenceSetting, differences
from suite.judge.known import Facts
from suite.judge.statistics import Interval
from suite.loop.run import Diverged
from suite.measure.at_scale import full_size as paper_scale
from suite.measure.at_scale.full_size import Scale, of_its_ranks
from suite.measure.contenders.contender import Contender, world_size
from suite.measure.contenders.stock import data_of
from suite.measure.contenders.world import spelled_ranks
from suite.measure.provenance import Progress, silent
from suite.meters.holders import Living
from suite.process.child import ContenderFailed
from suite.reading.recording import Recording
from suite.record.job import Job, RecipeName, Setting, Size
from suite.record.paper_scale import PER_PARAMETER, PROVENANCE, per_parameter
from suite.record.schema import COUNTS, Evaluation

STEPS = 16  # a whole run: schedules by progress come round
EVALUATED = 4  # batches of the test part: both sides see the same ones, and no exact claim is about how good they are
SIZE: Size = "nano"
TRAINED: tuple[Size, ...] = ("pico", SIZE)  # small enough to be run
RECIPE: RecipeName = "classic"  # exact arithmetic of the papers' time: float32, no fused kernel


def exact_verdicts(
    cards: Iterable[Card], on: Collection[str], size: Size = SIZE, settings: str = "", progress: Progress = silent
) -> list[Judgement]:
    """Returns the verdicts on the exact claims of the cards, at ``size`` on those of the baselines ``on`` that they
    apply to.

    ``settings``: hyper-parameters of the techniques, spelled ``adaptive=true,rho=2``, instead of the defaults, which
    claims are about where they do not say otherwise.
    """
    asked = [
        (card, claim, baseline)
        for card in cards
        for claim in card.judged
        if is_exact(claim)
        for baseline in claim.baselines or card.baselines
        if baseline in on
    ]
    judgements = []
    for done, (card, claim, baseline) in enumerate(asked):
        progress(done / len(asked), f"{card.id} on {baseline}")
        command = exact_command(card, claim, baseline, size, settings)
        differs = differences(claim, True, EvidenceSetting(baseline, size))
        basis = VerdictBasis(baseline, RECIPE, size, command=command, differs=differs)
        judgements.append(judge(claim, card.id, _count(card, claim, baseline, size, settings), basis))
    return judgements


def _count(card: Card, claim: Claim, baseline: str, size: Size, settings: str) -> Observation:
    stack = stack_of(card, claim.model_copy(update={"settings": settings or claim.settings}))
    reference = control_of(claim) or card.reference
    if why := unfit(claim, RECIPE, size, "cpu"):
        return Observation(reason=f"counted under {why}")
    setting = Setting(baseline=baseline, size=size, recipe=RECIPE, task=card.task)
    if claim.metric in PER_PARAMETER:
        return _per_parameter(claim.metric, setting, stack)
    if size not in TRAINED:
        kind = COUNTS.get(claim.metric)
        sent = claim.metric == "communication_bytes" and spelled_ranks(stack) is not None
        if (kind is None or kind.needs_values) and not sent and not claim.metric.startswith("peak."):
            why = f" ({kind.needs_values})" if kind else ""
            return Observation(reason=f"{claim.metric} is no count of a step without values{why}: judged at {SIZE}")
        theirs, ours = at_scale(setting, reference), at_scale(setting, stack)
    else:
        theirs, ours = sides(setting, stack, reference)
    for side in (ours, theirs):
        if side.unavailable:
            return Observation(reason=f"{side.stack}: {side.unavailable}")
    seen = exactly(claim, card.id, [(theirs, ours)])
    return seen if size in TRAINED else replace(seen, note=PROVENANCE)


def _per_parameter(metric: str, setting: Setting, stack: str) -> Observation:
    """Counts a rank of as many as the stack names, whatever the size."""
    one = paper_scale.counted(stack, of_its_ranks(stack, Scale(setting.but(device="cuda"))))
    value = per_parameter(metric, one.quantities())
    if value is None:
        return Observation(reason=f"{stack}: {one.unavailable or f'{metric} was not counted'}")
    return Observation(Interval(value, value, value, 1.0, "every seed", 1), exact=True, note=PROVENANCE)


@cache
def at_scale(setting: Setting, stack: str) -> Facts:
    """Counts one step of a stack at a size that need not fit this machine, by the operators of a GPU, as the papers
    had."""
    one = paper_scale.counted(stack, of_its_ranks(stack, Scale(setting.but(device="cuda"))))
    return Facts(stack, counters=one.counters, unavailable=one.unavailable)


def sides(setting: Setting, stack: str, reference: str) -> tuple[Facts, Facts]:
    """Counts short runs of a reference and a stack."""
    of = _way(setting, stack, reference)
    return of(setting, reference), of(setting, stack)


def know_reference(card: Card, on: Iterable[str], size: Size) -> None:
    """Counts the card's reference on these baselines, for verdicts to come in this process and in those it forks."""
    for baseline in on:
        setting = Setting(baseline=baseline, size=size, recipe=RECIPE, task=card.task)
        _way(setting, card.id, card.reference)(setting, card.reference)


def _way(setting: Setting, stack: str, reference: str) -> Callable[[Setting, str], Facts]:
    ranks = max(world_size(Job(setting=setting, stack=name)) for name in (reference, stack))
    return counted if ranks == 1 else counted_in_processes


@cache
def counted(setting: Setting, stack: str) -> Facts:
    """Counts one step after a whole, recorded run of STEPS reference steps in this process. From random weights: what
    is counted does not depend on them."""
    with one_thread():
        before = Living()
        recording = Recording.of(Job(setting=setting.but(steps=STEPS), stack=stack))
        run = recording.run
        recording.train(run.recipe.steps)
        few = run.data.held_out("test", run.baseline.recipe_of(run.job.setting).batch_size)[:EVALUATED]
        with run.predicting() as predict:
            scores = run.baseline.mean_scores(predict, few)
        if not math.isfinite(scores["loss"]):
            raise Diverged(f"the test loss became {scores['loss']} after step {run.step}")
        probes = run.probes() | recording.probes()
        del recording, few  # these are no part of the run
        with before.left_out(*data_of(run)):
            counters = run.count_step()
    final = Evaluation(step=run.recipe.steps, loss=scores.pop("loss"), metrics=scores)
    return Facts(stack, run.recipe.steps, counters, final, probes)


@cache
def counted_in_processes(setting: Setting, stack: str) -> Facts:
    """Counts a stack of several ranks, which are processes."""
    try:
        with Contender(Job(setting=setting.but(steps=STEPS), stack=stack)) as contender:
            contender.prepare()
            steps = contender.set_up(recorded=True).steps
            contender.block(steps)
            final = contender.evaluate("test", steps)
            probes = contender.all_probes()
            return Facts(stack, steps, contender.count(), final, probes)
    except ContenderFailed as failure:
        return Facts(stack, unavailable=f"{failure.status}: {failure.reason}")


@contextmanager
def one_thread() -> Iterator[None]:
    """Lets torch use one thread, since threads that wait for each other on a busy machine cost a small step many times
    what they save."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
