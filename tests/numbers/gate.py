"""The speed gate on this machine, as busy as it is: ``python -m tests.numbers.gate [--unchanged 50]``.

Real processes of a plug-in whose working tree differs from its revision: one technique does the same by other code, one
has a busy loop of a tenth of each step more. Every run of the gate is one check of one of them, as ``leantrain check
--speed`` makes it. Runs of one batch share sessions of workers, as the items of a check do. ``--into FILE`` keeps the
sets, and goes on with what is there; ``--noise FILE`` writes each run's sets, which the tests replay. ``--replay FILE``
times nothing: it plays the rule in that noise, and says the smallest slow-down that it sees there.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from suite.guard import speed
from suite.guard.votes import FALSE_ALARMS, MISSES, MOST_SETS, Rule, chances
from suite.judge.statistics import false_alarm_interval
from suite.record.job import Job, Setting
from tests import plugin

SLOWER = 0.10
MOST = 40  # sets of a simulated run
BATCH = {"same": 5, "slower": 2}
STEP = """
@contextmanager
def around_step(self, run):
    began_s = time.process_time()
    yield
    spent_s = time.process_time() - began_s
    while time.process_time() - began_s < (1 + {share}) * spent_s:
        pass
"""
OTHER = """
def unused(self):
    return [each for each in range(100) if each % {share} == 0]
"""
Kept = dict[str, Any]
"""A run: what was planted, the sets' log ratios, the seconds of all, the load, and the verdict."""


def trees(folder: Path) -> tuple[Path, Path]:
    """The revision's tree and the working tree."""
    old, new = folder / "old", folder / "new"
    step = "from contextlib import contextmanager\n" + STEP
    plugin.write(old, {name: step.format(share=0) for name in BATCH})
    plugin.write(new, {"same": step.format(share=0) + OTHER.format(share=7), "slower": step.format(share=SLOWER)})
    return old, new


@contextmanager
def without_path(folder: Path) -> Iterator[None]:
    """What workers inherit as their path: the project alone."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = str(plugin.TREE)
    try:
        yield
    finally:
        os.environ.pop("PYTHONPATH") if before is None else os.environ.update(PYTHONPATH=before)


def batch(old: Path, new: Path, names: Sequence[str], size: str, minutes: float) -> list[Kept]:
    """Runs of the gate, one for each of the names."""
    coin, rule = random.Random(), Rule(SLOWER)
    setting = Setting(baseline="gpt", size=size, steps=2)  # type: ignore[arg-type]
    jobs = [Job(setting=setting, stack=name) for name in coin.sample(names, len(names))]
    load = os.getloadavg()[0]
    speed.AT_A_TIME = len(jobs)
    items = speed.time_sets(partial(speed.session, old, new, coin), jobs, rule, minutes=minutes, coin=coin)
    return [
        {
            "planted": each.job.stack,
            "size": size,
            "d": [round(x, 5) for x in each.d],
            "e": [round(x, 5) for x in each.e],
            "seconds": round(each.seconds, 1),
            "load": [load, os.getloadavg()[0]],
            "verdict": (found := speed.finding(each, rule, minutes)).verdict,
            "why": found.why,
        }
        for each in items
    ]


def show(runs: Sequence[Kept]) -> None:
    """Prints how often it was right."""
    table = Table("run of", "runs", "slower", "not slower", "cannot tell", "rate of slower", "95 %", "goal")
    verdicts_of = {
        "unchanged": [each["verdict"] for each in runs if each["planted"] == "same"],
        "slower by a tenth": [each["verdict"] for each in runs if each["planted"] == "slower"],
        "the revision itself": [itself(each["e"]) for each in runs],
    }
    for name, verdicts in verdicts_of.items():
        if not verdicts:
            continue
        goal = f"at least {1 - MISSES:.0%}" if name.startswith("slower") else f"at most {FALSE_ALARMS:.0%}"
        alarms = verdicts.count("regressed")
        rate = false_alarm_interval(alarms, len(verdicts))
        passed = verdicts.count("equivalent") + verdicts.count("improved")
        rest = len(verdicts) - alarms - passed
        cells = (
            name,
            len(verdicts),
            alarms,
            passed,
            rest,
            f"{rate.estimate:.1%}",
            f"{rate.low:.1%} to {rate.high:.1%}",
        )
        table.add_row(*map(str, cells), goal)
    console = Console()
    console.print(table)
    sets = [len(each["d"]) for each in runs]
    loads = [load for each in runs for load in each["load"]]
    console.print(
        f"{os.cpu_count()} cores, load {min(loads):.1f} to {max(loads):.1f}; sets of a run {min(sets)} to {max(sets)}; "
        f"seconds of a run {min(each['seconds'] for each in runs):.0f} to {max(each['seconds'] for each in runs):.0f}"
    )


def itself(pairs: Sequence[float]) -> str:
    """What a gate of the same length says of the A/A pairs, which are noisier than sets."""
    outcomes = {"slower": "regressed", "not slower": "equivalent", "cannot tell": "inconclusive"}
    return outcomes[Rule(SLOWER).outcome(pairs)]


def replayed(
    sets: Sequence[float], rule: Rule, *, slower: float = 0.0, runs: int = 200, most: int = MOST
) -> Counter[str]:
    """How runs of the rule end whose sets are drawn from recorded log ratios, made slower by a share: a simulation,
    with no other account of the noise than what was seen."""
    coin = random.Random(0)
    ends: Counter[str] = Counter()
    for _ in range(runs):
        d: list[float] = []
        while (said := rule.outcome(d)) == "cannot tell" and len(d) < most:
            d.append(coin.choice(sets) + math.log1p(slower))
        ends[said] += 1
    return ends


def smallest_visible(unchanged: Sequence[float], most: int) -> int:
    """The smallest slow-down, in whole per cent, that runs of at most so many sets, drawn from those of unchanged code,
    notice as often as the rule promises where they are asked for it. The chances are exact."""

    def caught(percent: int) -> float:
        rule, slower = Rule(percent / 100), math.log1p(percent / 100)
        return chances(sum(d + slower > rule.half for d in unchanged) / len(unchanged), rule, most).slower

    return next(percent for percent in itertools.count(1) if caught(percent) >= 1 - MISSES)


def show_replayed(unchanged: Sequence[float], planted: Sequence[float]) -> None:
    """Prints the simulated rates: of what was planted, and of shares that are added to the noise of unchanged code."""
    table = Table("--slower", "sets drawn from", "slower", "not slower", "cannot tell")
    rows: list[tuple[float, str, Sequence[float], float]] = [(SLOWER, "what was planted", planted, 0.0)]
    for threshold in (0.05, 0.10, 0.20):
        rows += [(threshold, "unchanged code", unchanged, 0.0), (threshold, "that, slower by it", unchanged, threshold)]
    for threshold, name, sets, slower in rows:
        if sets:
            ends = replayed(sets, Rule(threshold), slower=slower)
            rates = (ends[end] / ends.total() for end in ("slower", "not slower", "cannot tell"))
            table.add_row(f"{threshold:.0%}", f"{name} ({len(sets)})", *(f"{each:.1%}" for each in rates))
    console = Console()
    console.print(table)
    for most in (10, MOST, MOST_SETS) if unchanged else ():
        console.print(
            f"smallest slow-down that {most} sets see in {1 - MISSES:.0%}: {smallest_visible(unchanged, most)}%"
        )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.numbers.gate", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--unchanged", type=int, default=50, help="runs of unchanged code")
    parser.add_argument("--slower", type=int, default=20, help="runs of code that is a tenth slower")
    parser.add_argument("--batch", type=int, default=1, help="times 7 runs that share sessions")
    parser.add_argument("--size", default="pico")
    parser.add_argument("--minutes", type=float, default=25.0, help="begin no batch after these")
    parser.add_argument("--each", type=float, default=20.0, help="minutes that a batch may take")
    parser.add_argument("--into", type=Path, help="keeps the runs, a line of JSON each")
    parser.add_argument("--noise", type=Path, help="writes the sets of each run")
    parser.add_argument("--replay", type=Path, help="plays the rule in the noise of this file, and times nothing")
    chosen = parser.parse_args()
    if chosen.replay:
        recorded = json.loads(chosen.replay.read_text("utf-8"))
        show_replayed(*([d for run in recorded[kind] for d in run] for kind in ("unchanged", "slower")))
        return
    runs: list[Kept] = []
    if chosen.into and chosen.into.exists():
        runs = [json.loads(line) for line in chosen.into.read_text("utf-8").splitlines()]
    wanted = {"same": chosen.unchanged, "slower": chosen.slower}
    end_s = time.monotonic() + 60 * chosen.minutes
    with tempfile.TemporaryDirectory() as folder, without_path(Path(folder)):
        old, new = trees(Path(folder))
        while time.monotonic() < end_s:
            left = {name: count - sum(each["planted"] == name for each in runs) for name, count in wanted.items()}
            names = [
                name for name, count in left.items() for _ in range(min(chosen.batch * BATCH[name], max(0, count)))
            ]
            if not names:
                break
            done = batch(old, new, names, chosen.size, minutes=chosen.each)
            runs += done
            if chosen.into:
                with chosen.into.open("a", encoding="utf-8") as file:
                    file.writelines(json.dumps(each) + "\n" for each in done)
            show(runs)
    unchanged, planted = ([each["d"] for each in runs if each["planted"] == name] for name in BATCH)
    if chosen.noise:
        chosen.noise.write_text(json.dumps({"unchanged": unchanged, "slower": planted}) + "\n", encoding="utf-8")
    show(runs)
    show_replayed([d for run in unchanged for d in run], [d for run in planted for d in run])


if __name__ == "__main__":
    main()
