"""What is worth measuring next: of every pair of a technique and its reference, the evidence that is missing.

What is stored under the same conditions and code is not measured again. What
a busy or broken machine ended is tried again, up to TRIES times. Code that changed makes evidence unverified,
and only that is repeated. Of what was learned one run is, which renews all others where it is equal to the bit: the
witness, which takes a tenth of the steps, or where there is none the first seed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import import_module

from suite.contract.catalogue import catalogue, lookup, reference_of, tunes
from suite.contract.sources import installed_code
from suite.judge import tuning
from suite.judge.known import completed, equals_reference
from suite.judge.metrics import PROBE_RATIO
from suite.judge.rows import Currency
from suite.judge.ruler import BUDGETS, steps_at
from suite.measure.child import ENVIRONMENT
from suite.measure.evidence import conditions_of
from suite.record.files import cache_folder, replacing
from suite.record.job import BASELINE, Job, RecipeName, Setting, Task, canonical, join, parts_of, techniques_of
from suite.record.machine import fingerprint
from suite.record.schema import Counted, Ended, Learned, Line, Status, Timed, Trained, Witness, windows_of
from suite.record.store import Records

WITNESS_SHARE = 0.1  # of a run's own steps: every phase in proportion, and little beside what a process costs to start
TRANSIENT: tuple[Status, ...] = ("out_of_memory", "timeout", "hung", "crashed")
TRIES = 3  # then a failure is no accident
WITNESSED_STEPS = 200  # a shorter run is its own witness


@dataclass(frozen=True)
class Pair:
    """A stack against its reference under one setting; what one row of the leaderboard is about."""

    setting: Setting
    stack: str
    reference: str = BASELINE

    @property
    def sides(self) -> tuple[str, str]:
        """The reference's stack and the contender's."""
        return self.reference, self.stack


def pair_of(setting: Setting, stack: str, against: str | None = None, task: Task | None = None) -> Pair:
    """The stack against ``against``, in ``task``; what its cards ask for where these are None. Where no data is named,
    both sides adapt to what a technique of the stack brings.

    Raises UnknownId, or ValueError where a card of either side does not name the baseline. A model of the user's own,
    which no card knows, may be tried with everything.
    """
    reference, own_task = reference_of(stack)
    setting = setting.but(task=task or own_task)
    if setting.data is None and setting.task == "adapt":
        setting = setting.but(data=own_data(stack))
    pair = Pair(setting, canonical(stack), canonical(against) if against else reference)
    if setting.model is None:
        _check_named(setting.baseline, pair.sides)
    return pair


def own_data(stack: str) -> str | None:
    """Where the data is that a technique of the stack is about; None where it is about any.

    Its ``data.py`` writes it, a JSON file for the cache, the same at every call.
    """
    for name in techniques_of(stack):
        entry = catalogue()[name]
        if (entry.folder / "data.py").is_file():
            text = import_module(entry.module.removesuffix("technique") + "data").as_text()
            key = hashlib.sha256(text.encode()).hexdigest()[:24]
            path = cache_folder() / "own_data" / key / f"{name}.json"
            if not path.exists():
                with replacing(path) as partial:
                    partial.write_text(text, "utf-8")
            return str(path)
    return None


def _check_named(baseline: str, stacks: Iterable[str]) -> None:
    for name in dict.fromkeys(name for stack in stacks for name in techniques_of(stack)):
        named = lookup("technique", name, catalogue()).card.baselines
        if baseline not in named:
            raise ValueError(
                f"{name} is not for {baseline}: its card names {', '.join(named)}. Choose of these with -b, or try it "
                "on a model of your own with --model"
            )


def pairs_of(
    stacks: Iterable[str],
    on: Iterable[str],
    recipes: Iterable[RecipeName],
    setting: Setting,
    task: Task | None = None,
) -> list[Pair]:
    """The pairs of these stacks on those of the baselines ``on`` that all their cards name; all else as ``setting``.

    Every stack comes once before any comes on a second baseline, and the first recipe before the others.
    """
    entries, wanted = catalogue(), list(on)
    fitting = {
        stack: [
            baseline
            for baseline in wanted
            if all(baseline in lookup("technique", name, entries).card.baselines for name in techniques_of(stack))
        ]
        for stack in map(canonical, stacks)
    }
    return [
        pair_of(setting.but(baseline=baselines[place], recipe=recipe), stack, task=task)
        for recipe in recipes
        for place in range(len(wanted))
        for stack, baselines in fitting.items()
        if place < len(baselines)
    ]


def pairs_of_stack(setting: Setting, stack: str, against: str | None = None, task: Task | None = None) -> list[Pair]:
    """The pairs to measure together: every part of ``stack``, then the whole, all against one reference.

    Raises UnknownId, or ValueError where the parts' cards name no common reference or task.
    """
    parts = parts_of(stack)
    if not parts:
        raise ValueError(
            f"a stack joins two techniques or more by +, and {stack!r} does not; "
            f"measure one alone with: leantrain compare {stack}"
        )
    asked = {part: reference_of(part) for part in parts}
    references = {part: reference for part, (reference, _) in asked.items()}
    tasks = {part: own for part, (_, own) in asked.items()}
    if against is None and len(set(references.values())) > 1:
        raise ValueError(
            f"{_listed(references, 'is measured against')}: an interaction needs one reference. Name one that fits all "
            f"(leantrain stack {stack} REFERENCE), or measure the stack alone with: leantrain compare {stack}"
        )
    if task is None and len(set(tasks.values())) > 1:
        raise ValueError(
            f"{_listed(tasks, 'is measured in the task')}: an interaction needs one task. Choose it with --task"
        )
    reference = against or references[parts[0]]
    return [pair_of(setting, each, reference, task or tasks[parts[0]]) for each in (*parts, stack)]


def _listed(phrases: Mapping[str, str], verb: str) -> str:
    return ", ".join(f"{part} {verb} {phrase}" for part, phrase in phrases.items())


@dataclass(frozen=True)
class Wanted:
    """How much evidence a pair should have. ``ruler_seeds``: of the reference's scaling curve; 0 for none. ``here``:
    whether curves that another machine learned do not count. ``tuned``: whether learning rates are tuned where a card
    asks for that. ``most_seeds``: of a pair that ``seeds`` leave undecided."""

    seeds: int = 3
    timings: int = 3
    ruler_seeds: int = 0
    here: bool = False
    tuned: bool = True
    most_seeds: int = 5


@dataclass(frozen=True)
class Timing:
    """Stacks to be timed together, the reference first. ``windows``: as many as :func:`windows_of` says."""

    setting: Setting
    stacks: tuple[str, ...]
    replicate: int
    windows: int


def settled(records: Records) -> Records:
    """The records without those failures that another try may mend: of the machine, of its load, or killed."""
    tries: dict[tuple[object, ...], list[Line]] = {}
    for line in records.lines:
        if tried := _tried(line):
            tries.setdefault(tried, []).append(line)
    again = {each.id for failed in tries.values() if len(failed) < TRIES for each in failed}
    return Records.of(line for line in records.lines if line.id not in again)


def _tried(line: Line) -> tuple[object, ...]:
    """What was tried, where the line is of a failure that may pass; nothing where it is not."""
    if isinstance(line, Timed):
        if any(map(_may_pass, line.contenders)):
            sides = [(side.stack, side.code.trajectory) for side in line.contenders]
            return line.kind, line.conditions.key, line.machine.key, line.replicate, *sides
    elif isinstance(line, Counted | Trained) and _may_pass(line):
        seed = line.seed if isinstance(line, Trained) else None
        return line.kind, line.conditions.key, line.machine.key, line.stack, line.code.trajectory, seed
    return ()


def _may_pass(run: Ended) -> bool:
    return run.status in TRANSIENT or (run.status == "failed" and run.reason.startswith(ENVIRONMENT))


class Plan:
    """What is known of some pairs, and what is missing.

    With ``together`` the pairs, which differ in the stack alone, are timed in one set of processes.
    """

    def __init__(self, pairs: Sequence[Pair], records: Records, wanted: Wanted, together: bool = False) -> None:
        self.pairs, self.records, self.wanted, self.together = list(pairs), records, wanted, together
        self.currency = Currency.of(records.renewals, installed_code)
        setting = pairs[0].setting
        self.machine = fingerprint(setting.device, setting.threads).key
        self._known_counts = {
            (each.conditions.key, each.stack): each for each in records.counted if self.currency.has(each)
        }

    def begun(self) -> list[Pair]:
        """The pairs that have some of all that is wanted: counts, a run of each side, a timing."""
        seeds, timings = min(1, self.wanted.seeds), min(1, self.wanted.timings)
        some = replace(self.wanted, seeds=seeds, timings=timings, ruler_seeds=0, tuned=False)
        alone, begun = copy(self), []
        alone.wanted = some
        for pair in self.pairs:
            alone.pairs = [pair]
            if not (alone.counts() or alone.jobs() or alone.timings()):
                begun.append(pair)
        return begun

    # counted --------------------------------------------------------------------------------------------------------

    def counts(self) -> list[tuple[Setting, str]]:
        """The stacks to count."""
        sides = dict.fromkeys((pair.setting, stack) for pair in self.pairs for stack in pair.sides)
        return [(setting, stack) for setting, stack in sides if self.counted(setting, stack) is None]

    def counted(self, setting: Setting, stack: str) -> Counted | None:
        """The current counts of a stack."""
        return self._known_counts.get((_key(setting), stack))

    # learned --------------------------------------------------------------------------------------------------------

    def jobs(self) -> list[Job]:
        """The runs to learn from: all pairs' first seeds first, and budgets of the ruler in between."""
        jobs: dict[Job, None] = {}
        for seed in range(max(self.wanted.seeds, self.wanted.ruler_seeds)):
            if seed < self.wanted.seeds:
                jobs |= {
                    Job(setting=setting, stack=stack, seed=seed): None
                    for pair in self.pairs
                    if not self._learned_elsewhere(pair)
                    for stack in pair.sides
                    for setting in self._at_rates(pair, stack, seed)
                    if stack == pair.reference or not self._equals_reference(pair, setting)
                }
                jobs |= dict.fromkeys(job for pair in self.pairs for job in self._twins(pair, seed))
            if seed < self.wanted.ruler_seeds:
                for setting in dict.fromkeys(each for pair in self.pairs for each in self._compared_at(pair)):
                    jobs |= dict.fromkeys(ruler_jobs(setting, seed))
        return [job for job in jobs if self.learned(job) is None]

    def _at_rates(self, pair: Pair, stack: str, seed: int) -> list[Setting]:
        """The settings in which a side's seed is wanted: its own, then the grid, then the rate that the grid chose.

        Other seeds wait until the grid has chosen.
        """
        if not self._is_tuned(pair):
            return [pair.setting]
        grid = {rate: pair.setting.but(rate=rate) for rate in tuning.RATES}
        if seed == tuning.SEED:
            return [pair.setting, *(setting for rate, setting in grid.items() if rate != 1)]
        return self._at_the_best(grid, stack)

    def _equals_reference(self, pair: Pair, setting: Setting) -> bool:
        """Whether the contender's runs are the reference's to the bit."""
        return equals_reference(*self._learned_sides(replace(pair, setting=setting), self.machine))

    def _is_tuned(self, pair: Pair) -> bool:
        """Whether both sides of a pair run at the rate that a grid chooses."""
        return self.wanted.tuned and tunes(pair.stack) and pair.setting.rate == 1

    def _at_the_best(self, grid: Mapping[float, Setting], stack: str) -> list[Setting]:
        """The setting whose rate the grid chose; none before it has."""
        runs = {rate: self.learned(Job(setting=each, stack=stack, seed=tuning.SEED)) for rate, each in grid.items()}
        best = tuning.best_rate({rate: run for rate, run in runs.items() if run})
        return [grid[best]] if best else []

    def _twins(self, pair: Pair, seed: int) -> list[Job]:
        """The run of a seed that measures of the reference what a claim compares it by."""
        twin = measuring_twin(pair)
        if twin is None or self._learned_elsewhere(pair):
            return []
        return [Job(setting=setting, stack=twin, seed=seed) for setting in self._compared_at(pair)]

    def _compared_at(self, pair: Pair) -> list[Setting]:
        """The setting of the reference's runs that the pair is compared by: tuned where the pair is, and none before
        its grid has chosen."""
        if not self._is_tuned(pair):
            return [pair.setting]
        return self._at_the_best({rate: pair.setting.but(rate=rate) for rate in tuning.RATES}, pair.reference)

    def learned(self, job: Job) -> Learned | None:
        """The current run of a job on this machine."""
        return next(filter(self.currency.has, self.runs(job)), None)

    def unverified(self, job: Job) -> list[Learned]:
        """Runs of a job on this machine by other code."""
        return [each for each in self.runs(job) if not self.currency.has(each)]

    def repeats(self) -> list[Job]:
        """Of each stack that has runs by other code, the shortest run that can renew them."""
        repeats: dict[tuple[str, str], Job] = {}
        for job in self.jobs():
            if codes := {each.code.trajectory for each in self.unverified(job)}:
                witnessed = any(self.currency.same(each, code) for each in self.witnesses(job) for code in codes)
                shortest = (witnessed and witness_job(job.setting, job.stack)) or job
                repeats.setdefault((conditions_of(job.setting).family, job.stack), shortest)
        return list(repeats.values())

    def witnesses_to_be(self) -> list[Job]:
        """The witnesses that runs on this machine lack."""
        runs = dict.fromkeys(Job(setting=pair.setting, stack=stack) for pair in self.pairs for stack in pair.sides)
        lacking = [job for job in runs if self.learned(job) and not any(map(self.currency.has, self.witnesses(job)))]
        return list(filter(None, (witness_job(job.setting, job.stack) for job in lacking)))

    def witnesses(self, job: Job) -> list[Witness]:
        """The witnesses on this machine of the job's family and stack."""
        return self._witnesses.get((conditions_of(job.setting).family, job.stack), [])

    @cached_property
    def _witnesses(self) -> Mapping[tuple[str, str], list[Witness]]:
        index: dict[tuple[str, str], list[Witness]] = {}
        for each in self.records.witnesses:
            if each.machine.key == self.machine:
                index.setdefault((each.conditions.family, each.stack), []).append(each)
        return index

    def runs(self, job: Job) -> list[Learned]:
        """All runs of a job on this machine."""
        return self._runs.get((_key(job.setting), job.stack, job.seed, self.machine), [])

    def learned_pairs(self, pair: Pair) -> list[tuple[Learned, Learned]]:
        """The reference's and the contender's current runs by seed: on this machine, or on the one that has more."""
        each = [
            [(theirs[seed], ours[seed]) for seed in sorted(theirs.keys() & ours.keys())]
            for machine in sorted(self._current, key=lambda name: name != self.machine)
            for theirs, ours in [self._sides(pair, machine)]
        ]
        return max(each, key=len, default=[])

    def _sides(self, pair: Pair, machine: str) -> tuple[Mapping[int, Learned], Mapping[int, Learned]]:
        """Both sides' current runs on a machine by seed, where the reference's may stand for the contender's."""
        theirs, ours = self._learned_sides(pair, machine)
        return theirs, completed(theirs, ours)

    def _learned_sides(self, pair: Pair, machine: str) -> list[Mapping[int, Learned]]:
        index = self._current.get(machine, {})
        return [index.get((_key(pair.setting), stack), {}) for stack in pair.sides]

    @cached_property
    def _runs(self) -> Mapping[tuple[str, str, int, str], list[Learned]]:
        index: dict[tuple[str, str, int, str], list[Learned]] = {}
        for each in self.records.learned:
            index.setdefault((each.conditions.key, each.stack, each.seed, each.machine.key), []).append(each)
        return index

    def _learned_elsewhere(self, pair: Pair) -> bool:
        """Whether another machine has all seeds of both sides."""
        if self.wanted.here:
            return False
        elsewhere = [self._sides(pair, machine) for machine in self._current if machine != self.machine]
        return any(len(theirs.keys() & ours.keys()) >= self.wanted.seeds for theirs, ours in elsewhere)

    @cached_property
    def _current(self) -> Mapping[str, Mapping[tuple[str, str], Mapping[int, Learned]]]:
        """The current runs by machine, then by key and stack, then by seed."""
        index: dict[str, dict[tuple[str, str], dict[int, Learned]]] = {}
        for (key, stack, seed, machine), runs in self._runs.items():
            if current := [*filter(self.currency.has, runs)]:
                index.setdefault(machine, {}).setdefault((key, stack), {})[seed] = current[-1]
        return index

    # timed ----------------------------------------------------------------------------------------------------------

    def timings(self) -> list[Timing]:
        """The sets of processes to time, every pair's first one first."""
        groups = [self.pairs] if self.together else [[pair] for pair in self.pairs]
        missing = []
        for replicate in range(self.wanted.timings):
            for group in groups:
                setting, stacks = group[0].setting, (group[0].reference, *(pair.stack for pair in group))
                if not any(each.replicate == replicate for each in self.timed(setting, stacks)):
                    missing.append(Timing(setting, stacks, replicate, self._windows(setting, stacks)))
        return missing

    def timed(self, setting: Setting, stacks: Sequence[str]) -> list[Timed]:
        """The current timings of these stacks together on this machine, in all parts of a run whose cost changes."""
        timed, wanted = self._timings.get((_key(setting), *stacks), []), self._windows(setting, stacks)
        return [
            each for each in timed
            if each.windows >= wanted and all(self.currency.has_side(each, side) for side in each.contenders)
        ]  # fmt: skip

    def _windows(self, setting: Setting, stacks: Sequence[str]) -> int:
        return windows_of([self.counted(setting, stack) for stack in stacks])

    @cached_property
    def _timings(self) -> Mapping[tuple[str, ...], list[Timed]]:
        """All timings on this machine by key and stacks."""
        index: dict[tuple[str, ...], list[Timed]] = {}
        for each in self.records.timed:
            if each.machine.key == self.machine:
                at = each.conditions.key, *(side.stack for side in each.contenders)
                index.setdefault(at, []).append(each)
        return index


def measuring_twin(pair: Pair) -> str | None:
    """The stack that has the reference's trajectory and the contender's probes: its technique at zero strength. None
    where no claim on this baseline is about a probe over the reference's."""
    entry = catalogue().get(pair.stack)  # the claims of a card are of its technique alone, as it is
    if entry is None or pair.reference != entry.card.reference:
        return None
    at = pair.setting.baseline
    asked = [claim for claim in entry.card.claim if at in (claim.baselines or entry.card.baselines)]
    if not any(claim.metric.startswith(PROBE_RATIO) for claim in asked):
        return None
    zero = entry.technique.zero_strength
    return join([(entry.id, {name: str(value) for name, value in zero.items()})]) if zero else None


def ruler_jobs(setting: Setting, seed: int) -> list[Job]:
    """The reference's runs of a seed at all budgets of its scaling curve."""
    own = conditions_of(setting).steps
    budgets = [setting.but(steps=setting.steps if share == 1 else steps_at(share, own)) for share in BUDGETS]
    return [Job(setting=each, stack=BASELINE, seed=seed) for each in budgets]


def witness_job(setting: Setting, stack: str) -> Job | None:
    """The run that bears witness for the stack's runs in the setting's family; None where they are short themselves."""
    own = conditions_of(setting.but(steps=None)).steps
    if own < WITNESSED_STEPS:
        return None
    return Job(setting=setting.but(steps=round(WITNESS_SHARE * own), rate=1.0), stack=stack)


def _key(setting: Setting) -> str:
    return conditions_of(setting).key
