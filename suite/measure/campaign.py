"""Fills a results folder with the evidence that is missing, until time is up.

First each pair is counted and timed once, since neither takes a learned run: so a fresh machine has timings of its own
within minutes. Then the rest is counted, learned, and timed again for an interval. Counting and learning fill every
core, since nothing there is on a clock, but on a GPU, whose models at ``base`` take their time and memory: there few
are counted at once, and timed as soon as they fill a set. Timing is alone: what else keeps the machine busy then is
waited for or named, and never timed against.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path

from suite.entries.adapting import baseline_for
from suite.judge.repetition import envelope, repetition
from suite.judge.rows import rows, undecided
from suite.loop.sites import NotAttached
from suite.measure.contenders.contender import Limits
from suite.measure.contenders.deputies import in_child
from suite.measure.counting import count
from suite.measure.forecast import sides_s
from suite.measure.learning import (
    cores,
    equal_to_the_bit,
    learn_all,
    renewal_of,
    renewal_up_to_rounding,
    witness_of,
)
from suite.measure.missing import MOST_TOGETHER, CampaignPlan, Pair, Timing, Wanted, witness_job
from suite.measure.provenance import Progress, conditions_of, portion, silent
from suite.measure.rounding import nudged_losses
from suite.measure.timing import ROUNDS, Protocol, loaded_servers, time_together
from suite.process.child import ContenderFailed, end_all
from suite.process.servers import Server
from suite.record.job import Job, Setting
from suite.record.machine import busy_cores, fingerprint
from suite.record.schema import Counted, Learned, Line, Renewal, Timed, Trained, Witness, unattached
from suite.record.store import Records, Store

UNREADABLE = (FileNotFoundError, PermissionError, ImportError, ValueError)  # data: errors that a user can mend
COUNT, RUN, TIMING = 2.0, 12.0, 5.0  # seconds that one takes on two cores at nano: for the bar alone
COUNTING_SHARE = 0.25  # of a chunk's time, where nothing of it was counted
LONG_S = 8.0  # for one side of a timing: some search, or train other models, before their first step
CHUNK = 4 * MOST_TOGETHER  # pairs that are counted, then timed: those of a kind fill their sets
COUNTED_ON_A_GPU = 4  # at once; a set holds more
SERVERS = 4  # of sets, which load their libraries side by side: half a gigabyte and five seconds of a core each
BUSY = 0.5  # cores that others use: above, times are theirs as well
FEWEST_SEEDS = 3  # for an interval that decides
PATIENCE_S = 30.0  # for what we started ourselves to end


@dataclass(frozen=True)
class Effort:
    """Says how much is measured, and how. ``cores``: those that counting and learning fill; all where None."""

    wanted: Wanted = Wanted()  # noqa: RUF009  it is frozen
    minutes: float = 10.0
    limits: Limits = Limits()  # noqa: RUF009
    rounds: int = ROUNDS
    sequential: bool = False
    cores: int | None = None


@dataclass(frozen=True)
class Tally:
    """Counts the pieces of evidence of each kind; a timing is one pair's in one set of processes."""

    counts: int = 0
    runs: int = 0
    timings: int = 0
    renewals: int = 0

    def __bool__(self) -> bool:
        return any(vars(self).values())

    def __str__(self) -> str:
        words = {"counts": "count", "runs": "learned run", "timings": "timing", "renewals": "renewal"}
        known = [(number, words[name]) for name, number in vars(self).items() if number]
        return ", ".join(f"{number} {word}{'s' if number > 1 else ''}" for number, word in known)


def tally(lines: Sequence[Line]) -> Tally:
    """Counts the lines by what they are; witnesses are runs."""
    kinds = [line.kind for line in lines]
    timings = sum(len(line.contenders) - 1 for line in lines if isinstance(line, Timed))
    return Tally(
        kinds.count("counted"), kinds.count("learned") + kinds.count("witness"), timings, kinds.count("renewal")
    )


@dataclass
class Measured:
    """Tells what a campaign added.

    ``refused``: stack, status and reason of what did not attach, which is no evidence. ``read``: what was there before
    and is used, of ``read_from``, the names of other machines; ``left``: what the pairs still lack; ``why``: a sentence
    on that, where something kept the campaign from its end. ``busy``: cores that others used, where they were too many
    to time.
    """

    added: list[Line] = field(default_factory=list)
    refused: list[tuple[str, str, str]] = field(default_factory=list)
    read: Tally = Tally()
    read_from: tuple[str, ...] = ()
    left: Tally = Tally()
    why: str = ""
    busy: float = 0.0

    @property
    def tally(self) -> Tally:
        return tally(self.added)

    @property
    def sentence(self) -> str:
        """Tells what was made here, what was read, and what is left, in words: first of all if nothing was made, and
        why."""
        if self.tally:
            parts = [f"made here: {self.tally}"]
        elif self.left:
            parts = [f"nothing was measured here: {self.why or 'what is missing cannot be had'}"]
        else:
            parts = ["nothing was missing"]
        if self.read:
            others = f" ({', '.join(self.read_from)})" if self.read_from else ""
            parts.append(f"read from records{others}: {self.read}")
        if self.left:
            parts.append(f"left: {self.left}; the same command goes on")
        return "; ".join(parts)

    @property
    def failures(self) -> list[tuple[str, str, str]]:
        """Returns the stack, status and reason of every run that failed."""
        ended = [piece for piece in self.added if isinstance(piece, Counted | Learned)]
        sides = [*ended, *(side for piece in self.added if isinstance(piece, Timed) for side in piece.contenders)]
        ill = [(side.stack, side.status, side.reason) for side in sides if side.status not in ("ok", "unavailable")]
        return [*self.refused, *ill]


def measure(
    pairs: Sequence[Pair],
    folder: Path,
    effort: Effort,
    *,
    together: bool = False,
    progress: Progress = silent,
    warn: Callable[[str], None] = lambda text: None,
    stored: Callable[[Line], None] = lambda line: None,
) -> Measured:
    """Measures what is missing of the pairs, which share a device, and appends it to ``folder`` as it comes.

    With ``together`` the pairs, which differ in the stack alone, are timed in one set of processes. ``stored`` gets
    each piece after it was appended. What does not attach is left out from there on. Raises NotAttached where nothing
    is left, or not all that was to be timed together; StoreError if the folder cannot be written or another run holds
    it; and what :func:`load_data` does.
    """
    for setting in dict.fromkeys(pair.setting for pair in pairs):
        load_data(setting, effort.minutes)
    store = Store(folder)
    setting = pairs[0].setting
    machine = fingerprint(setting.device, setting.threads)
    with store.writing(machine.name):
        records, problems = store.read()
        for problem in problems:
            warn(problem)
        return _Campaign(pairs, records, effort, together, store, machine.name, progress, warn, stored).run()


def load_data(setting: Setting, minutes: float) -> None:
    """Fills the cache with a user's own data, in a process that ends when the budget does: a hub may stay silent.

    Raises ValueError, OSError or ImportError for data that cannot be read, ContenderFailed where it does not arrive.
    """
    if setting.data is None:
        return
    try:
        in_child(_load, setting, limit_s=60 * minutes, mendable=UNREADABLE)
    except ContenderFailed as failure:
        if failure.status != "hung":
            raise
        raise ContenderFailed(
            "timeout", f"{setting.data} did not arrive within the budget of {minutes:g} minutes; give it more --minutes"
        ) from None


def _load(setting: Setting) -> None:
    baseline_for(setting).data(setting.size, setting.task, setting.data)


def in_passes(pairs: Sequence[Pair], done: Iterable[Pair], long_s: Callable[[Pair], float]) -> Iterator[list[Pair]]:
    """Yields the pairs, each stack once in a pass, of one recipe after the other; those of ``done`` have had their
    first. A stack begins where it does not take long, or least, and what takes long everywhere comes last, the longest
    at the end."""
    begun = {(pair.setting.recipe, pair.stack) for pair in done}
    for recipe in dict.fromkeys(pair.setting.recipe for pair in pairs):
        by_stack: dict[str, list[Pair | None]] = {}
        for pair in sorted(pairs, key=long_s):
            if pair.setting.recipe == recipe:
                by_stack.setdefault(pair.stack, [None] if (recipe, pair.stack) in begun else []).append(pair)
        in_order = [by_stack[stack] for stack in dict.fromkeys(pair.stack for pair in pairs) if stack in by_stack]
        for together in zip_longest(*in_order):
            yield sorted(filter(None, together), key=long_s)


def in_chunks(
    pairs: Sequence[Pair],
    done: Iterable[Pair] = (),
    long_s: Callable[[Pair], float] = lambda pair: 0.0,
    most: int = CHUNK,
) -> Iterator[list[Pair]]:
    """Yields the pairs in the order of their passes, at most ``most`` at once, such that those of a chunk share a
    setting and a reference, and what takes long shares none with others. ``long_s``: seconds of what does, 0 of the
    others."""
    for one_pass in in_passes(pairs, done, long_s):
        open_chunks: dict[tuple[Setting, str, float], list[Pair]] = {}
        for pair in one_pass:
            kind = pair.setting, pair.reference, long_s(pair)
            chunk = open_chunks.setdefault(kind, [])
            chunk.append(pair)
            if len(chunk) == most:
                yield open_chunks.pop(kind)
        yield from open_chunks.values()


class _Campaign:
    def __init__(
        self,
        pairs: Sequence[Pair],
        records: Records,
        effort: Effort,
        together: bool,
        store: Store,
        machine: str,
        progress: Progress,
        warn: Callable[[str], None],
        stored: Callable[[Line], None],
    ) -> None:
        self.pairs, self.effort, self.together, self.store, self.machine = pairs, effort, together, store, machine
        self.progress, self.warn, self.stored = progress, warn, stored
        self.lines = records.lines
        self.measured = Measured()
        self.wanted = effort.wanted
        self.asked = list(pairs)
        self.begun_s = time.monotonic()
        self.end_s = self.begun_s + 60 * effort.minutes
        self.servers: list[Server] = []  # of sets to come
        self.low = self.high = 0.0  # the part of the bar for what is measured now

    def run(self) -> Measured:
        self._show(0.0, "preparing data")
        try:
            for measure_some in (self._survey, self._count, self._learn, self._time, self._decide):
                measure_some()
                if self.measured.refused and (self.together or not self.pairs):
                    raise NotAttached("; ".join(dict.fromkeys(reason for _, _, reason in self.measured.refused)))
        finally:
            for server in self.servers:
                server.close()
        self._take_stock()
        self.progress(1.0, "done")
        return self.measured

    def _take_stock(self) -> None:
        """Says what is known of all pairs now, by whom, and what is not."""
        plan = self._plan(self.effort.wanted, self.asked)
        refused = {stack for stack, _, _ in self.measured.refused}
        left = [timing for timing in plan.timings() if not refused & {*timing.stacks}]
        self.measured.left = Tally(
            counts=sum(stack not in refused for _, stack in plan.counts()),
            runs=sum(job.stack not in refused for job in plan.jobs()),
            timings=sum(len(timing.stacks) - 1 for timing in left),
        )
        new_ids = {line.id for line in self.measured.added}
        read = [piece for piece in plan.used() if piece.id not in new_ids]
        self.measured.read = tally(read)
        names = {piece.home.name for piece in read} - {self.machine}
        self.measured.read_from = tuple(sorted(names))

    def _part(self, now: float, later: float) -> None:
        """Gives what is measured now its part of the rest of the bar, by how long it takes beside what comes later."""
        self.low = self.high
        self.high += (1 - self.low) * now / max(now + later, 1.0)

    def _show(self, share: float, what: str) -> None:
        """Says how far all is: of the work or, where the budget ends it earlier, of the time."""
        work = self.low + share * (self.high - self.low)
        time_share = 1.0 if self._late else (time.monotonic() - self.begun_s) / (self.end_s - self.begun_s)
        self.progress(max(work, time_share), what)

    def _plan(self, wanted: Wanted | None = None, pairs: Sequence[Pair] = ()) -> CampaignPlan:
        tried = {line.id for line in self.measured.added}
        return CampaignPlan(pairs or self.pairs, Records.of(self.lines), wanted or self.wanted, self.together, tried)

    def _decide(self) -> None:
        if open_pairs := self._undecided():
            self.pairs, self.wanted = open_pairs, replace(self.wanted, seeds=self.wanted.most_seeds)
            self._learn()

    @property
    def _may_decide(self) -> bool:
        """Tells whether more seeds may be learned of what is undecided: not where too few to judge by were asked
        for."""
        return FEWEST_SEEDS <= self.wanted.seeds < self.wanted.most_seeds and not self.together

    def _undecided(self) -> list[Pair]:
        """Returns the pairs that more seeds may decide."""
        if not self._may_decide or self.measured.why:
            return []
        records = Records.of(self.lines)
        asked = {(conditions_of(pair.setting).key, pair.stack, pair.reference): pair for pair in self.pairs}
        known = ((asked.get((row.conditions.key, row.stack, row.reference)), row) for row in rows(records))
        return [pair for pair, row in known if pair and row.machine.name == self.machine and undecided(row)]

    def _keep(self, line: Line) -> None:
        if refused := unattached(line):
            self._leave_out(line, {run.stack: run.reason for run in refused})
            sound = line.without({run.stack for run in refused}) if isinstance(line, Timed) else None
            return self._keep(sound) if sound else None
        self.store.append(line, self.machine)
        self.lines.append(line)
        self.measured.added.append(line)
        self.stored(line)

    def _leave_out(self, line: Line, reasons: dict[str, str]) -> None:
        """Goes on without the stacks that do not attach to the model of the line."""
        self.measured.refused += [(stack, "not attached", reason) for stack, reason in reasons.items()]
        of_line = None if isinstance(line, Renewal) else (line.conditions.baseline, line.conditions.recipe)
        self.pairs = [
            pair
            for pair in self.pairs
            if (pair.setting.baseline, pair.setting.recipe) != of_line or not reasons.keys() & {*pair.sides}
        ]

    @property
    def _on_cpu(self) -> bool:
        return self.pairs[0].setting.device == "cpu"

    @property
    def _late(self) -> bool:
        return time.monotonic() > self.end_s

    def _stop(self) -> None:
        if not self.measured.why:
            self.measured.why = f"the budget of {self.effort.minutes:g} minutes is spent"
            self.warn(f"{self.measured.why}; run it again to go on")

    # counted and timed once -------------------------------------------------------------------------------------------

    def _survey(self) -> None:
        """Surveys each pair's counts and its first timing."""
        if not self.wanted.timings:
            return
        once = replace(self.wanted, timings=1)
        plan = self._plan(once)
        waiting = [pair for pair in self.pairs if self.together or (pair.timed and not plan.timed(pair))]
        if not waiting or (self.together and not plan.timings()):
            return
        everything = self._plan()
        later = RUN * len(everything.jobs()) + TIMING * len(self.pairs) * (self.wanted.timings - 1)
        self._part(COUNT * len(plan.counts()) + TIMING * len(waiting), later)
        done = 0
        before = [pair for pair in self.pairs if pair not in waiting]
        side_s = sides_s(line for line in self.lines if isinstance(line, Timed))

        def long_s(pair: Pair) -> float:
            return seconds if (seconds := side_s(pair.setting, pair.stack)) > LONG_S else 0.0

        chunks = in_chunks(waiting, before, long_s, CHUNK if self._on_cpu else MOST_TOGETHER)
        for chunk in [waiting] if self.together else chunks:
            if self._late:
                return self._stop()
            at, width = done / len(waiting), len(chunk) / len(waiting)
            counting = portion(self._show, at, at + COUNTING_SHARE * width)
            if not self._counted(self._plan(once, chunk), counting):
                return self._stop()
            left = [pair for pair in chunk if pair in self.pairs]
            timing = portion(self._show, at + COUNTING_SHARE * width, at + width)
            if left and not self._timed_all(self._plan(once, left), timing):
                return
            done += len(chunk)

    # counted --------------------------------------------------------------------------------------------------------

    def _count(self) -> None:
        plan = self._plan()
        self._part(COUNT * len(plan.counts()), RUN * len(plan.jobs()) + TIMING * len(plan.timings()))
        if not self._counted(plan, self._show):
            self._stop()

    def _counted(self, plan: CampaignPlan, show: Progress) -> bool:
        """Counts what the plan lacks, and says whether there was time for all."""
        wanted = plan.counts()
        at_once = self.effort.cores or cores()
        if not self._on_cpu:
            at_once = min(at_once, COUNTED_ON_A_GPU)
        with ThreadPoolExecutor(at_once, "counting") as pool:
            counts = pool.map(lambda item: None if self._late else count(item[0], item[1], self.effort.limits), wanted)
            try:
                for number, (side, counted) in enumerate(zip(wanted, counts, strict=True)):
                    if counted is None:
                        return False
                    self._keep(counted)
                    show((number + 1) / len(wanted), f"counting on {side[0].baseline}: {side[1]}")
            except BaseException:  # nobody waits for the others
                pool.shutdown(wait=False, cancel_futures=True)
                end_all()
                raise
        return True

    # learned --------------------------------------------------------------------------------------------------------

    def _learn(self) -> None:
        plan = self._plan()
        fresh = plan.jobs()
        if repeats := plan.repeats():
            self._run(repeats, plan)
            if not self.pairs:
                return
            plan = self._plan()  # what was equal to the bit has renewed the others
            fresh = plan.jobs()
        if self.wanted.renewed:
            return
        while fresh:
            first = min(job.seed for job in fresh)
            if not self._run([job for job in fresh if job.seed == first], plan) or not self.pairs:
                return
            plan, before = self._plan(), fresh  # a grid tells the rate of other seeds, equal bits that none is needed
            fresh = plan.jobs()
            if fresh == before:
                break
        if witnesses := plan.witnesses_to_be():
            self._run(witnesses, plan)

    def _run(self, jobs: Sequence[Job], plan: CampaignPlan) -> bool:
        """Learns from jobs and says whether there was time for all."""
        fresh = plan.jobs()
        later = RUN * max(0, len(fresh) - len(jobs)) + TIMING * len(plan.timings())
        self._part(RUN * len(jobs), later)
        wanted = set(fresh)
        finished = 0
        runs = learn_all(
            jobs,
            at_once=self.effort.cores,
            stop=lambda: self._late,
            limits=self.effort.limits,
            progress=lambda share, what: self._show(share, f"learning on {what}"),
        )
        for job, learned in runs:
            finished += 1
            if job in wanted:
                self._keep_new(learned, plan.runs(job), plan.unverified(job))
            elif job == witness_job(job.setting, job.stack):
                known = plan.witnesses(job)
                self._keep_new(witness_of(learned), known, [run for run in known if not plan.currency.has(run)])
            self._renew_up_to_rounding(job, learned, plan.unverified_elsewhere(job))
        if finished < len(jobs):
            self._stop()
        return finished == len(jobs)

    def _keep_new(self, run: Learned | Witness, known: Sequence[Trained], unverified: Sequence[Trained]) -> None:
        """Keeps what a run tells: that other code computes the same, or what none of the known ones says."""
        renewals = filter(None, (renewal_of(trained, run) for trained in unverified))
        for renewal in {renewal.old: renewal for renewal in renewals}.values():
            self._keep(renewal)
        if run.status != "ok" or not any(equal_to_the_bit(trained, run) for trained in known):
            self._keep(run)

    def _renew_up_to_rounding(self, job: Job, run: Learned, elsewhere: Sequence[Trained]) -> None:
        """Renews what other arithmetic learned by other code, where this run parts from it by rounding alone."""
        if run.status != "ok" or not elsewhere:
            return
        allowed = envelope(run.first_losses, nudged_losses(job, len(run.first_losses), self.effort.limits))
        for old in elsewhere:
            seen = repetition(old, run, False, allowed)
            if seen.equality == "equal up to rounding":
                self._keep(renewal_up_to_rounding(old, run, seen.distance))

    # timed ----------------------------------------------------------------------------------------------------------

    def _time(self) -> None:
        plan = self._plan()
        if timings := plan.timings():
            self._part(TIMING * len(timings), RUN * len(self.pairs) if self._may_decide else 0)
            self._timed_all(plan, self._show)

    def _timed_all(self, plan: CampaignPlan, show: Progress) -> bool:
        """Times what the plan lacks, and says whether that could be done for all."""
        timings = plan.timings()
        if not timings:
            return True
        if (busy := self._others()) > BUSY:
            if not self.measured.busy:
                self.warn(
                    f"too busy to time: others use {busy:.1f} cores; timings are left out, run it again when the "
                    "machine is idle"
                )
            self.measured.busy, self.measured.why = busy, f"others use {busy:.1f} cores, which is too many to time"
            return False
        for number, timing in enumerate(timings):
            if self._late:
                self._stop()
                return False
            show(number / len(timings), f"timing on {timing.setting.baseline}: {', '.join(timing.stacks[1:])}")
            self._keep(self._timed(timing))
        return True

    def _timed(self, timing: Timing) -> Timed:
        protocol = Protocol(timing.windows, self.effort.rounds, self.effort.sequential, self.effort.limits)
        if not self.servers:
            self.servers = loaded_servers(min(cores(), SERVERS, len(self.pairs)))
        server = self.servers.pop()
        return time_together(timing.setting, timing.stacks, timing.replicate, protocol, server=server)

    def _others(self) -> float:
        """Counts the cores that others use, once what we started has ended."""
        deadline_s = time.monotonic() + PATIENCE_S
        while (busy := busy_cores()) > BUSY and time.monotonic() < deadline_s:
            time.sleep(1.0)
        return busy
