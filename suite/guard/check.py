"""``leantrain check``: the working tree against a stored reference, or another revision checked out beside it."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from suite.contract.catalogue import lookup
from suite.guard.calibration import Uncalibrated, stored
from suite.guard.gate import ALPHA, BUDGET_S, MARGIN, GateFailed, finding, gate
from suite.guard.regression import (
    Count,
    Finding,
    Item,
    Reference,
    Setting,
    Verdict,
    compare,
    count,
    here,
    items_of,
    load,
    reference,
)
from suite.guard.trees import RevisionError, Side, checked_out
from suite.measure.comparison import Progress
from suite.record.job import split
from suite.record.machine import fingerprint

MOST_AT_ONCE = 4  # contenders that count side by side: each holds a model and torch


@dataclass(frozen=True)
class Selection:
    """What is checked; empty means all."""

    stacks: tuple[str, ...] = ()
    on: tuple[str, ...] = ()
    recipes: tuple[str, ...] = ("modern",)

    def items(self, offer: dict[str, Any]) -> list[Item]:
        return items_of(offer, self.stacks, self.on, self.recipes)

    def has(self, item: Item) -> bool:
        return (
            (not self.stacks or item.stack in ("baseline", *self.stacks))
            and (not self.on or item.baseline in self.on)
            and item.recipe in self.recipes
        )

    def must_exist(self, *offers: dict[str, Any]) -> None:
        """Raises UnknownId for a name that no tree has, StackError for a malformed stack."""
        techniques = {name: True for offer in offers for name in offer["techniques"]}
        baselines = {name: True for offer in offers for name in offer["baselines"]}
        for stack in self.stacks:
            for name, _ in split(stack):
                lookup("technique", name, techniques)
        for name in self.on:
            lookup("baseline", name, baselines)


def counted(selection: Selection, setting: Setting, progress: Progress) -> Reference:
    """The selected items' exact numbers, with the code that this process has."""
    offer = here("hello")
    selection.must_exist(offer)
    at_once = min(MOST_AT_ONCE, os.cpu_count() or 1) if setting.device == "cpu" else 1
    return _reference(setting, _counts(selection.items(offer), setting, here, progress, at_once))


def against_file(path: Path, selection: Selection, setting: Setting, progress: Progress) -> list[Finding]:
    """Findings of the exact tier. Raises BadReference."""
    old = load(path)  # before minutes are spent
    kept = old.model_copy(update={"counts": [each for each in old.counts if selection.has(each.item)]})
    return compare(kept, counted(selection, setting, progress))


@dataclass(frozen=True)
class Clock:
    """How speed is judged: by which margin, within how many seconds an item."""

    margin: float = MARGIN
    budget_s: float = BUDGET_S


def against_revision(
    revision: str, top: Path, selection: Selection, setting: Setting, clock: Clock | None, progress: Progress
) -> list[Finding]:
    """Findings of the working tree at ``top`` against ``revision``: exact ones, and with a ``clock`` timed ones.

    Both sides count at the same time, and are timed in turns. An item of which one side does not run is not timed.
    """
    with ExitStack() as stack:
        tree = stack.enter_context(checked_out(revision, top))
        old, new = stack.enter_context(Side(tree)), stack.enter_context(Side(top))
        with ThreadPoolExecutor(2) as pool:
            offers = list(pool.map(lambda side: side.ask("hello"), (old, new)))
            for side, offer in zip((old, new), offers, strict=True):
                _must_come_from(side.tree, offer)
            selection.must_exist(*offers)
            jobs = [(selection.items(offer), side) for side, offer in zip((old, new), offers, strict=True)]
            silent: Progress = lambda share, what: None  # noqa: E731
            before, after = pool.map(
                lambda job: _counts(job[0], setting, job[1].ask, progress if job[1] is new else silent), jobs
            )
        findings = compare(_reference(setting, before), _reference(setting, after))
        if clock is not None:
            run = {each.item for each in before if each.status == "ok"}
            both = [each.item for each in after if each.status == "ok" and each.item in run]
            findings += _timed(old, new, both, setting, clock, progress)
        return findings


def _timed(
    old: Side, new: Side, items: list[Item], setting: Setting, clock: Clock, progress: Progress
) -> list[Finding]:
    """One gate an item, at alpha shared by all of them, so that the report as a whole keeps its false-alarm rate."""
    machine = fingerprint(setting.device, setting.threads)
    try:
        stored(machine, margin=clock.margin, budget_s=clock.budget_s)
    except Uncalibrated as refusal:
        return [Finding("speed", "timing", "unfit", str(refusal))]
    coin = random.Random()
    found = []
    for number, item in enumerate(items):

        def told(pairs: int, spent_s: float, number: int = number, item: Item = item) -> None:
            share = min(1.0, spent_s / clock.budget_s)
            progress((number + share) / len(items), f"timing {item} ({pairs} process pairs)")

        try:
            timing = gate(
                old, new, item, setting, coin=coin, margin=clock.margin, alpha=ALPHA / len(items),
                budget_s=clock.budget_s, progress=told,
            )  # fmt: skip
        except GateFailed as failure:
            verdict: Verdict = "failed" if failure.side == "new" else "not comparable"
            found.append(Finding(str(item), "timing", verdict, f"the {failure.side} side {failure.status}: {failure}"))
        else:
            found.append(finding(item, timing, clock.margin))
    return found


def _must_come_from(tree: Path, offer: dict[str, Any]) -> None:
    """Raises RevisionError where no code of the tree would run: both sides would be the same installed code."""
    folders = [offer["suite"], *(each["folder"] for each in offer["techniques"].values())]
    if not any(Path(folder).resolve().is_relative_to(tree.resolve()) for folder in folders):
        raise RevisionError(
            f"nothing that {tree.name} holds is loaded from it: neither leantrain nor a package of its entry-point "
            f"group leantrain.techniques lies at its top or in src/"
        )


def _counts(
    items: Iterable[Item], setting: Setting, ask: Callable[..., Any], progress: Progress, at_once: int = 1
) -> list[Count]:
    """The items' numbers, ``at_once`` of them at a time: counts do not depend on what else the machine does."""
    todo = list(items)
    done = []
    pool = ThreadPoolExecutor(at_once)
    try:
        for number, found in enumerate(pool.map(lambda item: count(item, setting, ask), todo), 1):
            done.append(found)
            progress(number / len(todo), f"counted {found.item}")
    finally:
        pool.shutdown(cancel_futures=True)  # Ctrl-C waits for what is counted now, not for the rest
    return done


def _reference(setting: Setting, counts: list[Count]) -> Reference:
    return reference(fingerprint(setting.device, setting.threads), setting, counts)
