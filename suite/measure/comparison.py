"""Contenders against each other, in lock-step, one replicate (seed) at a time.

All contenders of a comparison pass through the same number of rounds (:mod:`suite.measure.lockstep`), each over its own
number of steps. Evaluations lie between rounds and on no clock.
"""

from __future__ import annotations

import random
import statistics
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version

from suite.contract.baseline import baseline_of
from suite.contract.catalogue import UnknownId
from suite.contract.data import mixed_seed
from suite.contract.sources import current_sources, sources_of
from suite.contract.stack import build
from suite.measure.contender import Contender, ContenderFailed, Limits, TimedBlock, failure
from suite.measure.lockstep import in_rounds, steps_of_blocks
from suite.record.job import Job, Setting, StackError
from suite.record.machine import fingerprint
from suite.record.schema import SAME_COST, Conditions, EqualTime, Record

ROUNDS = 40
EVALUATIONS = 10
ENERGY_WINDOW_S = 20.0  # the energy counters update every 0.1 s: an edge error of at most 1 %

Progress = Callable[[float, str], None]
"""``progress(share, what)``: the finished share in [0, 1] and what is being done."""


def silent(share: float, what: str) -> None:
    """The progress of what nobody watches."""


@dataclass(frozen=True)
class Comparison:
    """Stacks under one setting. ``stacks[0]`` is the reference."""

    setting: Setting
    stacks: tuple[str, ...]
    rounds: int = ROUNDS

    def job(self, stack: str, seed: int) -> Job:
        return Job(setting=self.setting, stack=stack, seed=seed)


@dataclass(frozen=True)
class Procedure:
    """How a comparison is run. ``sequential`` holds one contender in memory at a time, at the price of pairing.
    ``finish`` takes the counters, ``equal_time`` the second runs whose schedules end when the reference's budget does.
    """

    limits: Limits = Limits()  # noqa: RUF009  it is frozen
    sequential: bool = False
    finish: bool = True
    equal_time: bool = True


def reference_steps(setting: Setting) -> int:
    """The reference's steps, which the baseline's recipe says unless the setting does."""
    return baseline_of(setting).recipe_of(setting).steps


def world_size(setting: Setting, stack: str) -> int:
    """Ranks that the stack's recipe asks for. Also where a stack that cannot be built raises, in the parent."""
    return build(stack).recipe(baseline_of(setting).recipe_of(setting)).world_size


def train_in_lock_step(
    comparison: Comparison, seed: int, procedure: Procedure = Procedure(), progress: Progress = silent
) -> Record:
    """Trains all contenders with one seed and returns the record.

    An out-of-memory among several on an accelerator falls back to a sequential procedure. Raises UnknownId or
    StackError for a comparison that cannot be built, and nothing for what happens in a run.
    """
    record = _Replicate(comparison, seed, procedure, progress).record()
    short = any(each.status == "out_of_memory" for each in record.contenders)
    if short and comparison.setting.device != "cpu" and not procedure.sequential and len(comparison.stacks) > 1:
        return _Replicate(comparison, seed, replace(procedure, sequential=True), progress).record()
    return record


class _Replicate:
    """One seed of a comparison, while it runs."""

    def __init__(self, comparison: Comparison, seed: int, procedure: Procedure, progress: Progress) -> None:
        self.comparison, self.seed, self.procedure, self.progress = comparison, seed, procedure, progress
        self.coin = random.Random(mixed_seed(seed, *map(ord, "".join(comparison.stacks))))
        self.spawn_order = self.coin.sample(range(len(comparison.stacks)), len(comparison.stacks))
        self.contenders = [self._contender(stack) for stack in comparison.stacks]
        self.orders: list[list[int]] = []
        self.harness_s = 0.0

    def _contender(self, stack: str) -> Contender:
        ranks, failed = 1, None
        try:
            ranks = world_size(self.comparison.setting, stack)
        except (UnknownId, StackError):
            raise
        except Exception as error:  # the technique's recipe method runs in this process, and its failure is its row
            failed = ContenderFailed(*failure(error))
        contender = Contender(
            self.comparison.job(stack, self.seed), world_size=ranks, limits=self.procedure.limits,
            sources=sources_of(stack),
        )  # fmt: skip
        contender.failure = failed
        return contender

    def record(self) -> Record:
        """Runs it."""
        started, start_s = datetime.now(UTC), time.monotonic()
        setting, together = self.comparison.setting, self.spawn_order
        try:
            for group in [[index] for index in together] if self.procedure.sequential else [together]:
                self._train([self.contenders[index] for index in group])
            if self.procedure.equal_time:
                self._again_at_equal_time()
        finally:
            for contender in self.contenders:
                contender.close()
        known = next((each.ready for each in reversed(self.contenders) if each.ready), None)
        sources = current_sources()
        return Record(
            id=uuid.uuid4().hex,
            started=started.isoformat(timespec="seconds"),
            duration_s=time.monotonic() - start_s,
            leantrain=version("leantrain"),
            conditions=Conditions(
                **setting.model_dump(exclude={"steps", "data"}),
                baseline_version=baseline_of(setting).version,
                steps=reference_steps(setting),
                data=known.data if known else "",
                data_sha256=known.data_sha256 if known else "",
            ),
            machine=fingerprint(setting.device, setting.threads),
            harness_sha256=sources.harness_sha256,
            baseline_sha256=sources.baselines[setting.baseline],
            seed=self.seed,
            pairing="sequential" if self.procedure.sequential else "interleaved",
            spawn_order=self.spawn_order,
            orders=self.orders,
            harness_s=self.harness_s,
            contenders=[each.outcome() for each in self.contenders],
        )

    def _train(self, group: Sequence[Contender]) -> None:
        """The contenders of a group, from their start to their end."""
        able = [each for each in group if each.failure is None]
        for contender in able:
            contender.start()
        for contender in able:
            self.progress(0.0, f"preparing {contender.job.stack}")
            contender.attempt(Contender.prepare)
        for contender in able:
            contender.attempt(Contender.set_up)
        self._rounds(group)
        window_s = ENERGY_WINDOW_S if self.comparison.setting.device != "cpu" else 0.0
        for contender in able:
            if self.procedure.finish:
                self.progress(1.0, f"counting {contender.job.stack}")
                contender.attempt(Contender.finish, window_s)
            contender.close()

    def _rounds(self, group: Sequence[Contender]) -> None:
        ready = {each: each.ready.steps for each in group if each.alive and each.ready}
        if not ready or not self._reference_lives(group):
            return
        rounds = max(1, min(self.comparison.rounds, *(steps // 2 for steps in ready.values())))
        parts = {each: steps_of_blocks(steps, 2 * rounds) for each, steps in ready.items()}

        def block(contender: Contender, number: int) -> float | None:
            reply: TimedBlock | None = contender.attempt(Contender.block, parts[contender][number])
            return reply.seconds if reply else None

        self._evaluate(ready)
        for each in in_rounds(list(ready), rounds, self.coin, block):
            self.orders.append([self.contenders.index(contender) for contender in each.order])
            self.harness_s += each.outside_s
            first, done = 2 * each.number, each.number + 1
            for contender, seconds in each.block_s.items():
                contender.timed_round(seconds, (parts[contender][first], parts[contender][first + 1]))
            if not self._reference_lives(group):
                return
            if done * EVALUATIONS // rounds > each.number * EVALUATIONS // rounds:
                self._evaluate(ready)
            self.progress(done / rounds, f"round {done} of {rounds}")

    def _evaluate(self, contenders: Sequence[Contender] | dict[Contender, int]) -> None:
        for contender in contenders:
            contender.attempt(Contender.evaluate)

    def _reference_lives(self, group: Sequence[Contender]) -> bool:
        """Whether the reference has not failed; if it has, whoever still runs is stopped."""
        failure = self.contenders[0].failure
        if failure is None:
            return True
        for contender in group:
            if contender.alive:
                contender.fail(ContenderFailed("failed", f"stopped because the reference {failure.status}"))
        return False

    def _again_at_equal_time(self) -> None:
        """Trains a contender a second time where its step costs more or less than the reference's, its learning-rate
        schedule ending when the reference's budget ends. Quality depends on the steps alone, so it needs no pair.
        """
        reference, *others = self.contenders
        training = training_s(reference)
        if training is None or not reference.ready:
            return
        budget_s = reference.ready.setup_s + training
        for contender in others:
            own_s = training_s(contender)
            if contender.failure or not contender.ready or not own_s:
                continue
            share = (budget_s - contender.ready.setup_s) / own_s
            steps = round(share * reference_steps(self.comparison.setting))
            if abs(share - 1) > SAME_COST and steps >= 1:
                self.progress(1.0, f"{contender.job.stack} again, at equal time")
                if second := self._alone(contender, steps):
                    contender.at_equal_time(second)

    def _alone(self, contender: Contender, steps: int) -> EqualTime | None:
        """The end of a run of ``contender``'s stack with a schedule of ``steps`` reference steps."""
        job = contender.job.model_copy(update={"setting": contender.job.setting.but(steps=steps)})
        again = Contender(job, world_size=contender.world_size, limits=contender.limits)
        try:
            again.start()
            again.attempt(Contender.prepare)
            again.attempt(Contender.set_up)
            total = again.ready.steps if again.ready else 0
            for part in steps_of_blocks(total, 2 * self.comparison.rounds):  # as short a silence as in the rounds
                again.attempt(Contender.block, part)
            last = again.attempt(Contender.evaluate)
            return EqualTime(steps=total, loss=last.loss, metrics=last.metrics) if last else None
        finally:
            again.close()


def training_s(contender: Contender) -> float | None:
    """Training seconds with each round's pace replaced by the median of its neighbourhood: a hiccup is not a cost.
    None where nothing was timed."""
    known = contender.outcome()
    paces = [sum(seconds) / sum(steps) for seconds, steps in zip(known.block_s, known.block_steps, strict=True)]
    if not paces or not known.steps:
        return None
    width = max(1, len(paces) // 5)
    chunks = [paces[start : start + width] for start in range(0, len(paces), width)]
    return known.steps * statistics.fmean(pace for chunk in chunks for pace in [statistics.median(chunk)] * len(chunk))
