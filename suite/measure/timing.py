"""Makes timed evidence: fresh processes of a reference and its contenders, in lock-step, on an otherwise idle machine.

::

    start, set up     warm-up     round 0      round 1     ...     usage
    B A C             B A C       B A C C A B  A C B B C A
                                  order  its reverse

Every letter is a block of STEPS training steps of one side; only one computes at a time
(:mod:`suite.measure.contenders.lockstep`). What a step costs does not depend on what was learned, so all begin with
fresh weights. Where the cost changes during a run, as the counts tell, the run is compressed: it goes through its whole
schedule in as few steps as the rounds take, and every fifth of it is a window of its own; else one window serves the
whole run. Set-up is timed before that, of the whole run: what searches or trains beforehand does so at full length.

What is timed is what learns: afterwards, off the clock, each side's job takes its steps once more alone, as a learned
run does, and the losses must be those of the timed side.

The processes are the replicate: rounds of one set of processes agree with each other about a wrong number. A set has a
fork server of its own (:mod:`suite.measure.contenders.fork_servers`). Several contenders may share a set, and so the
reference.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from suite.entries.sources import code_of
from suite.loop.data import mixed_seed
from suite.measure.contenders.contender import Contender, Limits, TimedBlock
from suite.measure.contenders.deputies import in_child
from suite.measure.contenders.fork_servers import of_one_timing, shared
from suite.measure.contenders.lockstep import in_rounds
from suite.measure.provenance import Heading, Progress, conditions_of, silent
from suite.measure.rules.broken import RuleBroken
from suite.measure.rules.oversight import check_losses
from suite.measure.rules.turns import Disturbed, Turns
from suite.process.child import ContenderFailed
from suite.process.servers import LOADING_S, Server
from suite.record.job import Job, Setting
from suite.record.numerics import on_the_clock
from suite.record.schema import LEAST_BLOCKS, Side, Timed, Window

ROUNDS = 12  # of a whole timing, over all windows: more would tell nothing beside how sets differ (2 to 4 %)
LEAST_ROUNDS = 4  # of a window, where there are several
STEPS = 2  # of the reference, a block; fewer where a window has no room
SEED = 0  # of every side: what a step costs depends on the states, not on their seed
ENERGY_WINDOW_S = 20.0  # the energy counters update every 0.1 s: an edge error of at most 1 %


@dataclass(frozen=True)
class Protocol:
    """Says how a timing is made. ``windows``: 1, or FIFTHS where the cost changes. ``sequential`` holds one side in
    memory at a time, at the price of pairing."""

    windows: int = 1
    rounds: int = ROUNDS
    sequential: bool = False
    limits: Limits = Limits()  # noqa: RUF009  it is frozen

    @property
    def window_rounds(self) -> int:
        """Returns the rounds of each window."""
        return self.rounds if self.windows == 1 else max(LEAST_ROUNDS, self.rounds // self.windows)

    @property
    def compressed_steps(self) -> int:
        """Returns the reference's steps in a compressed run: of each window a warm-up, its rounds, and one to spare."""
        return self.windows * (STEPS * (1 + 2 * self.window_rounds) + 1)


def loaded_servers(number: int) -> list[Server]:
    """Returns fork servers of so many sets, whose libraries they load side by side, before anything is on a clock;
    whoever gets them closes each."""
    servers = [of_one_timing(random.Random()) for _ in range(number)]
    for server in servers:
        server.begin()
    for server in servers:
        with suppress(ContenderFailed):  # its contenders will say so
            in_child(os.getpid, limit_s=LOADING_S, server=server)
    return servers


def time_together(
    setting: Setting,
    stacks: Sequence[str],
    replicate: int,
    protocol: Protocol = Protocol(),
    progress: Progress = silent,
    server: Server | None = None,
) -> Timed:
    """Times ``stacks``, the first of which is the reference, in one set of fresh processes, which ``server`` forks, one
    of :func:`loaded_servers` that no other set had; by default it is started now. It ends with the set.

    Failures are evidence. Raises UnknownId or StackError for a stack that cannot be built.
    """
    server = server or of_one_timing(random.Random())
    return _Timing(setting, stacks, replicate, protocol, progress, server).evidence()


_learned_losses: dict[tuple[Job, int], list[float]] = {}


def learned_losses(job: Job, steps: int, limits: Limits) -> list[float]:
    """Returns the losses of a job's first ``steps`` steps as a run that learns takes them: alone, tallied, in a server
    of no timing, with the arithmetic of the clock. Asked once for all replicates. Raises ContenderFailed."""
    if (job, steps) not in _learned_losses:
        with Contender(job, limits, shared(on_the_clock())) as contender:
            contender.prepare(weights=False)
            contender.set_up(tallied=True)
            _learned_losses[job, steps] = contender.block(steps).losses
    return _learned_losses[job, steps]


class _TimedSide:
    """Runs one side while it is timed; a failure ends this side alone. ``turns``, of all ``sides``, say what one did to
    the others."""

    def __init__(
        self, setting: Setting, stack: str, limits: Limits, server: Server, turns: Turns, sides: list[_TimedSide]
    ) -> None:
        self._turns, self._sides = turns, sides
        self.job = Job(setting=setting, stack=stack, seed=SEED)
        self.failure: ContenderFailed | None = None
        self.cpu_s = 0.0
        self.losses: list[float] = []
        self.steps = self.done = 0  # of the run that is timed, compressed or not, and how many of them are done
        self.known: dict[str, Any] = {"stack": stack, "code": code_of(setting, stack), "windows": []}
        self.contender: Contender | None = None
        try:
            self.contender = Contender(self.job, limits, server)
        except ContenderFailed as failure:
            self.failure = failure

    def attempt(self, command: str, *arguments: Any, **options: Any) -> Any:
        """Returns the command's reply; None where it fails or the side has failed before."""
        if self.failure or self.contender is None:
            return None
        try:
            reply = getattr(self.contender, command)(*arguments, **options)
            self._end_turn(self.contender)
            return reply
        except ContenderFailed as failure:
            self.fail(failure)
            return None

    def _end_turn(self, contender: Contender) -> None:
        """Raises ContenderFailed where the turn changed how the system treats another side; one that cannot be treated
        as before ends, too, and says why."""
        others = [(side, side.contender.pids) for side in self._sides if side is not self and side.contender]
        flat = [pid for _, pids in others for pid in pids]
        try:
            contender.answers_for(self._turns.ended(contender.pids, flat, contender.server_pid))
        except Disturbed as broken:
            for side, pids in others:
                if broken.lost.intersection(pids):
                    why = f"stopped because {self.job.stack} changed its priority, its cores or its scheduling"
                    side.fail(ContenderFailed("failed", why))
            raise ContenderFailed("failed", str(broken)) from None

    def fail(self, failure: ContenderFailed) -> None:
        """Ends this side."""
        self.failure = self.failure or failure
        self.close()

    def close(self) -> None:
        if self.contender:
            self.contender.close()

    @property
    def alive(self) -> bool:
        return self.failure is None

    def run(self, steps: int) -> TimedBlock | None:
        """Runs a block of steps."""
        self.done += steps
        reply: TimedBlock | None = self.attempt("block", steps) if steps else None
        self.losses += reply.losses if reply else []
        return reply

    def compress(self, steps: int) -> None:
        """Times a run of which the reference's has so many steps."""
        self.steps = self.attempt("compress", steps) or self.steps
        self.job = self.job.model_copy(update={"setting": self.job.setting.but(steps=steps)})

    def hold_against_learned(self, limits: Limits) -> None:
        """Ends this side as failed where its losses are not those of the run that learns."""
        if not self.alive or not self.losses:
            return
        try:
            learned = learned_losses(self.job, len(self.losses), limits)
            check_losses(self.losses, learned, self.job.setting.device, "where it is timed", "where it learns")
        except ContenderFailed as failure:
            self.fail(failure)
        except RuleBroken as broken:
            self.fail(ContenderFailed("failed", str(broken)))

    def block(self, steps: int) -> float | None:
        """Returns the seconds of a block that is timed."""
        reply = self.run(steps)
        if reply is None:
            return None
        self.cpu_s += reply.cpu_s
        return float(reply.seconds)

    def evidence(self) -> Side:
        ended = self.failure
        status: dict[str, Any] = (
            {"status": ended.status, "reason": ended.reason, "details": ended.details} if ended else {}
        )
        return Side(**self.known, **status, cpu_s=round(self.cpu_s, 4))


class _Timing:
    """Runs one replicate."""

    def __init__(
        self,
        setting: Setting,
        stacks: Sequence[str],
        replicate: int,
        protocol: Protocol,
        progress: Progress,
        server: Server,
    ) -> None:
        self.setting, self.replicate, self.protocol, self.progress = setting, replicate, protocol, progress
        self.heading = Heading(setting, on_the_clock())
        self.coin = random.Random(mixed_seed(replicate, *map(ord, "".join(stacks))))
        self.server = server
        turns, self.sides = Turns(), list[_TimedSide]()
        for stack in stacks:
            self.sides.append(_TimedSide(setting, stack, protocol.limits, server, turns, self.sides))
        self.spawn_order = self.coin.sample(range(len(stacks)), len(stacks))
        self.orders: list[list[int]] = []

    def evidence(self) -> Timed:
        groups = [[index] for index in self.spawn_order] if self.protocol.sequential else [self.spawn_order]
        try:
            for group in groups:
                self._time([self.sides[index] for index in group])
        finally:
            for side in self.sides:
                side.close()
            self.server.close()
        for side in self.sides:
            side.hold_against_learned(self.protocol.limits)
        return Timed(
            **self.heading.fields(),
            replicate=self.replicate,
            pairing="sequential" if self.protocol.sequential else "interleaved",
            spawn_order=self.spawn_order,
            orders=self.orders,
            contenders=[side.evidence() for side in self.sides],
        )

    def _time(self, group: Sequence[_TimedSide]) -> None:
        for side in group:
            side.attempt("start")
        for side in group:
            side.attempt("prepare", weights=False)
        for side in group:
            if ready := side.attempt("set_up"):
                side.known |= {"setup_s": ready.setup_s, "steps": ready.steps, "recipe": ready.recipe}
                side.steps = ready.steps
        compressed = self.protocol.compressed_steps
        if self.protocol.windows > 1 and conditions_of(self.setting).steps > compressed:
            for side in group:
                side.compress(compressed)
        for window in range(self.protocol.windows):
            if not self._reference_lives(group):
                return
            self._window(group, window)
            self.progress((window + 1) / self.protocol.windows, ", ".join(side.job.stack for side in group))
        energy_s = ENERGY_WINDOW_S if self.setting.device != "cpu" else 0.0
        for side in group:
            if usage := side.attempt("usage", energy_s):
                side.known |= {"memory": usage[0], "energy": usage[1]}

    def _window(self, group: Sequence[_TimedSide], window: int) -> None:
        share = 1 / self.protocol.windows
        alive = [side for side in group if side.alive]
        fewest = min((side.steps for side in alive), default=0)
        of_reference = self.sides[0].steps or fewest
        block = max(1, min(STEPS, int(of_reference * share) // LEAST_BLOCKS))
        steps = {side: max(1, round(block * side.steps / of_reference)) for side in alive}
        room = min((int(side.steps * share) // step for side, step in steps.items()), default=0)
        rounds = max(1, min(self.protocol.window_rounds, (room - 1) // 2))
        times: dict[_TimedSide, list[tuple[float, float]]] = {side: [] for side in steps}
        for side, count in steps.items():
            side.run(max(0, round(window * side.steps * share) - side.done))
            warmup = side.run(count)
            if warmup and not window:
                side.known |= {"warmup_s": warmup.seconds, "warmup_steps": count}
        for timed_round in in_rounds(list(steps), rounds, self.coin, lambda side, number: side.block(steps[side])):
            self.orders.append([self.sides.index(side) for side in timed_round.order])
            for side, seconds in timed_round.block_s.items():
                times[side].append((round(seconds[0], 7), round(seconds[1], 7)))
            if not self._reference_lives(group):
                return
        for side, block_s in times.items():
            if side.alive:
                side.known["windows"].append(Window(progress=window * share, block_s=block_s, block_steps=steps[side]))

    def _reference_lives(self, group: Sequence[_TimedSide]) -> bool:
        """Tells whether the reference has not failed; if it has, whoever still runs is stopped."""
        failure = self.sides[0].failure
        if failure is None:
            return True
        for side in group:
            if side.alive:
                side.fail(ContenderFailed("failed", f"stopped because the reference {failure.status}"))
        return False
