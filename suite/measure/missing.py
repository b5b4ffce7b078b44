"""Tells what is worth measuring next: of every pair of a technique and its reference, the evidence that is missing.

What the index of evidence has of a pair (:mod:`suite.judge.evidence`), and what holds of that, is not measured again:
a row of the board has it. Code that changed makes evidence unverified, and only that is repeated. Of what was learned
one run is, which renews all others where it is equal to the bit: the witness, which takes a tenth of the steps, or
where there is none the first seed.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import import_module

from suite.entries.catalogue import catalogue, lookup, reference_of, tunes
from suite.entries.sources import installed_code
from suite.judge import tuning
from suite.judge.evidence import Currency, EvidenceIndex, LearnedPairs, PairAt
from suite.judge.known import equals_reference
from suite.judge.metrics import PROBE_RATIO
from suite.judge.ruler import BUDGETS, steps_at
from suite.measure.contenders.world import reference_with_ranks, with_ranks
from suite.measure.provenance import conditions_of
from suite.record.files import cache_folder, replacing
from suite.record.job import BASELINE, Job, RecipeName, Setting, Spelling, Task, canonical, join
from suite.record.machine import fingerprint
from suite.record.numerics import off_the_clock
from suite.record.schema import Counted, Learned, Timed, Trained, Witness, bits_of, windows_of
from suite.record.store import Records

MOST_TOGETHER = 8  # contenders beside one reference: it costs a ninth of a set then, and a round is still short
TOGETHER_BYTES = 4 << 30  # of tensors, in all contenders of a set
WITNESS_SHARE = 0.1  # of a run's own steps: every phase in proportion, and little beside what a process costs to start
WITNESSED_STEPS = 200  # a shorter run is its own witness
IMPOSSIBLE = ("failed", "unavailable")  # what a count says of a stack that does not run


@dataclass(frozen=True)
class Pair:
    """Names a stack against its reference under one setting; what one row of the leaderboard is about. ``timed``:
    whether its times are wanted."""

    setting: Setting
    stack: str
    reference: str = BASELINE
    timed: bool = True

    @property
    def sides(self) -> tuple[str, str]:
        """Returns the reference's stack and the contender's."""
        return self.reference, self.stack

    @property
    def jobs(self) -> tuple[Job, Job]:
        """Returns what trains on each side, of the first seed."""
        reference, stack = (Job(setting=self.setting, stack=side) for side in self.sides)
        return reference, stack


def pair_of(setting: Setting, stack: str, against: str | None = None, task: Task | None = None) -> Pair:
    """Returns the stack against ``against``, in ``task``; what its cards ask for where these are None. Where no data is
    named, both sides adapt to what a technique of the stack brings.

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
    """Tells where the data is that a technique of the stack is about; None where it is about any.

    Its ``data.py`` writes it, a JSON file for the cache, the same at every call.
    """
    for name in Spelling(stack).names:
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
    for name in dict.fromkeys(name for stack in stacks for name in Spelling(stack).names):
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
    ranks: int | None = None,
) -> list[Pair]:
    """Returns the pairs of these stacks on those of the baselines ``on`` that all their cards name; all else as
    ``setting``. With ``ranks`` the stacks, and references that have several, train on so many.

    Every stack comes once before any comes on a second baseline, and the first recipe before the others. Raises
    ValueError where ranks are asked for of a stack that trains in one process.
    """
    if ranks is not None:
        stacks = [with_ranks(stack, ranks) for stack in stacks]
    entries, wanted = catalogue(), list(on)
    fitting = {
        stack: [
            baseline
            for baseline in wanted
            if all(baseline in lookup("technique", name, entries).card.baselines for name in Spelling(stack).names)
        ]
        for stack in map(canonical, stacks)
    }
    return [
        pair_of(
            setting.but(baseline=baselines[place], recipe=recipe),
            stack,
            None if ranks is None else reference_with_ranks(stack, ranks),
            task,
        )
        for recipe in recipes
        for place in range(len(wanted))
        for stack, baselines in fitting.items()
        if place < len(baselines)
    ]


def pairs_of_stack(setting: Setting, stack: str, against: str | None = None, task: Task | None = None) -> list[Pair]:
    """Returns the pairs to measure together: every part of ``stack``, then the whole, all against one reference.

    Raises UnknownId, or ValueError where the parts' cards name no common reference or task.
    """
    parts = Spelling(stack).members
    if not parts:
        raise ValueError(
            f"a stack joins two techniques or more by +, and {stack!r} does not; "
            f"measure one alone with: leantrain compare {stack}"
        )
    asked: dict[str, tuple[str, Task]] = {part: reference_of(part) for part in parts}
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
    return [pair_of(setting, part, reference, task or tasks[parts[0]]) for part in (*parts, stack)]


def _listed(phrases: Mapping[str, str], verb: str) -> str:
    return ", ".join(f"{part} {verb} {phrase}" for part, phrase in phrases.items())


@dataclass(frozen=True)
class Wanted:
    """Says how much evidence a pair should have. ``ruler_seeds``: of the reference's scaling curve; 0 for none.
    ``here``: whether curves that another machine learned do not count. ``tuned``: whether learning rates are tuned
    where a card asks for that. ``most_seeds``: of a pair that ``seeds`` leave undecided. ``renewed``: only what other
    code counted and learned is wanted, by the installed code, and nothing new."""

    seeds: int = 3
    timings: int = 3
    ruler_seeds: int = 0
    here: bool = False
    tuned: bool = True
    most_seeds: int = 5
    renewed: bool = False

    @property
    def to_renew(self) -> Wanted:
        """Returns what renews the same evidence, and asks for none that was not there."""
        return replace(self, timings=0, most_seeds=self.seeds, renewed=True)

    @property
    def to_time(self) -> Wanted:
        """Returns what times as often, and learns and tunes nothing."""
        return Wanted(seeds=0, timings=self.timings, tuned=False)


@dataclass(frozen=True)
class Timing:
    """Names stacks to be timed together, the reference first. ``windows``: as many as :func:`windows_of` says."""

    setting: Setting
    stacks: tuple[str, ...]
    replicate: int
    windows: int


class CampaignPlan:
    """Holds what is known of some pairs, and what is missing.

    With ``together`` the pairs, which differ in the stack alone, are timed in one set of processes; else several pairs
    may be, beside one reference. ``tried``: ids of failures that are not to be tried again now.
    """

    def __init__(
        self,
        pairs: Sequence[Pair],
        records: Records,
        wanted: Wanted,
        together: bool = False,
        tried: Collection[str] = (),
    ) -> None:
        self.pairs, self.records, self.wanted, self.together = list(pairs), records, wanted, together
        self.currency = Currency.of(records.renewals, installed_code)
        self.index = EvidenceIndex(records, self.currency, tried)
        setting = pairs[0].setting
        here = fingerprint(setting.device, setting.threads)
        self.machine = here.key
        self.bits = bits_of(off_the_clock(setting.device), here)

    def used(self) -> list[Counted | Learned | Timed]:
        """Returns the current evidence that the pairs have, by whomever it was measured."""
        used: dict[str, Counted | Learned | Timed] = {}
        for pair in self.pairs:
            counts = filter(None, (self.counted(pair.setting, stack) for stack in pair.sides))
            runs = [run for sides in self.learned_pairs(pair) for run in sides]
            pieces: list[Counted | Learned | Timed] = [*counts, *runs, *self.timed(pair)]
            used |= {piece.id: piece for piece in pieces}
        return list(used.values())

    # counted --------------------------------------------------------------------------------------------------------

    def counts(self) -> list[tuple[Setting, str]]:
        """Returns the stacks to count."""
        sides = dict.fromkeys((pair.setting, stack) for pair in self.pairs for stack in pair.sides)
        lacking = [side for side in sides if self.counted(*side) is None]
        if self.wanted.renewed:
            return [(at, stack) for at, stack in lacking if self.index.count(_key(at), stack, self.machine)]
        return lacking

    def counted(self, setting: Setting, stack: str) -> Counted | None:
        """Returns the current counts of a stack."""
        count = self.index.count(_key(setting), stack, self.machine)
        return count if count and self.index.holds(count) else None

    # learned --------------------------------------------------------------------------------------------------------

    def jobs(self) -> list[Job]:
        """Returns the runs to learn from: all pairs' first seeds first, and budgets of the ruler in between. Of a stack
        whose count failed one run is tried before anything is learned for its sake, and nothing is where that fails,
        too."""
        jobs: dict[Job, None] = {job: None for job in map(self._trial, self.pairs) if job}
        pairs = [pair for pair in self.pairs if self._has_hope(pair)]
        for seed in range(max(self.wanted.seeds, self.wanted.ruler_seeds)):
            if seed < self.wanted.seeds:
                jobs |= {
                    Job(setting=setting, stack=stack, seed=seed): None
                    for pair in pairs
                    if not self._learned_elsewhere(pair)
                    for stack in pair.sides
                    for setting in self._at_rates(pair, stack, seed)
                    if stack == pair.reference or not self._equals_reference(pair, setting)
                }
                jobs |= dict.fromkeys(job for pair in pairs for job in self._twins(pair, seed))
            if seed < self.wanted.ruler_seeds:
                for setting in dict.fromkeys(at for pair in pairs for at in self._compared_at(pair)):
                    jobs |= dict.fromkeys(ruler_jobs(setting, seed))
        lacking = [job for job in jobs if self.learned(job) is None]
        if self.wanted.renewed:
            return [job for job in lacking if self.unverified(job) or self.unverified_elsewhere(job)]
        return lacking

    def _trial(self, pair: Pair) -> Job | None:
        """Returns the run that tells whether a stack runs at all; None where nothing says that it does not."""
        counted = self.counted(pair.setting, pair.stack)
        if counted is None or counted.status not in IMPOSSIBLE or self._learned_elsewhere(pair):
            return None
        return Job(setting=pair.setting, stack=pair.stack)

    def _has_hope(self, pair: Pair) -> bool:
        trial = self._trial(pair)
        run = self.learned(trial) if trial else None
        return trial is None or (run is not None and run.status == "ok")

    def _at_rates(self, pair: Pair, stack: str, seed: int) -> list[Setting]:
        """Returns the settings in which a side's seed is wanted: its own, and what the search for its rate wants next,
        or at its end the rate that it chose, for which all other seeds wait."""
        if not self._is_tuned(pair):
            return [pair.setting]
        losses = self.index.losses(_key(pair.setting), stack, self.bits)
        own = [1.0] if seed == tuning.SEEDS[0] else []
        search = [rate for rate, of in tuning.lacking(losses) if of == seed]
        return [pair.setting.but(rate=rate) for rate in dict.fromkeys([*own, *search, *self._settled_rate(losses)])]

    def _settled_rate(self, losses: Mapping[tuning.Trial, float]) -> list[float]:
        """Returns the rate that a search chose; none before its end."""
        choice = tuning.chosen(losses)
        return [choice.rate] if choice and not tuning.lacking(losses) else []

    def _equals_reference(self, pair: Pair, setting: Setting) -> bool:
        """Tells whether the contender's runs are the reference's to the bit."""
        return equals_reference(*(self.index.known_runs(_key(setting), stack, self.bits) for stack in pair.sides))

    def _is_tuned(self, pair: Pair) -> bool:
        """Tells whether each side of a pair runs at the rate that a search chooses."""
        return self.wanted.tuned and tunes(pair.stack) and pair.setting.rate == 1

    def _twins(self, pair: Pair, seed: int) -> list[Job]:
        """Returns the run of a seed that measures of the reference what a claim compares it by."""
        twin = measuring_twin(pair)
        if twin is None or self._learned_elsewhere(pair):
            return []
        return [Job(setting=setting, stack=twin, seed=seed) for setting in self._compared_at(pair)]

    def _compared_at(self, pair: Pair) -> list[Setting]:
        """Returns the setting of the reference's runs that the pair is compared by: tuned where the pair is, and none
        before its search has chosen."""
        if not self._is_tuned(pair):
            return [pair.setting]
        losses = self.index.losses(_key(pair.setting), pair.reference, self.bits)
        return [pair.setting.but(rate=rate) for rate in self._settled_rate(losses)]

    def learned(self, job: Job) -> Learned | None:
        """Returns the current run of a job, with the bits that this machine gives."""
        return self.index.known_runs(_key(job.setting), job.stack, self.bits).get(job.seed)

    def unverified(self, job: Job) -> list[Learned]:
        """Runs of a job by other code, with the bits that this machine gives."""
        return [run for run in self.runs(job) if not self.currency.has(run)]

    def unverified_elsewhere(self, job: Job) -> list[Trained]:
        """Runs of a job, and witnesses of its family, by other code and with other bits, that kept their first losses:
        they can be renewed up to rounding."""
        if self.wanted.here:
            return []
        family = conditions_of(job.setting).family, job.stack
        key = _key(job.setting)
        runs = self.index.attempts(key, job.stack, job.seed, lambda bits: bits != self.bits)
        witnesses = (witness for witness in self._witnesses_elsewhere.get(family, ()) if witness.conditions.key == key)
        return [run for run in (*runs, *witnesses) if run.first_losses and not self.currency.has(run)]

    def repeats(self) -> list[Job]:
        """Returns the shortest run that can renew each stack's runs by other code."""
        repeats: dict[tuple[str, str], Job] = {}
        for job in self.jobs():
            if codes := {run.code.trajectory for run in (*self.unverified(job), *self.unverified_elsewhere(job))}:
                witnessed = any(self.currency.same(witness, code) for witness in self.witnesses(job) for code in codes)
                shortest = (witnessed and witness_job(job.setting, job.stack)) or job
                repeats.setdefault((conditions_of(job.setting).family, job.stack), shortest)
        return list(repeats.values())

    def witnesses_to_be(self) -> list[Job]:
        """Returns the witnesses that runs with this machine's bits lack."""
        runs = dict.fromkeys(Job(setting=pair.setting, stack=stack) for pair in self.pairs for stack in pair.sides)
        lacking = [job for job in runs if self.learned(job) and not any(map(self.currency.has, self.witnesses(job)))]
        return list(filter(None, (witness_job(job.setting, job.stack) for job in lacking)))

    def witnesses(self, job: Job) -> list[Witness]:
        """Returns the witnesses of the job's family and stack, with this machine's bits."""
        return self._witnesses.get((conditions_of(job.setting).family, job.stack), [])

    @cached_property
    def _witnesses(self) -> Mapping[tuple[str, str], list[Witness]]:
        return self._witnesses_where(lambda bits: bits == self.bits)

    @cached_property
    def _witnesses_elsewhere(self) -> Mapping[tuple[str, str], list[Witness]]:
        return self._witnesses_where(lambda bits: bits != self.bits)

    def _witnesses_where(self, wanted: Callable[[str], bool]) -> Mapping[tuple[str, str], list[Witness]]:
        index: dict[tuple[str, str], list[Witness]] = {}
        for witness in self.index.witnesses:
            if wanted(witness.bits):
                index.setdefault((witness.conditions.family, witness.stack), []).append(witness)
        return index

    def runs(self, job: Job) -> list[Learned]:
        """Returns all runs of a job with this machine's bits."""
        return self.index.attempts(_key(job.setting), job.stack, job.seed, lambda bits: bits == self.bits)

    def learned_pairs(self, pair: Pair) -> list[tuple[Learned, Learned]]:
        """The runs by seed that hold of the reference and of the contender."""
        return [known.sides for known in self._curves(pair).known]

    def _curves(self, pair: Pair) -> LearnedPairs:
        return self.index.learned_pairs(self._at(pair), self._is_tuned(pair))

    def _at(self, pair: Pair) -> PairAt:
        return PairAt(pair.stack, pair.reference, conditions_of(pair.setting), self.machine)

    def _learned_elsewhere(self, pair: Pair) -> bool:
        """Whether the curves that count have other bits, and all seeds that are wanted."""
        curves = self._curves(pair)
        whole = curves.searched and len(curves.known) >= self.wanted.seeds
        return whole and curves.bits != self.bits and not self.wanted.here

    # timed ----------------------------------------------------------------------------------------------------------

    def timings(self) -> list[Timing]:
        """Returns the sets of processes to time, every pair's first one first."""
        missing: list[Timing] = []
        for replicate in range(self.wanted.timings):
            if self.together:
                first, stacks = self.pairs[0], (self.pairs[0].reference, *(pair.stack for pair in self.pairs))
                if not any(timed.replicate == replicate for timed in self._timed_together(first.setting, stacks)):
                    missing.append(Timing(first.setting, stacks, replicate, self._windows(first.setting, stacks)))
                continue
            lacking = [
                pair
                for pair in self.pairs
                if pair.timed and replicate not in {timed.replicate for timed in self.timed(pair)}
            ]
            missing += [
                Timing(group[0].setting, (group[0].reference, *(pair.stack for pair in group)), replicate, windows)
                for windows, group in self._groups(lacking)
            ]
        return missing

    def _groups(self, pairs: Sequence[Pair]) -> list[tuple[int, list[Pair]]]:
        """Returns the pairs in groups that share a set of processes and its windows: of one setting and reference, at
        most MOST_TOGETHER that fit into memory together. On an accelerator each pair has its own."""
        groups: dict[tuple[Setting, str, int], list[list[Pair]]] = {}
        for pair in pairs:
            windows = self._windows(pair.setting, pair.sides)
            open_groups = groups.setdefault((pair.setting, pair.reference, windows), [[]])
            held_bytes = sum(self._peak_bytes(one.setting, one.stack) for one in (*open_groups[-1], pair))
            alike = all(pair.stack != other.stack for other in open_groups[-1])
            if len(open_groups[-1]) == MOST_TOGETHER or held_bytes > TOGETHER_BYTES or not alike:
                open_groups.append([])
            open_groups[-1].append(pair)
        return [(windows, group) for (_, _, windows), own_groups in groups.items() for group in own_groups if group]

    def _peak_bytes(self, setting: Setting, stack: str) -> float:
        """Returns the bytes of the tensors that a stack holds at once; unbounded where that is not known or is an
        accelerator's, and of one that fails, which may take the others of its set with it."""
        counted = self.counted(setting, stack)
        if setting.device != "cpu" or counted is None or counted.status != "ok":
            return math.inf
        return max((point.counters.peak_tensor_bytes * point.counters.ranks for point in counted.points), default=0)

    def timed(self, pair: Pair) -> list[Timed]:
        """Returns the current timings of a pair on this machine, in all parts of a run whose cost changes."""
        return [
            timed
            for timed, index in self.index.timings(self._at(pair), self._windows(pair.setting, pair.sides))
            if timed.windows_of(index) and self.index.holds_between(timed, (0, index))
        ]

    def _timed_together(self, setting: Setting, stacks: Sequence[str]) -> list[Timed]:
        """Returns the current timings of exactly these stacks on this machine."""
        wanted, sides = self._windows(setting, stacks), range(len(stacks))
        of_machine = self.index.timed.get((_key(setting), stacks[0], stacks[1]), {}).get(self.machine, ())
        return [
            timed
            for timed, _ in of_machine
            if tuple(side.stack for side in timed.contenders) == tuple(stacks)
            and timed.windows >= wanted
            and self.index.holds_between(timed, sides)
        ]

    def _windows(self, setting: Setting, stacks: Sequence[str]) -> int:
        return windows_of([self.counted(setting, stack) for stack in stacks])


def measuring_twin(pair: Pair) -> str | None:
    """Returns the stack that has the reference's trajectory and the contender's probes: its technique at zero strength.
    None where no claim on this baseline is about a probe over the reference's."""
    entry = catalogue().get(pair.stack)  # the claims of a card are of its technique alone, as it is
    if entry is None or pair.reference != entry.card.reference:
        return None
    at = pair.setting.baseline
    asked = [claim for claim in entry.card.judged if at in (claim.baselines or entry.card.baselines)]
    if not any(claim.metric.startswith(PROBE_RATIO) for claim in asked):
        return None
    zero = entry.technique.zero_strength
    return join([(entry.id, {name: str(value) for name, value in zero.items()})]) if zero else None


def ruler_jobs(setting: Setting, seed: int) -> list[Job]:
    """Returns the reference's runs of a seed at all budgets of its scaling curve."""
    own = conditions_of(setting).steps
    budgets = [setting.but(steps=setting.steps if share == 1 else steps_at(share, own)) for share in BUDGETS]
    return [Job(setting=budget, stack=BASELINE, seed=seed) for budget in budgets]


def witness_job(setting: Setting, stack: str) -> Job | None:
    """Returns the run that bears witness for the stack's runs in the setting's family; None where they are short
    themselves."""
    own = conditions_of(setting.but(steps=None)).steps
    if own < WITNESSED_STEPS:
        return None
    return Job(setting=setting.but(steps=round(WITNESS_SHARE * own), rate=1.0), stack=stack)


def _key(setting: Setting) -> str:
    return conditions_of(setting).key
