"""Drives a contender: one training run in its own process (or process group), driven from outside.

::

    parent                         child (one a rank, forked from a server that has the libraries loaded)
      start()     ──────────────►    a process
      prepare()   ──────────────►    caches data and, unless told not to, the checkpoint; off the clock
      set_up()    ──────────────►    builds the Run; its seconds are the set-up cost
      compress(n) ──────────────►    builds it anew, with a schedule of n steps; off the clock
      block(n)    ──────────────►    n training steps; replies seconds and losses
      evaluate()  ──────────────►    loss and metrics on held-out examples; off the clock
      count()     ──────────────►    one training step under the exact counters
      probes()    ──────────────►    the technique's own measurements, or what recorded steps show
      usage()     ──────────────►    peaks of memory, and the energy of a window of steps
      close()

A child that raises, dies, hangs or outlives its limit turns into :class:`ContenderFailed` in the parent, and nothing
else: the other contenders go on.
"""

from __future__ import annotations

import math
import os
import re
import resource
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, cast

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from suite.device.ranks import device_of
from suite.entries.adapting import baseline_for
from suite.entries.catalogue import UnknownId, catalogue, lookup
from suite.entries.installed import baseline_of
from suite.entries.setting import check_model
from suite.entries.together import built, run_of
from suite.loop.data import HeldOut
from suite.measure.at_scale.fake_ranks import fake_ranks
from suite.measure.contenders import fork_servers
from suite.measure.contenders.deputies import BrokenEntry, deputy, failure, in_child
from suite.measure.contenders.referees import RefereeProcess
from suite.measure.contenders.world import is_distributed
from suite.measure.links import LinkedNodes, enter, holders
from suite.measure.rules import oversight
from suite.measure.rules.broken import RuleBroken
from suite.measure.rules.oversight import Watch
from suite.process.child import Child, ContenderFailed
from suite.process.groups import Ranks
from suite.process.replies import bounded
from suite.process.servers import Server
from suite.record.job import Job, Setting, Spelling, StackError
from suite.record.numerics import off_the_clock
from suite.record.schema import Count64, Counters, Energy, Evaluation, Memory, Seconds, Steps

RANKS_APART_S = 3.0  # a rank that lost another says so before that one's end is seen
STRAGGLING_S = 25.0  # a rank that answers so long after the first hangs; or as long as the first took
OF_ALL_RANKS = ("diverged", "unavailable", "not_attached")  # what no rank says alone
COMPLAINT = re.compile(r"gloo|NCCL|[Cc]onnection (closed|reset)|[Tt]imed? ?out|ProcessGroup|TCPStore", re.ASCII)
"""What a rank says that waited for another in vain."""


Finite = Annotated[float, Field(allow_inf_nan=False)]


@dataclass(frozen=True)
class Limits:
    """``train_s`` bounds a contender's time on its clock in all, ``reply_s`` each single reply."""

    train_s: float = 3600.0
    reply_s: float = 600.0


class SetUp(BaseModel):
    """Records what a contender says when its run is built."""

    setup_s: Seconds
    steps: Steps = Field(ge=1)
    recipe: dict[str, Any]
    set_up_flops: Count64 | None = None  # where they were counted


class StepTraffic(BaseModel):
    """Records what one rank sends in one step: bytes that it sends, collectives on an ideal ring, and how many messages
    and collectives those are."""

    sent_bytes: Count64
    messages: Count64


class LinkSpeed(BaseModel):
    """Records the speed of all-reduces: ``latency_s`` of one number, ``bytes_per_s`` that each rank sends of a large
    one."""

    latency_s: Seconds
    bytes_per_s: float = Field(gt=0, allow_inf_nan=False)


class WholeFlops(BaseModel):
    """Holds the FLOPs of a run, and the calls of operators without a formula in the steps that were counted, by
    name."""

    total: Count64
    uncounted: dict[str, Count64] = Field(default_factory=dict)


class TimedBlock(BaseModel):
    """Records some training steps: their seconds, processor seconds of all threads and ranks, losses (the mean over
    ranks)."""

    seconds: Seconds
    cpu_s: Seconds
    losses: list[Finite]
    order: tuple[str, Count64, Count64] | None = None  # a hash of its examples, those before it, those of a step


class TrainingData(BaseModel):
    """Says of a run's data whether its training examples are the baseline's, by their order too, and hashes of held-out
    ones."""

    given: bool
    own_order: bool
    held: dict[HeldOut, str]


class OwnScores(BaseModel):
    """Holds what a run scored itself: the loss, and the further metrics by their names."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, float]
    loss: float


class HandedOver(BaseModel):
    """Records how many batches' outputs were handed over, or what a run in a form of its own scored itself."""

    batches: int = Field(1, ge=1)
    scores: OwnScores | None = None
    held: dict[HeldOut, str]


class Scored(BaseModel):
    """Records a referee's scores: means over examples, how many these are, and the loss of the first batch."""

    means: dict[str, float]
    examples: Count64
    left: int  # batches of the part
    first_loss: float


def world_size(job: Job) -> int:
    """Counts the ranks that the stack's recipe asks for, by running the techniques' code in this process."""
    return built(job.stack).recipe(baseline_of(job.setting).recipe_of(job.setting)).world_size


WORLD_SIZES: dict[tuple[Setting, str], int] = {}
_without_world_size: dict[tuple[Setting, str], ContenderFailed] = {}


def ranks_of(job: Job, limit_s: float = Limits.reply_s) -> int:
    """Returns the :func:`world_size`, worked out in a process of its own, once for each setting and stack.

    Raises UnknownId or StackError for a job that cannot be built, ContenderFailed where the techniques' code fails.
    """
    key, whole = (job.setting.but(steps=None, rate=1.0), job.stack), (job.setting, job.stack)
    if not Spelling(job.stack).names:
        return 1
    if whole in _without_world_size:
        raise _without_world_size[whole]
    if key not in WORLD_SIZES:
        try:
            size = in_child(_ranks, job, limit_s=limit_s, mendable=(UnknownId, StackError))
        except ContenderFailed as failed:
            if failed.status in ("failed", "hung"):  # it would again
                _without_world_size[whole] = failed
            raise
        if not isinstance(size, int) or size < 1:
            raise ContenderFailed("failed", f"its recipe asks for {bounded(str(size), 100)} ranks")
        WORLD_SIZES[key] = size
    return WORLD_SIZES[key]


def check_buildable(*stacks: str, limit_s: float = Limits.reply_s) -> None:
    """Builds the stacks in a process of its own.

    Raises UnknownId or StackError for one that cannot be built, ContenderFailed where a technique's code fails.
    """
    names = dict.fromkeys(name for stack in stacks for name in Spelling(stack).names)
    for name in names:
        lookup("technique", name, catalogue())  # at once, without a process
    if names:
        in_child(_built, stacks, limit_s=limit_s, mendable=(UnknownId, StackError))


def distributing(names: Iterable[str], limit_s: float = Limits.reply_s) -> tuple[list[str], dict[str, str]]:
    """Returns the techniques that distribute a model, asked in a process apart, and what is wrong with those whose code
    fails there."""
    those, broken = [], {}
    with deputy(limit_s) as asked:
        for name in names:
            try:
                if asked(is_distributed, name):
                    those.append(name)
            except ContenderFailed as failed:
                broken[name] = f"{name}: {failed.status}: {failed}"
    return those, broken


MODEL_S, MODEL_BYTES = 120.0, 16 << 30  # a model of a user's that takes more to be built, without values, is refused


def check_model_apart(setting: Setting, limit_s: float = MODEL_S) -> None:
    """Checks as :func:`suite.entries.setting.check_model` does, in a process of its own, within limits.

    Raises what that does as a ValueError, ContenderFailed where the model takes too long, too much, or crashes.
    """
    if setting.model:
        in_child(_checked_model, setting, limit_s=limit_s, mendable=(ValueError, LookupError, OSError))


def check_ranks(jobs: Iterable[Job], limit_s: float = MODEL_S) -> None:
    """Sets up the jobs of several ranks, each in a process of its own that stands for the first rank.

    Raises what the set-up does as a ValueError: a batch, blocks or heads that do not divide among so many ranks,
    techniques that do not go together. What fails otherwise is a row, as ever.
    """
    for job in jobs:
        if is_distributed(job.stack):
            with suppress(ContenderFailed):
                in_child(_sets_up, job, limit_s=limit_s, mendable=(UnknownId, StackError, ValueError))


def check_batches(settings: Iterable[Setting], ranks: int) -> None:
    """Raises ValueError where a baseline's batch does not divide among so many ranks."""
    for setting in settings:
        replace(baseline_of(setting).recipe_of(setting), world_size=ranks)


def _sets_up(job: Job) -> None:
    job = job.model_copy(update={"setting": job.setting.but(device="cpu")})
    ranks = _ranks(job)
    with fake_ranks(ranks) as mesh:
        if mesh is not None:
            run_of(job, baseline=baseline_for(job.setting), mesh=mesh)


def _checked_model(setting: Setting) -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (MODEL_BYTES, MODEL_BYTES))
    check_model(setting)


def _ranks(job: Job) -> int:
    _built((job.stack,))
    return world_size(job)


def _built(stacks: tuple[str, ...]) -> None:
    for name in dict.fromkeys(name for stack in stacks for name in Spelling(stack).names):
        entry = lookup("technique", name, catalogue())
        try:
            _ = entry.technique
        except StackError as error:
            raise BrokenEntry(str(error)) from error
    for stack in stacks:
        built(stack)


class Contender(Ranks):
    """Drives one job from the parent. Commands raise ContenderFailed. Use as a context manager: starts and closes it.
    ``server`` forks its processes, by default that of what is off the clock on the job's device; its ranks are on the
    nodes of a ``network``, by default all on this machine's own.

    Raises UnknownId or StackError for a job that cannot be built, ContenderFailed where asking its techniques how many
    ranks they want ends in a failure.
    """

    def __init__(
        self,
        job: Job,
        limits: Limits = Limits(),
        server: Server | None = None,
        network: LinkedNodes | None = None,
    ) -> None:
        super().__init__()
        self.job, self.limits, self.network = job, limits, network
        self.server = server or fork_servers.shared(off_the_clock(job.setting.device))
        self.spent_s = 0.0
        self.ready: SetUp | None = None
        self._watches: list[Watch] = []
        self._referee: RefereeProcess | None = None
        self._own_order = self._fresh = False
        self.world_size = ranks_of(job, limits.reply_s)
        threads = max(1, job.setting.threads // self.world_size)
        self._of_a_rank = job.model_copy(update={"setting": job.setting.but(threads=threads)})

    def __enter__(self) -> Contender:
        return self.start()

    @property
    def pids(self) -> list[int]:
        """Returns the processes, one a rank, and behind them the referee's, where there is one."""
        return [*super().pids, *(self._referee.pids if self._referee else [])]

    # commands -------------------------------------------------------------------------------------------------------

    def start(self) -> Contender:
        """Starts the processes, one a rank."""
        folder = self._meet() if self.world_size > 1 else ""
        nodes = enumerate(holders(self.network, self.world_size))
        places = [(self._of_a_rank, rank, self.world_size, folder, node) for rank, node in nodes]
        self._begin(self.server, failure, _session, *places)
        self._watches = [Watch(child.pid) for child in self._ranks]
        return self

    def prepare(self, *, weights: bool = True) -> None:
        """Fills the caches that the run needs. May take minutes the first time; off the clock. Without ``weights`` a
        run in the task ``adapt`` begins with a fresh initialisation, whose steps cost the same."""
        self._call("prepare", weights, reply_s=max(self.limits.reply_s, 3600.0))
        self._fresh = not (weights and self.job.setting.task == "adapt")

    def set_up(self, *, recorded: bool = False, nudge: int = 0, tallied: bool = False, counted: bool = False) -> SetUp:
        """Builds the run; with ``recorded`` one of few examples, whose steps are recorded for the probes; with a
        ``nudge`` every weight is moved by one unit in the last place, up or down as that number draws; ``tallied``,
        its FLOPs are added up; ``counted``, its steps may be counted, with all that the run holds."""
        said = self._call("set_up", recorded, nudge, tallied, counted, left_s=self.limits.train_s - self.spent_s)[0]
        self.ready = self._checked(SetUp, said, "set_up")
        self._charge(self.ready.setup_s)
        self._look_through_data()
        return self.ready

    def _look_through_data(self) -> None:
        """Has the referee look at the run's examples, where they are not the baseline's own."""
        rows = self._path("rows")
        said: TrainingData = self._checked(TrainingData, self._call("training_data", rows)[0], "training_data")
        self._own_order = said.own_order
        if said.held:
            self.referee("check_held", said.held)
        if not said.given:
            self.referee("check_absent", rows)

    def referee(self, command: str, *arguments: Any) -> Any:
        """Returns what the referee of this job answers; it starts with the first question. Raises ContenderFailed where
        a rule is broken."""
        if self._referee is None:
            device = device_of(0, self.job.setting.device) if self.world_size > 1 else self.job.setting.device
            setting = self._of_a_rank.setting.but(device=device)
            job = self._of_a_rank.model_copy(update={"setting": setting})
            self._referee = RefereeProcess(job, self.server)
        return self._referee.answer(command, *arguments, limit_s=max(self.limits.reply_s, 600.0))

    def _path(self, name: str) -> str:
        """Returns a path where contender and referee meet."""
        return str(Path(self._folder or self._meet()) / name)

    def close(self) -> None:
        """Ends the processes, and the referee's."""
        if self._referee is not None:
            self._referee.close()
        super().close()

    def compress(self, steps: int) -> int:
        """Builds the run anew, such that the reference's would have ``steps`` steps; returns its own."""
        return self._checked(SetUp, self._call("compress", steps)[0], "compress").steps

    def block(self, steps: int) -> TimedBlock:
        """Makes ``steps`` training steps."""
        own_s = oversight.queued_s(os.getpid())
        for watch in self._watches:
            watch.asked()
        said = self._call("block", steps, left_s=self.limits.train_s - self.spent_s)
        ranks: list[TimedBlock] = [self._checked(TimedBlock, message, "block") for message in said]
        if any(len(rank.losses) != steps for rank in ranks):
            raise ContenderFailed("failed", f"its reply to 'block' cannot be kept: {steps} losses were asked for")
        # The answer waits for the slowest rank and for this process, so for the cores that these waited for.
        slowest_s = max((watch.queued_since_asked_s() for watch in self._watches), default=0.0)
        waited_s = oversight.queued_s(os.getpid()) - own_s + slowest_s
        for watch, rank in zip(self._watches, ranks, strict=True):
            watch.answered(rank.seconds, rank.cpu_s, waited_s)
        self._oversee()
        if ranks[0].order and self._own_order:
            own, position, batch_size = ranks[0].order
            self.referee("check_order", own, position, steps, batch_size, (0, self.world_size))
        losses = [sum(step_losses) / len(ranks) for step_losses in zip(*(rank.losses for rank in ranks), strict=True)]
        reply = TimedBlock(seconds=ranks[0].seconds, cpu_s=sum(rank.cpu_s for rank in ranks), losses=losses)
        self._charge(reply.seconds)
        return reply

    def evaluate(self, part: HeldOut, step: int) -> Evaluation:
        """Returns the loss and further metrics on held-out examples; the evaluation says that it was after ``step``
        steps."""
        means = self._scores(part, step)
        if not math.isfinite(means["loss"]):
            raise ContenderFailed("diverged", f"the {part} loss became {means['loss']} after step {step}")
        scores = self._checked(dict[str, Finite], means, "evaluate")
        return Evaluation(step=step, loss=scores.pop("loss"), metrics=scores)

    def _scores(self, part: HeldOut, step: int) -> dict[str, float]:
        """Returns what the referee makes of the outputs; of a run in a form of its own, what it says itself."""
        inputs, outputs = self._path(f"{part}-inputs"), self._path("outputs")
        names = self.referee("show", part, inputs)
        parts: list[Scored] = []
        done = 0
        while not parts or parts[-1].left > 0:
            said = self._call("evaluate", part, inputs, outputs, names, done)[0]
            handed: HandedOver = self._checked(HandedOver, said, "evaluate")
            self.referee("check_held", handed.held)
            if handed.scores is not None:
                return handed.scores.model_dump()
            scored = self.referee("score", part, outputs, done, handed.batches)
            parts.append(self._checked(Scored, scored, "evaluate"))
            done += handed.batches
        if step == 0 and part == "validation" and self._fresh and self.ready and self.ready.set_up_flops is not None:
            self.referee("check_start", parts[0].first_loss, self.ready.set_up_flops)
        parts = [each for each in parts if each.examples]
        if len(parts) == 1:
            return parts[0].means
        examples = sum(each.examples for each in parts)
        return {name: sum(each.means[name] * each.examples for each in parts) / examples for name in parts[0].means}

    def count(self) -> Counters:
        """Returns the exact counts of one training step, which is made."""
        return self._checked(Counters, self._call("count")[0], "count")

    def traffic(self) -> StepTraffic:
        """Returns what the first rank sends in one training step, which is made."""
        return self._checked(StepTraffic, self._call("traffic")[0], "traffic")

    def link(self) -> LinkSpeed:
        """Tells what the ranks' network gives a collective now."""
        return self._checked(LinkSpeed, self._call("link")[0], "link")

    def flops(self) -> WholeFlops | None:
        """Tells what a tallied run took so far, its set-up included, over all ranks; None where it is compiled."""
        said: list[WholeFlops | None] = [
            self._checked(WholeFlops | None, each, "flops") for each in self._call("flops")
        ]
        known: list[WholeFlops] = [tally for tally in said if tally]
        if len(known) < len(said):
            return None
        uncounted = sum((Counter(tally.uncounted) for tally in known), Counter[str]())
        whole = {"total": sum(tally.total for tally in known), "uncounted": dict(sorted(uncounted.items()))}
        return cast(WholeFlops, self._checked(WholeFlops, whole, "flops"))

    def probes(self) -> dict[str, float]:
        """Returns the technique's own measurements, for its claims; of a recorded run what its steps show."""
        return self._checked(dict[str, float], self._call("probes")[0], "probes")

    def all_probes(self) -> dict[str, float]:
        """Returns all probes of a recorded run at its end: both what its steps show and the technique's own."""
        return self._checked(dict[str, float], self._call("all_probes")[0], "all_probes")

    def usage(self, energy_window_s: float = 0.0) -> tuple[Memory, Energy]:
        """Returns the peaks of memory so far, and the energy of a window of steps where there is a counter."""
        said = self._call("usage", energy_window_s, reply_s=self.limits.reply_s + energy_window_s)[0]
        memory, energy = self._checked(tuple[Memory, Energy], said, "usage")
        try:
            oversight.check_peak(self._watches, memory.process_peak_bytes)
        except RuleBroken as broken:
            raise ContenderFailed("failed", str(broken)) from None
        return memory, energy

    def answers_for(self, orphans: Iterable[int]) -> None:
        """Has what these processes compute be this contender's."""
        for watch in self._watches[:1]:
            watch.left(orphans)

    # the channel ----------------------------------------------------------------------------------------------------

    def _oversee(self) -> None:
        """Holds what the ranks say of their blocks against the parent's clock and the kernel's accounts."""
        setting = self.job.setting
        # Compilers have processes of their own; a GPU's driver has threads.
        bounded_cores = setting.device == "cpu" and setting.recipe != "compiled"
        threads = max(1, setting.threads // self.world_size) if bounded_cores else None
        try:
            for watch in self._watches:
                oversight.check(watch, threads)
        except RuleBroken as broken:
            raise ContenderFailed("failed", str(broken)) from None

    def _charge(self, seconds: float) -> None:
        self.spent_s += seconds
        if self.spent_s > self.limits.train_s:
            raise self._timeout()

    def _timeout(self) -> ContenderFailed:
        return ContenderFailed("timeout", f"more than the time limit of {self.limits.train_s:g} s")

    def _checked(self, kind: Any, value: Any, command: str) -> Any:
        try:
            return TypeAdapter(kind).validate_python(value)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise ContenderFailed(
                "failed", f"its reply to {command!r} cannot be kept: {where}: {first['msg']}"
            ) from None

    def _call(self, command: str, *arguments: Any, reply_s: float | None = None, left_s: float = math.inf) -> list[Any]:
        """Returns the reply of every rank. A failure has the end of what the first one printed among its details."""
        try:
            return self._replies(command, *arguments, reply_s=reply_s, left_s=left_s)
        except ContenderFailed as failed:
            raise failed.beside(self._ranks[0].output.tail() if self._ranks else "") from None

    def _replies(self, command: str, *arguments: Any, reply_s: float | None, left_s: float) -> list[Any]:
        reply_s = reply_s or self.limits.reply_s
        if command != "block":
            for watch in self._watches:
                watch.other()
        values: dict[Child, Any] = {}
        asked_s = first_s = time.monotonic()
        try:
            self._ask(command, *arguments)
            while silent := [child for child in self._ranks if child not in values]:
                deadline_s = asked_s + min(reply_s, left_s)
                if values and command != "prepare":  # of which one rank may do most, for all
                    deadline_s = min(deadline_s, first_s + max(STRAGGLING_S, first_s - asked_s))
                for child, kind, value in self._heard(silent, deadline_s):
                    if kind != "done":
                        raise self._failed(command, child, value, [rank for rank in silent if rank is not child])
                    first_s = first_s if values else time.monotonic()
                    values[child] = value
        except TimeoutError:
            if left_s < reply_s and not values:
                raise self._timeout() from None
            raise self._hung(command, silent, time.monotonic() - asked_s) from None
        except EOFError:
            raise self._death() from None
        return [values[child] for child in self._ranks]

    def _hung(self, command: str, silent: list[Child], after_s: float, heard: str = "") -> ContenderFailed:
        whose = f"{self._named(silent)}: " if len(self._ranks) > 1 else ""
        return ContenderFailed("hung", f"{whose}no answer to {command!r} within {after_s:.3g} s{heard}")

    def _named(self, children: list[Child]) -> str:
        ranks = [str(self._ranks.index(child)) for child in children]
        return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(ranks)}"

    def _failed(self, command: str, child: Child, said: Any, others: list[Child]) -> ContenderFailed:
        """Tells whose failure it is. A rank that lost another only complains: that one has died, or says why itself, or
        is the one that has not answered. Raises EOFError where one has died."""
        if len(self._ranks) == 1 or said[0] in OF_ALL_RANKS:
            return ContenderFailed(*said)
        failed, silent = {child: said}, list(others)
        asked_s, end_s = time.monotonic(), time.monotonic() + RANKS_APART_S
        with suppress(TimeoutError):
            while silent:
                for other, kind, value in self._heard(silent, end_s):
                    silent.remove(other)
                    failed |= {other: value} if kind != "done" else {}
        own = {rank: error for rank, error in failed.items() if not COMPLAINT.search(" ".join(map(str, error)))}
        if not own and silent:
            patience_s = time.monotonic() - asked_s
            return self._hung(command, silent, patience_s, f" after {self._named(list(failed))} gave it up: {said[1]}")
        culprit, error = next(iter((own or failed).items()))
        alone = len({rank_error[1] for rank_error in failed.values()}) > 1 or len(failed) < len(self._ranks)
        status, reason, details = error
        return ContenderFailed(status, f"{self._named([culprit])}: {reason}" if alone else reason, details)


def _session(job: Job, rank: int, world_size: int, folder: str, node: int | None) -> object:
    """Makes what answers for one rank, inside of its process."""
    from suite.measure.contenders.worker import Session

    if node is not None:
        enter(node)
    return Session(job, rank, world_size, folder)
