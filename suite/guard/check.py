"""Implements ``leantrain check``: the working tree against a stored reference, or another revision checked out beside
it."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from suite.entries.catalogue import lookup
from suite.entries.setting import chosen
from suite.guard import speed
from suite.guard.confinement import exposed
from suite.guard.findings import Finding
from suite.guard.regression import CountedJob, Reference, compare, count, here, item_of, jobs_of, load, reference
from suite.guard.trees import PASSED, RevisionError, TreeWorker, checked_out, is_revision, top_of
from suite.guard.votes import FALSE_ALARMS, SLOWER, Rule
from suite.measure.provenance import Progress, silent
from suite.process.child import ContenderFailed
from suite.record.job import BASELINE, RECIPES, SIZES, Job, RecipeName, Size, Spelling
from suite.record.machine import fingerprint
from suite.record.numerics import NATIVE

MOST_AT_ONCE = 4  # contenders that count side by side: each holds a model and torch


@dataclass(frozen=True)
class Selection:
    """Says what is checked, where empty means all, and of which size, on which device."""

    stacks: tuple[str, ...] = ()
    on: tuple[str, ...] = ()
    recipes: tuple[RecipeName, ...] = ("modern",)
    size: Size = "nano"
    device: str = "cpu"
    threads: int = 1

    @classmethod
    def of(
        cls, stacks: Sequence[str], on: Sequence[str], recipes: Sequence[str], size: str, device: str, threads: int
    ) -> Selection:
        """Makes one of names. Raises UnknownId for a recipe or a size that does not exist."""
        known = tuple(chosen("recipe", name, RECIPES) for name in recipes)
        return cls(tuple(stacks), tuple(on), known, chosen("size", size, SIZES), device, threads)

    def jobs(self, offer: dict[str, Any]) -> list[Job]:
        """Returns the selected jobs that a tree offers."""
        return jobs_of(
            offer, self.stacks, self.on, self.recipes, size=self.size, device=self.device, threads=self.threads
        )

    def has(self, job: Job) -> bool:
        """Tells whether the job's item is selected; it may have another size or device."""
        return (
            (not self.stacks or job.stack in (BASELINE, *self.stacks))
            and (not self.on or job.setting.baseline in self.on)
            and job.setting.recipe in self.recipes
        )

    def must_exist(self, *offers: dict[str, Any]) -> None:
        """Raises UnknownId for a name that no tree has, StackError for a malformed stack."""
        techniques = {name: True for offer in offers for name in offer["techniques"]}
        baselines = {name: True for offer in offers for name in offer["baselines"]}
        for stack in self.stacks:
            for name in Spelling(stack).names:
                lookup("technique", name, techniques)
        for name in self.on:
            lookup("baseline", name, baselines)


@dataclass(frozen=True)
class SpeedBudget:
    """Which slow-down of a step the speed gate must notice, a fraction, and the minutes that all items may take."""

    slower: float = SLOWER
    minutes: float = speed.MINUTES


def counted(selection: Selection, progress: Progress) -> Reference:
    """Returns the selected jobs' exact numbers, with the code that this process has."""
    offer = here("hello")
    selection.must_exist(offer)
    here_portable = partial(here, numerics=offer["numerics"])
    at_once = min(MOST_AT_ONCE, os.cpu_count() or 1) if selection.device == "cpu" else 1
    return _reference(selection, _counts(selection.jobs(offer), here_portable, progress, at_once))


def is_reference(name: str, top: Path = Path()) -> bool:
    """Tells whether ``name`` is a file of a saved reference and no revision. A file that is called as a revision is is
    none: what a pull request adds must not choose what it is compared with."""
    path = Path(name)
    named_as_file = len(path.parts) > 1 or bool(path.suffix) or name.startswith("./")
    return named_as_file and (top / path).is_file() and not is_revision(name, top)


def against(
    reference: str,
    selection: Selection,
    timing: SpeedBudget | None,
    progress: Progress,
    warn: Callable[[str], None],
) -> list[Finding]:
    """Returns the findings of the working tree against ``reference``, a file of one or else a git revision, whose code
    is then run: ``warn`` hears which secrets it could read. Raises BadReference or RevisionError."""
    if is_reference(reference):
        return against_file(Path(reference), selection, progress)
    if names := exposed(PASSED):
        warn(
            f"on this system the code of both trees can read {', '.join(names)} in this process's environment: run "
            "check where no secret is"
        )
    return against_revision(reference, top_of(Path()), selection, timing, progress)


def against_file(path: Path, selection: Selection, progress: Progress) -> list[Finding]:
    """Returns the findings of the working tree against the reference at ``path``, by exact numbers. Raises
    BadReference."""
    old = load(path)  # before minutes are spent
    selected = old.model_copy(update={"jobs": [job for job in old.jobs if selection.has(job.job)]})
    return [*compare(selected, counted(selection, progress)), _unchecked("a file has no code to time; name a revision")]


def _unchecked(why: str) -> Finding:
    return Finding("speed", "timing", "not checked", why)


def against_revision(
    revision: str, top: Path, selection: Selection, timing: SpeedBudget | None, progress: Progress
) -> list[Finding]:
    """Returns the findings of the working tree at ``top`` against ``revision``: exact ones, and with ``timing`` those
    of speed.

    Both trees count at the same time, and are timed in turns. An item that does not run in both is not timed. Raises
    RevisionError.
    """
    with checked_out(revision, top) as tree:
        exact = exact_against(tree, revision, top, selection, progress, timing is not None)
        if timing is None:
            return [*exact.findings, _unchecked("ask for it with --speed")]
        equal = [Finding(item_of(job), "timing", "equal", SAME_CODE) for job in exact.of_equal_code]
        return [*exact.findings, *equal, *_compared(tree, top, exact.changed, timing, progress)]


@dataclass(frozen=True)
class ExactComparison:
    """Holds the exact findings of two trees, and the jobs that run in both, by whether their code is the same: where
    that was not asked, all are ``changed``."""

    findings: list[Finding]
    changed: list[Job]
    of_equal_code: list[Job]


def exact_against(
    tree: Path, revision: str, top: Path, selection: Selection, progress: Progress, hashed: bool
) -> ExactComparison:
    """Compares the working tree at ``top`` with the revision's, which lies at ``tree``, by exact numbers; ``hashed``:
    and by the code that their jobs reach. The workers that counted are gone when it returns, and their memory with
    them."""
    with ExitStack() as stack:
        old, new = stack.enter_context(TreeWorker(tree)), stack.enter_context(TreeWorker(top))
        with ThreadPoolExecutor(2) as pool:
            old_offer, new_offer = pool.map(_offer, (old, new), (f"revision {revision}", "the working tree"))
            selection.must_exist(old_offer, new_offer)
            numerics = new_offer["numerics"] if old_offer.get("numerics") else NATIVE  # both sides have the same
            before = pool.submit(_counts, selection.jobs(old_offer), partial(old.ask, numerics=numerics), silent)
            after = pool.submit(_counts, selection.jobs(new_offer), partial(new.ask, numerics=numerics), progress)
        findings = compare(_reference(selection, before.result()), _reference(selection, after.result()))
        run = {item_of(counted_job.job) for counted_job in before.result() if counted_job.status == "ok"}
        both = [
            counted_job.job
            for counted_job in after.result()
            if counted_job.status == "ok" and item_of(counted_job.job) in run
        ]
        same = {item_of(job): hashed and _same_code(old, new, job) for job in both}
    by_code = {is_same: [job for job in both if same[item_of(job)] == is_same] for is_same in (True, False)}
    return ExactComparison(findings, by_code[False], by_code[True])


SAME_CODE = "not timed: the code that its run reaches is that of the revision"


def _same_code(old: TreeWorker, new: TreeWorker, job: Job) -> bool:
    """Tells whether a run of the job reaches equal code in both trees, as far as hashes of its definitions tell."""
    try:
        code, other = (worker.ask("code", job=job.model_dump()) for worker in (old, new))
    except ContenderFailed:  # a tree that is older than these hashes
        return False
    return bool(code == other)


def _compared(tree: Path, top: Path, jobs: Sequence[Job], budget: SpeedBudget, progress: Progress) -> list[Finding]:
    """What the speed gate says of the jobs, at a rate of false alarms that all of them share."""
    if not jobs:
        return []
    coin = random.Random()
    rule = Rule(budget.slower, FALSE_ALARMS / len(jobs))
    fresh = partial(speed.session, tree, top, coin)
    items = speed.time_sets(fresh, jobs, rule, minutes=budget.minutes, coin=coin, progress=progress)
    return [speed.finding(item, rule, budget.minutes) for item in items]


def _offer(worker: TreeWorker, title: str) -> dict[str, Any]:
    """Returns what the worker's tree offers. Raises RevisionError where it is too old, and where no code of the tree
    would run: both sides would be the same installed code."""
    try:
        offer: dict[str, Any] = worker.ask("hello")
    except ContenderFailed as failure:
        if failure.status != "unavailable":
            raise
        raise RevisionError(f"{title}: {failure}; compare with a later revision") from None
    tree = worker.tree
    folders = [offer["suite"], *(technique["folder"] for technique in offer["techniques"].values())]
    if not any(Path(folder).resolve().is_relative_to(tree.resolve()) for folder in folders):
        raise RevisionError(
            f"nothing that {tree.name} holds is loaded from it: neither leantrain nor a package of its entry-point "
            f"group leantrain.techniques lies at its top or in src/"
        )
    return offer


def _counts(jobs: Sequence[Job], ask: Callable[..., Any], progress: Progress, at_once: int = 1) -> list[CountedJob]:
    """Returns the jobs' numbers, ``at_once`` of them at a time: counts do not depend on what else the machine does."""
    done = []
    pool = ThreadPoolExecutor(at_once)
    try:
        for number, counted_job in enumerate(pool.map(lambda job: count(job, ask), jobs), 1):
            done.append(counted_job)
            progress(number / len(jobs), f"counted {item_of(counted_job.job)}")
    finally:
        pool.shutdown(cancel_futures=True)  # Ctrl-C waits for what is counted now, not for the rest
    return done


def _reference(selection: Selection, jobs: Sequence[CountedJob]) -> Reference:
    return reference(fingerprint(selection.device, selection.threads), jobs)
