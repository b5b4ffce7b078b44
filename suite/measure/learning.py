"""Makes learned evidence: a run trained alone, off every clock, as many side by side as there are cores.

What is counted is what learns: a run is tallied, so its first steps are taken once more by a contender that is not, and
the losses must agree; where a run has so few steps that this would be most of it (a test's), they are not.

A run is deterministic: its seed and the arithmetic (:mod:`suite.record.numerics`) decide it to the bit, whatever else
the machine does meanwhile.
"""

from __future__ import annotations

import hashlib
import os
import struct
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from suite.entries.sources import code_of
from suite.measure.contenders.contender import Contender, Limits, ranks_of
from suite.measure.contenders.lockstep import steps_of_blocks
from suite.measure.provenance import Heading, Progress, silent
from suite.measure.rules import oversight
from suite.measure.rules.broken import RuleBroken
from suite.meters.whole_run import STRATUM
from suite.process.child import ContenderFailed, end_all
from suite.record.job import Job
from suite.record.numerics import off_the_clock
from suite.record.schema import FIFTHS, FIRST_STEPS, Evaluation, Learned, Renewal, Trained, Witness

EVALUATIONS = 2 * FIFTHS
WITNESSED_STEPS = STRATUM  # one of them is counted
FEWEST_STEPS = 2 * WITNESSED_STEPS  # of a run whose first steps are repeated
LOSSES = 50  # means over parts of the run, for a curve to look at


def learn(
    job: Job,
    *,
    limits: Limits = Limits(),  # noqa: B008  it is frozen
    progress: Progress = silent,
) -> Learned:
    """Trains a job to its end and returns what was learned; a run that fails is evidence, too.

    Raises UnknownId or StackError for a job that cannot be built.
    """
    heading = Heading(job.setting, off_the_clock(job.setting.device))
    known: dict[str, Any] = {"stack": job.stack, "code": code_of(job.setting, job.stack), "seed": job.seed}
    losses: list[float] = []
    curve: list[Evaluation] = []
    cpu_s = 0.0
    try:
        with Contender(job, limits) as contender:
            contender.prepare()
            ready = contender.set_up(tallied=True)
            known |= {"steps": ready.steps, "recipe": ready.recipe}
            curve.append(contender.evaluate("validation", 0))
            blocks = min(EVALUATIONS, ready.steps)
            for number, steps in enumerate(steps_of_blocks(ready.steps, blocks), 1):
                block = contender.block(steps)
                losses += block.losses
                cpu_s += block.cpu_s
                curve.append(contender.evaluate("validation", len(losses)))
                progress(number / blocks, job.stack)
            if (tally := contender.flops()) and ready.steps >= FEWEST_STEPS:
                check_uncounted(job, losses[:WITNESSED_STEPS], limits)
            if tally:
                known |= {"flops": tally.total, "uncounted_operators": tally.uncounted}
            known["final"] = contender.evaluate("test", len(losses))
            known["probes"] = contender.probes()
    except ContenderFailed as failure:
        known |= {"status": failure.status, "reason": failure.reason, "details": failure.details}
    parts = np.array_split(np.array(losses), min(LOSSES, max(1, len(losses))))
    return Learned(
        **heading.fields(),
        **known,
        curve=curve,
        cpu_s=round(cpu_s, 3) if losses else None,
        train_loss=[float(f"{part.mean():.6g}") for part in parts if len(part)],
        trajectory_sha256=trajectory_sha256(losses, curve),
        first_losses=[float(f"{loss:.9g}") for loss in losses[:FIRST_STEPS]],
    )


def check_uncounted(job: Job, counted: Sequence[float], limits: Limits) -> None:
    """Raises ContenderFailed where the losses of a job's first steps, some of which were counted, are others where none
    is."""
    with Contender(job, limits) as contender:
        contender.prepare()
        contender.set_up()
        plain = contender.block(len(counted)).losses
    try:
        oversight.check_losses(counted, plain, job.setting.device, "where steps are counted", "where none is")
    except RuleBroken as broken:
        raise ContenderFailed("failed", str(broken)) from None


def trajectory_sha256(losses: Sequence[float], curve: Sequence[Evaluation]) -> str:
    """Returns a hash of every training loss and every evaluation, to the bit."""
    evaluated = [value for evaluation in curve for value in (evaluation.loss, *evaluation.metrics.values())]
    numbers = [*losses, *evaluated]
    return hashlib.sha256(struct.pack(f"<{len(numbers)}d", *numbers)).hexdigest()


def witness_of(run: Learned) -> Witness:
    """Returns the run as a witness for others."""
    return Witness.model_validate(run.model_dump(exclude={"kind"}))


def equal_to_the_bit(old: Trained, new: Trained) -> bool:
    """Tells whether two runs had the same trajectory and the same end, and the old one every probe of the new one,
    equal. NaN equals NaN."""

    def end(run: Trained) -> str:
        probes = {name: value for name, value in run.probes.items() if name in new.probes}
        return run.model_copy(update={"probes": dict(sorted(probes.items()))}).model_dump_json(
            include={"status", "trajectory_sha256", "final", "probes"}
        )

    return end(old) == end(new)


def renewal_of(old: Trained, new: Trained) -> Renewal | None:
    """Returns the renewal of what the code of ``old`` learned: ``new`` repeats it to the bit under other code; else
    None."""
    if new.status != "ok" or old.code.trajectory == new.code.trajectory or not equal_to_the_bit(old, new):
        return None
    return Renewal(
        id=uuid.uuid4().hex,
        started=new.started,
        family=old.conditions.family,
        stack=old.stack,
        old=old.code.trajectory,
        new=new.code.trajectory,
        machine=new.machine.name,
    )


def renewal_up_to_rounding(old: Trained, new: Trained, distance: float) -> Renewal:
    """Returns the renewal of what ``old`` learned with other arithmetic: ``new``, of other code, parts from it by
    rounding."""
    return Renewal(
        id=uuid.uuid4().hex,
        started=new.started,
        family=old.conditions.family,
        stack=old.stack,
        old=old.code.trajectory,
        new=new.code.trajectory,
        machine=new.machine.name,
        equality="rounding",
        distance=distance,
    )


def learn_all(
    jobs: Iterable[Job],
    *,
    at_once: int | None = None,
    limits: Limits = Limits(),  # noqa: B008  it is frozen
    stop: Callable[[], bool] = lambda: False,
    progress: Progress = silent,
) -> Iterator[tuple[Job, Learned]]:
    """Yields each job with what it learned, in the order in which they end; a run takes a core for each of its threads.

    ``at_once`` are the cores to fill, by default all; on an accelerator one run at a time. No run begins after ``stop``
    says so.
    """
    waiting = list(jobs)
    if not waiting:
        return
    count = at_once or (cores() if waiting[0].setting.device == "cpu" else 1)
    free, total, stopped = Cores(count), len(waiting), threading.Event()

    def one(job: Job) -> tuple[Job, Learned]:
        with free.taking(max(job.setting.threads, _ranks(job, limits))):
            if stopped.is_set() or stop():
                raise CancelledError
            return job, learn(job, limits=limits)

    with ThreadPoolExecutor(count, "learning") as pool:
        pending: set[Future[tuple[Job, Learned]]] = {pool.submit(one, job) for job in waiting}
        finished = 0
        try:
            while pending:
                done, pending = wait(pending, return_when=FIRST_COMPLETED)
                for future in done:
                    try:
                        job, learned = future.result()
                    except CancelledError:
                        continue
                    finished += 1
                    progress(finished / total, f"{job.setting.baseline} seed {job.seed}: {job.stack}")
                    yield job, learned
        finally:
            for future in pending:
                future.cancel()
            if pending:  # left early: what still trains is of no use to anybody
                stopped.set()
                end_all()


def _ranks(job: Job, limits: Limits) -> int:
    """Counts the processes of a job; 1 of one that cannot be built, as its run will tell."""
    try:
        return ranks_of(job, limits.reply_s)
    except (LookupError, ValueError, ContenderFailed):
        return 1


class Cores:
    """Holds a number of cores that runs take and give back."""

    def __init__(self, count: int) -> None:
        self.count = self._free = count
        self._change = threading.Condition()

    @contextmanager
    def taking(self, wanted: int) -> Iterator[None]:
        """Holds ``wanted`` cores, or all where there are fewer."""
        taken = min(wanted, self.count)
        with self._change:
            self._change.wait_for(lambda: self._free >= taken)
            self._free -= taken
        try:
            yield
        finally:
            with self._change:
                self._free += taken
                self._change.notify_all()


def cores() -> int:
    """Counts the cores that this process may use."""
    with suppress(AttributeError):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
