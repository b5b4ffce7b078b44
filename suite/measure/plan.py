"""What is worth measuring next: every pair of a technique and its reference that its card names, least known first.

A pair that has a record under the same conditions, machine and sources is not measured again; a technique, baseline or
harness that changed makes its records stale, and only those are repeated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from suite.contract.baseline import RecipeName, Size, Task, baselines
from suite.contract.catalogue import catalogue, lookup
from suite.contract.stack import split
from suite.measure.comparison import Comparison, baseline_sha256, canonical, harness_sha256, sources_of
from suite.record.machine import fingerprint
from suite.record.schema import Record

GROUP = 3  # contenders that share one reference run


@dataclass(frozen=True, order=True)
class Pair:
    """A stack against its reference on a baseline; what one row of the leaderboard is about."""

    baseline: str
    recipe: RecipeName
    task: Task
    reference: str
    stack: str


@dataclass(frozen=True)
class Setting:
    """What all pairs of one plan have in common."""

    size: Size = "nano"
    steps: int | None = None
    data: str | None = None
    model: str | None = None
    device: str = "cpu"
    threads: int = 1

    def comparison(self, pairs: Sequence[Pair]) -> Comparison:
        first = pairs[0]
        return Comparison(
            (first.reference, *(pair.stack for pair in pairs)), first.baseline, self.size, first.recipe, first.task,
            self.steps, self.data, self.model, self.device, self.threads,
        )  # fmt: skip


def reference_of(stack: str) -> tuple[str, Task]:
    """The reference and the task that the stack's cards ask for; of several, the one that is not the default."""
    entries = catalogue()
    cards = [lookup("technique", name, entries).card for name, _ in split(stack)]
    reference = next((card.reference for card in cards if card.reference != "baseline"), "baseline")
    task: Task = "adapt" if any(card.task == "adapt" for card in cards) else "pretrain"
    return reference, task


def pairs_of(
    stacks: Iterable[str], on: Iterable[str], recipes: Iterable[RecipeName], task: Task | None = None
) -> list[Pair]:
    """The pairs of these stacks on those of the baselines ``on`` that all their cards name."""
    entries = catalogue()
    wanted = list(on)
    found = []
    for stack in map(canonical, stacks):
        reference, own_task = reference_of(stack)
        cards = [lookup("technique", name, entries).card for name, _ in split(stack)]
        named = [each for each in wanted if all(each in card.baselines for card in cards)]
        found += [
            Pair(baseline, recipe, task or own_task, reference, stack) for baseline in named for recipe in recipes
        ]
    return found


def seeds_done(pairs: Iterable[Pair], setting: Setting, records: Iterable[Record]) -> dict[Pair, set[int]]:
    """The seeds of each pair that have a current record: same conditions, machine and sources."""
    machine = fingerprint(setting.device, setting.threads)
    harness = harness_sha256()
    sources = {name: baseline_sha256(baseline) for name, baseline in baselines().items()}
    current = [
        record
        for record in records
        if record.machine.key == machine.key
        and record.harness_sha256 == harness
        and record.baseline_sha256 == sources.get(record.conditions.baseline)
    ]
    hashes: dict[tuple[str, Task], str] = {}
    done: dict[Pair, set[int]] = {}
    for pair in pairs:
        baseline = lookup("baseline", pair.baseline, baselines())
        kind = (pair.baseline, pair.task)
        if kind not in hashes:
            hashes[kind] = baseline.data(setting.size, pair.task, setting.data).sha256
        expected = {
            "baseline": pair.baseline,
            "baseline_version": baseline.version,
            "size": setting.size,
            "recipe": pair.recipe,
            "task": pair.task,
            "steps": setting.comparison([pair]).base_steps(),
            "model": setting.model,
            "device": setting.device,
            "threads": setting.threads,
        }
        code, reference_code = sources_of(pair.stack), sources_of(pair.reference)
        done[pair] = {
            record.seed
            for record in current
            if (record.reference.stack, record.reference.sources) == (pair.reference, reference_code)
            and any((each.stack, each.sources) == (pair.stack, code) for each in record.contenders[1:])
            and record.conditions.model_dump(exclude={"data", "data_sha256"}) == expected
            and record.conditions.data_sha256 in (hashes[kind], "")
        }
    return done


def holding(records: Iterable[Record], pairs: Iterable[Pair]) -> list[Record]:
    """The records in which the stacks of all pairs were measured together."""
    stacks = {pair.stack for pair in pairs}
    return [record for record in records if stacks <= {each.stack for each in record.contenders[1:]}]


def seeds_done_together(pairs: Iterable[Pair], setting: Setting, records: Iterable[Record]) -> dict[Pair, set[int]]:
    """The same seeds for every pair: those whose current records hold all of them in one comparison."""
    wanted = list(pairs)
    done = seeds_done(wanted, setting, holding(records, wanted))
    common = set.intersection(*done.values())
    return {pair: set(common) for pair in wanted}


def next_group(done: dict[Pair, set[int]], wanted: dict[Pair, int], most: int = GROUP) -> tuple[int, list[Pair]] | None:
    """The seed and the pairs to measure next, or None when every pair has its wanted number of seeds.

    Pairs with the fewest seeds come first; among them those of the stack with the fewest replicates anywhere, then of
    the recipe named first, then of the least used baseline: a short plan sees the whole catalogue once before it sees
    a part of it well. Up to ``most`` pairs that differ only in the stack share a reference run.
    """
    open_pairs = [pair for pair in done if len(done[pair]) < wanted[pair]]
    if not open_pairs:
        return None
    fewest = min(len(done[pair]) for pair in open_pairs)
    of_stack: Counter[str] = Counter()
    of_baseline: Counter[str] = Counter()
    for pair, seeds in done.items():
        of_stack[pair.stack] += len(seeds)
        of_baseline[pair.baseline] += len(seeds)
    recipes = list(dict.fromkeys(pair.recipe for pair in done))
    position = {pair: number for number, pair in enumerate(done)}

    def urgency(pair: Pair) -> tuple[int, ...]:
        return of_stack[pair.stack], recipes.index(pair.recipe), of_baseline[pair.baseline], position[pair]

    def missing(pair: Pair) -> int:
        return next(seed for seed in range(len(done[pair]) + 1) if seed not in done[pair])

    candidates = [pair for pair in open_pairs if len(done[pair]) == fewest]
    first = min(candidates, key=urgency)
    alike = [
        pair
        for pair in candidates
        if (pair.baseline, pair.recipe, pair.task, pair.reference)
        == (first.baseline, first.recipe, first.task, first.reference)
        and missing(pair) == missing(first)
    ]
    return missing(first), sorted(alike, key=urgency)[:most]


def remaining(done: dict[Pair, set[int]], wanted: dict[Pair, int]) -> float:
    """Replicates that are still to do, in contender runs (a group's shared reference counted once)."""
    total = 0.0
    key = lambda pair: (pair.baseline, pair.recipe, pair.task, pair.reference)  # noqa: E731
    for _, group in groupby(sorted(done, key=key), key=key):
        missing = sum(max(0, wanted[pair] - len(done[pair])) for pair in group)
        total += missing + -(-missing // GROUP)
    return total
