"""What is worth measuring next: every pair of a technique and its reference that its card names, least known first.

A pair that has a record under the same conditions, machine and sources is not measured again; a technique, baseline or
harness that changed makes its records stale, and only those are repeated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from suite.contract.baseline import baseline_of
from suite.contract.catalogue import catalogue, lookup
from suite.contract.sources import current_sources, sources_of
from suite.contract.stack import build
from suite.measure.comparison import Comparison, reference_steps
from suite.record.job import BASELINE, RecipeName, Setting, Task, canonical, parts_of, techniques_of
from suite.record.machine import fingerprint
from suite.record.schema import Record

GROUP = 3  # contenders that share one reference run


@dataclass(frozen=True)
class Pair:
    """A stack against its reference under one setting; what one row of the leaderboard is about."""

    setting: Setting
    stack: str
    reference: str = BASELINE


def reference_of(stack: str) -> tuple[str, Task]:
    """The reference and the task that the stack's cards ask for; of several, the one that is not the default."""
    entries = catalogue()
    cards = [lookup("technique", name, entries).card for name in techniques_of(stack)]
    reference = next((card.reference for card in cards if card.reference != BASELINE), BASELINE)
    task: Task = "adapt" if any(card.task == "adapt" for card in cards) else "pretrain"
    return reference, task


def pair_of(setting: Setting, stack: str, against: str | None = None, task: Task | None = None) -> Pair:
    """The stack against ``against``, in ``task``; what its cards ask for where these are None."""
    reference, own_task = reference_of(stack)
    return Pair(setting.but(task=task or own_task), canonical(stack), canonical(against) if against else reference)


def pairs_of(
    stacks: Iterable[str],
    on: Iterable[str],
    recipes: Iterable[RecipeName],
    setting: Setting,
    task: Task | None = None,
) -> list[Pair]:
    """The pairs of these stacks on those of the baselines ``on`` that all their cards name; all else as ``setting``."""
    entries = catalogue()
    wanted, ways = list(on), list(recipes)
    return [
        pair_of(setting.but(baseline=baseline, recipe=recipe), stack, task=task)
        for stack in map(canonical, stacks)
        for baseline in wanted
        if all(baseline in lookup("technique", name, entries).card.baselines for name in techniques_of(stack))
        for recipe in ways
    ]


def pairs_of_stack(setting: Setting, stack: str, against: str | None = None, task: Task | None = None) -> list[Pair]:
    """The pairs to measure together: every part of ``stack``, then the whole, all against one reference.

    Raises UnknownId, StackError, or ValueError where the parts' cards name no common reference or task.
    """
    build(stack), build(against or BASELINE)
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


def comparison_of(pairs: Sequence[Pair]) -> Comparison:
    """The comparison that measures these pairs together: they differ in the stack alone."""
    return Comparison(pairs[0].setting, (pairs[0].reference, *(pair.stack for pair in pairs)))


def seeds_done(pairs: Iterable[Pair], records: Iterable[Record]) -> dict[Pair, set[int]]:
    """The seeds of each pair that have a current record: same conditions, machine and sources."""
    now = current_sources()
    known = [record for record in records if record.harness_sha256 == now.harness_sha256]
    hashes: dict[Setting, str] = {}
    done: dict[Pair, set[int]] = {}
    for pair in pairs:
        setting = pair.setting
        baseline, machine = baseline_of(setting), fingerprint(setting.device, setting.threads)
        if setting not in hashes:
            hashes[setting] = baseline.data(setting.size, setting.task, setting.data).sha256
        expected = setting.model_dump(exclude={"data"}) | {
            "baseline_version": baseline.version, "steps": reference_steps(setting),
        }  # fmt: skip
        code, reference_code = sources_of(pair.stack), sources_of(pair.reference)
        done[pair] = {
            record.seed
            for record in known
            if record.machine.key == machine.key
            and record.baseline_sha256 == now.baselines.get(setting.baseline)
            and (record.reference.stack, record.reference.sources) == (pair.reference, reference_code)
            and any((each.stack, each.sources) == (pair.stack, code) for each in record.contenders[1:])
            and record.conditions.model_dump(exclude={"data", "data_sha256"}) == expected
            and record.conditions.data_sha256 in (hashes[setting], "")
        }
    return done


def holding(records: Iterable[Record], pairs: Iterable[Pair]) -> list[Record]:
    """The records in which the stacks of all pairs were measured together."""
    stacks = {pair.stack for pair in pairs}
    return [record for record in records if stacks <= {each.stack for each in record.contenders[1:]}]


def seeds_done_together(pairs: Iterable[Pair], records: Iterable[Record]) -> dict[Pair, set[int]]:
    """The same seeds for every pair: those whose current records hold all of them in one comparison."""
    wanted = list(pairs)
    done = seeds_done(wanted, holding(records, wanted))
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
        of_baseline[pair.setting.baseline] += len(seeds)
    recipes = list(dict.fromkeys(pair.setting.recipe for pair in done))
    position = {pair: number for number, pair in enumerate(done)}

    def urgency(pair: Pair) -> tuple[int, ...]:
        at = pair.setting
        return of_stack[pair.stack], recipes.index(at.recipe), of_baseline[at.baseline], position[pair]

    def missing(pair: Pair) -> int:
        return next(seed for seed in range(len(done[pair]) + 1) if seed not in done[pair])

    candidates = [pair for pair in open_pairs if len(done[pair]) == fewest]
    first = min(candidates, key=urgency)
    alike = [
        pair
        for pair in candidates
        if (pair.setting, pair.reference) == (first.setting, first.reference) and missing(pair) == missing(first)
    ]
    return missing(first), sorted(alike, key=urgency)[:most]


def remaining(done: dict[Pair, set[int]], wanted: dict[Pair, int]) -> float:
    """Replicates that are still to do, in contender runs (a group's shared reference counted once)."""
    together: dict[tuple[Setting, str], int] = Counter()
    for pair in done:
        together[pair.setting, pair.reference] += max(0, wanted[pair] - len(done[pair]))
    return float(sum(missing + -(-missing // GROUP) for missing in together.values()))
