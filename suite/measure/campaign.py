"""Fills a results folder: replicate after replicate, least known pair first, until all is measured or time is up."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from suite.measure.comparison import ROUNDS, Progress, replicate
from suite.measure.plan import GROUP, Pair, Setting, next_group, remaining, seeds_done, seeds_done_together
from suite.record.machine import fingerprint
from suite.record.schema import Record, Store


def measure(
    pairs: Sequence[Pair],
    setting: Setting,
    folder: Path,
    *,
    seeds: int,
    minutes: float,
    limit_s: float = 3600.0,
    hang_s: float = 600.0,
    sequential: bool = False,
    rounds: int | None = None,
    one_comparison: bool = False,
    progress: Progress = lambda share, what: None,
    warn: Callable[[str], None] = lambda text: None,
    stored: Callable[[Record], None] | None = None,
) -> list[Record]:
    """Replicates of the pairs up to ``seeds`` each, appended to ``folder`` as they come; returns the new ones.

    Stops before a replicate that would not end within ``minutes``. What is stored under the same conditions, machine
    and sources is not measured again. With ``one_comparison`` all pairs, which may differ in the stack alone, share one
    reference run, and only records that hold all of them count as stored. ``stored`` gets each record after it was
    appended, while nothing runs. Raises StoreError if the folder cannot be written or another run holds it.
    """
    store = Store(folder)
    machine = fingerprint(setting.device, setting.threads)
    start_s, budget_s = time.monotonic(), 60 * minutes
    made: list[Record] = []
    with store.writing(machine.name):
        records, problems = store.read()
        for problem in problems:
            warn(problem)
        progress(0.0, "preparing data")
        done = (seeds_done_together if one_comparison else seeds_done)(pairs, setting, records)
        wanted = dict.fromkeys(pairs, seeds)
        total = remaining(done, wanted)
        while group := next_group(done, wanted, len(pairs) if one_comparison else GROUP):
            seed, together = group
            left_s = start_s + budget_s - time.monotonic()
            finished = total - remaining(done, wanted)
            if left_s <= 0 or (made and _expected_s(made, len(together)) > left_s):
                warn(f"the budget of {minutes:g} minutes is spent, {finished / total:.0%} done; run it again to go on")
                break
            comparison = replace(setting.comparison(together), rounds=rounds or ROUNDS)
            label = f"{comparison.baseline} {comparison.recipe} seed {seed}: {', '.join(comparison.stacks[1:])}"

            def report(
                share: float, what: str, finished: float = finished, size: int = len(together), label: str = label
            ) -> None:
                spent = min(1.0, (time.monotonic() - start_s) / budget_s)
                progress(max((finished + share * (size + 1)) / total, spent), f"{label} ({what})")

            report(0.0, "starting")
            record = replicate(
                comparison, seed, progress=report, limit_s=min(limit_s, max(left_s, 60.0)), hang_s=hang_s,
                sequential=sequential,
            )  # fmt: skip
            store.append(record)
            made.append(record)
            if stored:
                stored(record)
            for pair in together:
                done[pair].add(seed)
    return made


def _expected_s(made: Sequence[Record], contenders: int) -> float:
    """Seconds that the next replicate may take, judged by the slowest of the latest."""
    return max(record.duration_s / len(record.contenders) for record in made[-8:]) * (contenders + 1)
