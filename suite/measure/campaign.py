"""Fills a results folder with the evidence that is missing: counts, then learns, then times, until time is up.

Counting and learning fill every core, since nothing there is on a clock. Timing comes last and alone: what else keeps
the machine busy then is waited for or named, and never timed against.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

from suite.contract.adapting import baseline_for
from suite.contract.sites import NotAttached
from suite.judge.rows import rows, undecided
from suite.measure.child import ContenderFailed, end_all, in_child
from suite.measure.contender import Limits
from suite.measure.counting import count
from suite.measure.evidence import Progress, States, conditions_of, silent
from suite.measure.learning import cores, equal_to_the_bit, learn_all, renewal_of, witness_of
from suite.measure.plan import Pair, Plan, Timing, Wanted, settled, witness_job
from suite.measure.timing import ROUNDS, Protocol, time_together
from suite.record.job import Job, Setting
from suite.record.machine import busy_cores, fingerprint
from suite.record.schema import FIFTHS, Counted, Learned, Line, Renewal, Timed, Trained, Witness, unattached
from suite.record.store import Records, Store

UNREADABLE = (FileNotFoundError, PermissionError, ImportError, ValueError)  # data: errors that a user can mend
RUN = TIMING = 10.0  # how long one takes, beside a count: for the bar alone
BUSY = 0.5  # cores that others use: above, times are theirs as well
FEWEST_SEEDS = 3  # for an interval that decides
PATIENCE_S = 30.0  # for what we started ourselves to end
DONE = {  # what was done with one, with several
    "counted": ("counted {} stack", "counted {} stacks"),
    "learned": ("learned from {} run", "learned from {} runs"),
    "witness": ("kept {} witness", "kept {} witnesses"),
    "renewal": ("renewed {} stack", "renewed {} stacks"),
    "timed": ("timed {} set of processes", "timed {} sets of processes"),
}


@dataclass(frozen=True)
class Effort:
    """How much is measured, and how."""

    wanted: Wanted = Wanted()  # noqa: RUF009  it is frozen
    minutes: float = 10.0
    limits: Limits = Limits()  # noqa: RUF009
    rounds: int = ROUNDS
    sequential: bool = False


@dataclass
class Measured:
    """What a campaign added.

    ``refused``: stack, status and reason of what did not attach, which is no evidence. ``left``: what time did not
    suffice for; then ``begun`` of ``asked`` pairs have some of all that they need. ``busy``: cores that others used,
    where they were too many to time.
    """

    added: list[Line] = field(default_factory=list)
    refused: list[tuple[str, str, str]] = field(default_factory=list)
    left: str = ""
    begun: int = 0
    asked: int = 0
    minutes: float = 0.0
    busy: float = 0.0

    @property
    def sentence(self) -> str:
        """What was done, in words."""
        done = [words[number > 1].format(number) for kind, words in DONE.items()
                if (number := sum(each.kind == kind for each in self.added))]  # fmt: skip
        left = [f"{self.left} are left"] if self.left else []
        sentence = ", ".join([*done, *left]) or "nothing was missing"
        if self.asked:
            sentence += f": {self.begun} of {self.asked} pairs measured in {self.minutes:g} minutes, "
            sentence += "the most informative first"
        return sentence

    @property
    def failures(self) -> list[tuple[str, str, str]]:
        """Stack, status and reason of every run that failed."""
        ended = [each for each in self.added if isinstance(each, Counted | Learned)]
        sides = [*ended, *(side for each in self.added if isinstance(each, Timed) for side in each.contenders)]
        ill = [(each.stack, each.status, each.reason) for each in sides if each.status not in ("ok", "unavailable")]
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
        self.lines = settled(records).lines
        self.measured = Measured()
        self.wanted = effort.wanted
        self.asked = list(pairs)
        self.begun_s = time.monotonic()
        self.end_s = self.begun_s + 60 * effort.minutes
        self.low = self.high = 0.0  # the part of the bar for what is measured now

    def run(self) -> Measured:
        self._show(0.0, "preparing data")
        for measure_some in (self._count, self._learn, self._time, self._decide):
            measure_some()
            if self.measured.refused and (self.together or not self.pairs):
                raise NotAttached("; ".join(dict.fromkeys(reason for _, _, reason in self.measured.refused)))
        self.progress(1.0, "done")
        return self.measured

    def _part(self, now: float, later: float) -> None:
        """Gives what is measured now its part of the rest of the bar, by how long it takes beside what comes later."""
        self.low = self.high
        self.high += (1 - self.low) * now / max(now + later, 1.0)

    def _show(self, share: float, what: str) -> None:
        """Says how far all is: of the work or, where the budget ends it earlier, of the time."""
        work = self.low + share * (self.high - self.low)
        time_share = 1.0 if self._late else (time.monotonic() - self.begun_s) / (self.end_s - self.begun_s)
        self.progress(max(work, time_share), what)

    def _plan(self) -> Plan:
        return Plan(self.pairs, Records.of(self.lines), self.wanted, self.together)

    def _decide(self) -> None:
        if open_pairs := self._undecided():
            self.pairs, self.wanted = open_pairs, replace(self.wanted, seeds=self.wanted.most_seeds)
            self._learn()

    @property
    def _may_decide(self) -> bool:
        """Whether more seeds may be learned of what is undecided: not where too few to judge by were asked for."""
        return FEWEST_SEEDS <= self.wanted.seeds < self.wanted.most_seeds and not self.together

    def _undecided(self) -> list[Pair]:
        """The pairs that more seeds may decide."""
        if not self._may_decide or self.measured.left:
            return []
        records = Records.of(self.lines)
        asked = {(conditions_of(pair.setting).key, pair.stack, pair.reference): pair for pair in self.pairs}
        known = ((asked.get((row.conditions.key, row.stack, row.reference)), row) for row in rows(records))
        return [pair for pair, row in known if pair and row.machine.name == self.machine and undecided(row)]

    def _keep(self, line: Line) -> None:
        if refused := unattached(line):
            return self._leave_out(line, {run.stack: run.reason for run in refused})
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
    def _late(self) -> bool:
        return time.monotonic() > self.end_s

    def _stop(self, what: str, left: int, of: int) -> None:
        self.measured.left = what
        if not self.together:
            begun = Plan(self.asked, Records.of(self.lines), self.effort.wanted).begun()
            self.measured.begun, self.measured.asked = len(begun), len(self.asked)
            self.measured.minutes = self.effort.minutes
        self.warn(
            f"the budget of {self.effort.minutes:g} minutes is spent, {left} of {of} {what} left; run it again to go on"
        )

    # counted --------------------------------------------------------------------------------------------------------

    def _count(self) -> None:
        plan = self._plan()
        wanted = plan.counts()
        self._part(len(wanted), RUN * len(plan.jobs()) + TIMING * len(plan.timings()))
        device = self.pairs[0].setting.device
        with ThreadPoolExecutor(cores() if device == "cpu" else 1, "counting") as pool:
            counts = pool.map(lambda each: None if self._late else count(each[0], each[1], self.effort.limits), wanted)
            try:
                for number, (each, counted) in enumerate(zip(wanted, counts, strict=True)):
                    if counted is None:
                        return self._stop("counts", len(wanted) - number, len(wanted))
                    self._keep(counted)
                    self._show((number + 1) / len(wanted), f"counting on {each[0].baseline}: {each[1]}")
            except BaseException:  # nobody waits for the others
                pool.shutdown(wait=False, cancel_futures=True)
                end_all()
                raise

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
        resumed = [job for job in self._to_resume(plan) if job not in fresh]
        while fresh or resumed:
            first = min((job.seed for job in fresh), default=0)
            if not self._run([*resumed, *(job for job in fresh if job.seed == first)], plan) or not self.pairs:
                return
            plan, before = self._plan(), fresh  # a grid tells the rate of other seeds, equal bits that none is needed
            fresh, resumed = plan.jobs(), []
            if fresh == before:
                break
        if witnesses := plan.witnesses_to_be():
            self._run(witnesses, plan)

    def _run(self, jobs: Sequence[Job], plan: Plan) -> bool:
        """Learns from jobs and says whether there was time for all."""
        fresh = plan.jobs()
        later = RUN * max(0, len(fresh) - len(jobs)) + TIMING * len(plan.timings())
        self._part(RUN * len(jobs), later)
        wanted = set(fresh)  # the others leave their states and tell nothing new
        stateful = set(self._to_resume(plan))
        finished = 0
        runs = learn_all(
            jobs, stop=lambda: self._late, limits=self.effort.limits, keep_states=lambda job: job in stateful,
            progress=lambda share, what: self._show(share, f"learning on {what}"),
        )  # fmt: skip
        for job, learned in runs:
            finished += 1
            if job in wanted:
                self._keep_new(learned, plan.runs(job), plan.unverified(job))
            elif job == witness_job(job.setting, job.stack):
                known = plan.witnesses(job)
                self._keep_new(witness_of(learned), known, [each for each in known if not plan.currency.has(each)])
        if finished < len(jobs):
            self._stop("runs", len(jobs) - finished, len(jobs))
        return finished == len(jobs)

    def _keep_new(self, run: Learned | Witness, known: Sequence[Trained], unverified: Sequence[Trained]) -> None:
        """Keeps what a run tells: that other code computes the same, or what none of the known ones says."""
        renewals = filter(None, (renewal_of(each, run) for each in unverified))
        for renewal in {each.old: each for each in renewals}.values():
            self._keep(renewal)
        if run.status != "ok" or not any(equal_to_the_bit(each, run) for each in known):
            self._keep(run)

    @staticmethod
    def _to_resume(plan: Plan) -> list[Job]:
        """The runs whose states timings will want, and which the cache does not have."""
        wanted: dict[Job, None] = {}
        for timing in plan.timings():
            if timing.windows > 1:
                wanted |= {Job(setting=timing.setting, stack=stack): None for stack in timing.stacks}
        return [job for job in wanted if not States(job).complete(range(1, FIFTHS))]

    # timed ----------------------------------------------------------------------------------------------------------

    def _time(self) -> None:
        timings = self._plan().timings()
        if not timings:
            return
        if (busy := self._others()) > BUSY:
            self.measured.left, self.measured.busy = "timings", busy
            self.warn(
                f"too busy to time: others use {busy:.1f} cores; {len(timings)} timings are left out, "
                "run it again when the machine is idle"
            )
            return
        self._part(TIMING * len(timings), RUN * len(self.pairs) if self._may_decide else 0)
        for number, timing in enumerate(timings):
            if self._late:
                return self._stop("timings", len(timings) - number, len(timings))
            label = f"timing on {timing.setting.baseline}: {', '.join(timing.stacks[1:])}"
            self._show(number / len(timings), label)
            self._keep(self._timed(timing))

    def _timed(self, timing: Timing) -> Timed:
        protocol = Protocol(timing.windows, self.effort.rounds, self.effort.sequential, self.effort.limits)
        return time_together(timing.setting, timing.stacks, timing.replicate, protocol)

    def _others(self) -> float:
        """Cores that others use, once what we started has ended."""
        deadline_s = time.monotonic() + PATIENCE_S
        while (busy := busy_cores()) > BUSY and time.monotonic() < deadline_s:
            time.sleep(1.0)
        return busy
