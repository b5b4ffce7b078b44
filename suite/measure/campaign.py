"""Fills a results folder: replicate after replicate, least known pair first, until all is measured or time is up."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from suite.measure.comparison import Procedure, Progress, silent, train_in_lock_step
from suite.measure.plan import GROUP, Pair, comparison_of, next_group, remaining, seeds_done, seeds_done_together
from suite.record.machine import fingerprint
from suite.record.schema import Record
from suite.record.store import Store


def measure(
    pairs: Sequence[Pair],
    folder: Path,
    *,
    seeds: int,
    minutes: float,
    procedure: Procedure = Procedure(),  # noqa: B008  it is frozen
    rounds: int | None = None,
    one_comparison: bool = False,
    progress: Progress = silent,
    warn: Callable[[str], None] = lambda text: None,
    stored: Callable[[Record], None] | None = None,
) -> list[Record]:
    """Replicates of the pairs up to ``seeds`` each, appended to ``folder`` as they come; returns the new ones.

    The pairs share a device. Stops before a replicate that would not end within ``minutes``. What is stored under the
    same conditions, machine and sources is not measured again. With ``one_comparison`` all pairs, which may differ in
    the stack alone, share one reference run, and only records that hold all of them count as stored. ``stored`` gets
    each record after it was appended, while nothing runs. Raises StoreError if the folder cannot be written or another
    run holds it.
    """
    store = Store(folder)
    setting = pairs[0].setting
    machine = fingerprint(setting.device, setting.threads)
    start_s, budget_s = time.monotonic(), 60 * minutes
    new: list[Record] = []
    with store.writing(machine.name):
        records, problems = store.read()
        for problem in problems:
            warn(problem)
        progress(0.0, "preparing data")
        done = (seeds_done_together if one_comparison else seeds_done)(pairs, records)
        wanted = dict.fromkeys(pairs, seeds)
        total = remaining(done, wanted)
        while group := next_group(done, wanted, len(pairs) if one_comparison else GROUP):
            seed, together = group
            left_s = start_s + budget_s - time.monotonic()
            finished = total - remaining(done, wanted)
            if left_s <= 0 or (new and _expected_s(new, len(together)) > left_s):
                warn(f"the budget of {minutes:g} minutes is spent, {finished / total:.0%} done; run it again to go on")
                break
            comparison = comparison_of(together)
            if rounds:
                comparison = replace(comparison, rounds=rounds)
            at = comparison.setting
            label = f"{at.baseline} {at.recipe} seed {seed}: {', '.join(comparison.stacks[1:])}"

            def report(
                share: float, what: str, finished: float = finished, size: int = len(together), label: str = label
            ) -> None:
                spent = min(1.0, (time.monotonic() - start_s) / budget_s)
                progress(max((finished + share * (size + 1)) / total, spent), f"{label} ({what})")

            report(0.0, "starting")
            limits = replace(procedure.limits, train_s=min(procedure.limits.train_s, max(left_s, 60.0)))
            record = train_in_lock_step(comparison, seed, replace(procedure, limits=limits), report)
            store.append(record)
            new.append(record)
            if stored:
                stored(record)
            for pair in together:
                done[pair].add(seed)
    return new


def _expected_s(new: Sequence[Record], contenders: int) -> float:
    """Seconds that the next replicate may take, judged by the slowest of the latest."""
    return max(record.duration_s / len(record.contenders) for record in new[-8:]) * (contenders + 1)
