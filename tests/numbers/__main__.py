"""The harness's own figures on this machine, against their goals: ``python -m tests.numbers [--timings 21]``.

Measurements, not tests: they depend on the machine and on what else it does, so its load is printed with them, and no
test gates on them. A/A timings put the baseline against itself through the whole pipeline: the true speedup is 1.
"""

from __future__ import annotations

import argparse
import ast
import math
import os
import statistics
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

from suite.entries.catalogue import catalogue, lookup
from suite.entries.installed import baselines
from suite.judge.known import timed_pair
from suite.judge.statistics import Interval, false_alarm_interval, moderated_interval, pooled_variance
from suite.measure.contenders.contender import Contender, Limits
from suite.measure.contenders.worker import Session
from suite.measure.learning import cores, learn_all
from suite.measure.timing import Protocol, time_together
from suite.record.job import BASELINE, Job, Setting
from suite.record.machine import busy_cores, fingerprint, fitness
from suite.record.schema import Learned, Timed
from tests.numbers.paired import ratio

PAIRS = 7
SETS = 3  # of processes, of a row of the board
WITHIN = 0.03
METERED_STEPS = 2
BRIEF = Limits(train_s=60)
Figure = tuple[str, str, str, bool]
"""Its name, what was measured, the goal, whether it was reached."""


def start_up_s(setting: Setting) -> list[float]:
    """Seconds from asking for a pair of contenders to both set up, of PAIRS pairs after one that warmed the server."""
    taken = []
    for number in range(PAIRS + 1):
        start_s = time.perf_counter()
        pair = [Contender(Job(setting=setting, seed=number), BRIEF) for _ in range(2)]
        try:
            for command in (Contender.start, Contender.prepare, Contender.set_up):
                for contender in pair:
                    command(contender)
            taken.append(time.perf_counter() - start_s)
        finally:
            for contender in pair:
                contender.close()
    return taken[1:]


def metered(setting: Setting) -> Interval:
    """A contender's timed block over the bare training loop of the same steps, both of one run, in ABBA order."""
    session = Session(Job(setting=setting), rank=0, world_size=1, rendezvous="")
    session.prepare()
    session.set_up()

    block, bare = (partial(steps_of, METERED_STEPS) for steps_of in (session.block, session.run.train))
    return ratio(block, bare, time.perf_counter)


def timings(setting: Setting, count: int) -> list[tuple[Timed, float]]:
    """A/A timings, each with the seconds that it took in all."""
    taken = []
    for replicate in range(count):
        start_s = time.perf_counter()
        timed = time_together(setting, (BASELINE, BASELINE), replicate, Protocol(limits=BRIEF))
        taken.append((timed, time.perf_counter() - start_s))
    return taken


def learned_side_by_side(setting: Setting, at_once: int) -> tuple[list[Learned], float]:
    """One run a core and seed, and the seconds that all of them took, ``at_once`` at a time."""
    start_s = time.perf_counter()
    runs = learn_all([Job(setting=setting, seed=seed) for seed in range(cores())], at_once=at_once)
    return [learned for _, learned in runs], time.perf_counter() - start_s


def sound(runs: Sequence[Learned] | Sequence[Timed]) -> None:
    """Ends the program if one failed."""
    ended = [side for each in runs for side in (each.contenders if isinstance(each, Timed) else [each])]
    failed = [each.reason for each in ended if each.status != "ok"]
    if failed:
        raise SystemExit(f"{len(failed)} runs failed, the first: {failed[0]}")


def code_lines(path: Path) -> int:
    """Lines that hold code: no blanks, comments or docstrings."""
    tree = ast.parse(path.read_text("utf-8"))
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    docstrings = {
        id(node.body[0])
        for node in ast.walk(tree)
        if isinstance(node, documented) and ast.get_docstring(node) is not None
    }
    lines: set[int] = set()

    def visit(node: ast.AST) -> None:
        if id(node) in docstrings:
            return
        if isinstance(node, (ast.expr, ast.alias, ast.arg)) or (
            isinstance(node, ast.stmt) and not hasattr(node, "body")
        ):
            lines.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        elif isinstance(node, ast.stmt):
            lines.add(node.lineno)
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(tree)
    return len(lines)


def figures(setting: Setting, count: int) -> list[Figure]:
    """All of them, from ``count`` A/A timings."""
    ready_s = start_up_s(setting)
    median_s = statistics.median(ready_s)
    spread = f"{min(ready_s):.2f} to {max(ready_s):.2f} s, {PAIRS} pairs"
    table: list[Figure] = [
        ("a pair ready, after the first", f"{median_s:.2f} s ({spread})", "≤ 0.30 s", median_s <= 0.3)
    ]
    cost = metered(setting)
    measured = f"{cost.estimate - 1:+.2%} ({cost.low - 1:+.2%} to {cost.high - 1:+.2%})"
    table.append(("the clock of timed blocks", measured, "≤ 1 %", cost.estimate <= 1.01))

    alone, one_by_one_s = learned_side_by_side(setting, 1)
    together, at_once_s = learned_side_by_side(setting, cores())
    sound([*alone, *together])
    cpu_s = statistics.median(each.cpu_s or math.nan for each in alone)
    table.append(("a learned run, training alone", f"{cpu_s:.1f} processor seconds", "≤ 30 s", cpu_s <= 30))
    gain, most = one_by_one_s / at_once_s, cores()
    measured = f"{gain:.2f} times as many runs an hour as one at a time"
    table.append((f"{most} runs at once", measured, f"≥ {0.75 * most:.2g}", gain >= 0.75 * most))
    same = {each.seed: each.trajectory_sha256 for each in alone} == {
        each.seed: each.trajectory_sha256 for each in together
    }
    table.append(("the same runs to the bit", "yes" if same else "no", "yes", same))

    timed = timings(setting, count)
    sound([each for each, _ in timed])
    taken_s = sorted(seconds for _, seconds in timed)
    slowest = taken_s[min(len(taken_s) - 1, int(0.9 * len(taken_s)))]
    measured = f"{statistics.median(taken_s):.1f} s, 90 % within {slowest:.1f} s"
    table.append(("an A/A timing", measured, "≤ 8 s", statistics.median(taken_s) <= 8))

    ratios = [timed_pair(each, 1).training_log_ratio for each, _ in timed]
    close = sum(abs(math.expm1(each)) <= WITHIN for each in ratios)
    exact = false_alarm_interval(close, count)
    worst = max(abs(math.expm1(each)) for each in ratios)
    measured = f"{close} of {count} ({exact.low:.0%} to {exact.high:.0%}; worst {worst:.1%})"
    table.append(("A/A ratios within ±3 %", measured, "≥ 95 %", close >= 0.95 * count))
    triples = [ratios[first : first + SETS] for first in range(0, count - SETS + 1, SETS)]
    prior = pooled_variance(triples)
    intervals = [moderated_interval(each, prior) for each in triples]
    alarms = sum(not each.contains(0.0) for each in intervals)
    exact = false_alarm_interval(alarms, len(triples))
    measured = f"{alarms} of {len(triples)} ({exact.low:.0%} to {exact.high:.0%})"
    table.append((f"false alarms at 95 %, {SETS} sets", measured, "covers 5 %", exact.contains(0.05)))
    half = statistics.median(math.expm1(each.half_width) for each in intervals)
    table.append((f"half of such an interval, {SETS} sets", f"{half:.2%}, median", "none", True))

    lines = {name: code_lines(entry.folder / "technique.py") for name, entry in catalogue().items()}
    simplest = min(lines, key=lambda name: lines[name])
    table.append(
        ("the simplest technique", f"{lines[simplest]} lines of code ({simplest})", "≤ 30", lines[simplest] <= 30)
    )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.numbers", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--timings", type=int, default=21, help=f"A/A timings, {SETS} or more [21]")
    parser.add_argument("--baseline", default="gpt", help="[gpt]")
    parser.add_argument("--size", default="nano", help="[nano]")
    parser.add_argument("--threads", type=int, default=1, help="of a contender [1]")
    chosen = parser.parse_args()
    if chosen.timings < SETS:
        parser.error(f"--timings: {SETS} or more are needed for an interval")
    lookup("baseline", chosen.baseline, baselines())
    console = Console(width=120, highlight=False)
    setting = Setting(baseline=chosen.baseline, size=chosen.size, threads=chosen.threads)
    busy, before, warnings = busy_cores(), os.getloadavg(), fitness("cpu")
    table = Table("figure", "measured", "goal", "reached", box=None, pad_edge=False)
    for figure, measured, goal, reached in figures(setting, chosen.timings):
        table.add_row(figure, measured, goal, "" if goal == "none" else "yes" if reached else "NO")
    machine = fingerprint("cpu", chosen.threads).name
    console.print(f"{machine}: {setting.baseline} {setting.size}, {chosen.threads} threads")
    console.print(table)
    loads = " -> ".join(f"{load:.2f}" for load in (before[0], os.getloadavg()[0]))
    console.print(
        f"load average (1 min) before -> after: {loads} on {os.cpu_count()} cores; others used {busy:.1f} before"
    )
    for warning in warnings:
        console.print(f"disturbed: {warning}")


if __name__ == "__main__":
    main()
