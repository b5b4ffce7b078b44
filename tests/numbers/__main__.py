"""The harness's own figures on this machine, against their goals: ``python -m tests.numbers [--comparisons 21]``.

Measurements, not tests: they depend on the machine and on what else it does, so its load is printed with them, and no
test gates on them. A/A comparisons put the baseline against itself through the whole pipeline: the true speedup is 1.
"""

from __future__ import annotations

import argparse
import ast
import math
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table

from suite.contract.baseline import baselines
from suite.contract.catalogue import catalogue, lookup
from suite.judge.rows import replicate_of
from suite.judge.statistics import Interval, combined_interval, false_alarm_interval, median_interval
from suite.measure.comparison import Comparison, Procedure, train_in_lock_step
from suite.measure.contender import Contender, Limits
from suite.measure.worker import Session
from suite.record.job import BASELINE, Setting
from suite.record.machine import fingerprint, fitness
from suite.record.schema import Record

PAIRS = 7
SEEDS = 3  # of a row of the board
WITHIN = 0.03
METERED_STEPS, METERED_ROUNDS = 2, 40
BRIEF = Limits(train_s=60)
BARE = Procedure(finish=False, equal_time=False)
Figure = tuple[str, str, str, bool]
"""Its name, what was measured, the goal, whether it was reached."""


def start_up_s(comparison: Comparison) -> list[float]:
    """Seconds from asking for a pair of contenders to both set up, of PAIRS pairs after one that warmed the server."""
    taken = []
    for number in range(PAIRS + 1):
        start_s = time.perf_counter()
        pair = [Contender(comparison.job(BASELINE, number), limits=BRIEF) for _ in range(2)]
        try:
            for contender in pair:
                contender.start()
            for contender in pair:
                contender.prepare()
            for contender in pair:
                contender.set_up()
            taken.append(time.perf_counter() - start_s)
        finally:
            for contender in pair:
                contender.close()
    return taken[1:]


def metered(comparison: Comparison) -> Interval:
    """A contender's timed block over the bare training loop of the same steps, both of one run, in ABBA order."""
    session = Session(comparison.job(BASELINE, 0), rank=0, world_size=1, rendezvous="")
    session.prepare()
    session.set_up()

    def seconds(steps_of: Callable[[int], object]) -> float:
        start_s = time.perf_counter()
        steps_of(METERED_STEPS)
        return time.perf_counter() - start_s

    block, bare = session.block, session.run.train
    seconds(bare)
    log_ratios = []
    for _ in range(METERED_ROUNDS):
        first, second, third, fourth = map(seconds, (block, bare, bare, block))
        log_ratios.append(math.log((first + fourth) / (second + third)))
    return median_interval(log_ratios).ratio()


def comparisons(comparison: Comparison, count: int) -> list[tuple[Record, float]]:
    """A/A records, one a seed, each with the seconds that it took in all."""
    timed = []
    for seed in range(count):
        start_s = time.perf_counter()
        record = train_in_lock_step(comparison, seed, BARE)
        timed.append((record, time.perf_counter() - start_s))
    return timed


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


def figures(comparison: Comparison, count: int) -> list[Figure]:
    """All of them, from ``count`` A/A comparisons."""
    ready_s = start_up_s(comparison)
    median_s = statistics.median(ready_s)
    spread = f"{min(ready_s):.2f} to {max(ready_s):.2f} s, {PAIRS} pairs"
    table: list[Figure] = [
        ("a pair ready, after the first", f"{median_s:.2f} s ({spread})", "≤ 0.30 s", median_s <= 0.3)
    ]

    timed = comparisons(comparison, count)
    failed = [each.reason for record, _ in timed for each in record.contenders if each.status != "ok"]
    if failed:
        raise SystemExit(f"{len(failed)} contenders failed, the first: {failed[0]}")
    records = [record for record, _ in timed]
    computed_s = sum(sum(block) for record in records for each in record.contenders for block in each.block_s)
    share = sum(record.harness_s for record in records) / computed_s
    table.append(("harness between blocks", f"{share:.2%} of block time", "≤ 2 %", share <= 0.02))

    cost = metered(comparison)
    measured = (
        f"{cost.estimate - 1:+.2%} ({cost.low - 1:+.2%} to {cost.high - 1:+.2%}); counters: one extra step, untimed"
    )
    table.append(("meters in timed blocks", measured, "≤ 1 %", cost.estimate <= 1.01))

    taken_s = sorted(seconds for _, seconds in timed)
    slowest = taken_s[min(len(taken_s) - 1, int(0.9 * len(taken_s)))]
    measured = f"{statistics.median(taken_s):.1f} s, 90 % within {slowest:.1f} s"
    table.append(("an A/A comparison", measured, "≤ 10 s", statistics.median(taken_s) <= 10))

    ratios = [replicate_of(record, 1).step_log_ratios for record in records]
    speedups = [median_interval(each).speedup() for each in ratios]
    close = sum(abs(each.estimate - 1) <= WITHIN for each in speedups)
    exact = false_alarm_interval(close, count)
    worst = max(abs(each.estimate - 1) for each in speedups)
    measured = f"{close} of {count} ({exact.low:.0%} to {exact.high:.0%}; worst {worst:.1%})"
    table.append(("A/A speedups within ±3 %", measured, "≥ 95 %", close >= 0.95 * count))
    triples = [ratios[first : first + SEEDS] for first in range(0, count - SEEDS + 1, SEEDS)]
    alarms = sum(not combined_interval(each).speedup().contains(1.0) for each in triples)
    exact = false_alarm_interval(alarms, len(triples))
    measured = f"{alarms} of {len(triples)} ({exact.low:.0%} to {exact.high:.0%})"
    table.append((f"false alarms at 95 %, {SEEDS} seeds", measured, "covers 5 %", exact.contains(0.05)))
    alone = sum(not each.contains(1.0) for each in speedups)
    measured = f"{alone} of {count}: why the board marks such an interval (°)"
    table.append(("the same from one seed's rounds", measured, "none", True))

    lines = {name: code_lines(entry.folder / "technique.py") for name, entry in catalogue().items()}
    simplest = min(lines, key=lambda name: lines[name])
    table.append(
        ("the simplest technique", f"{lines[simplest]} lines of code ({simplest})", "≤ 30", lines[simplest] <= 30)
    )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.numbers", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--comparisons", type=int, default=21, help=f"A/A comparisons, {SEEDS} or more [21]")
    parser.add_argument("--baseline", default="gpt", help="[gpt]")
    parser.add_argument("--steps", type=int, default=80, help="training steps of each side [80]")
    parser.add_argument("--rounds", type=int, default=20, help="paired rounds of each comparison [20]")
    parser.add_argument("--threads", type=int, default=1, help="of a contender [1]")
    chosen = parser.parse_args()
    if chosen.comparisons < SEEDS:
        parser.error(f"--comparisons: {SEEDS} or more are needed for an interval over seeds")
    lookup("baseline", chosen.baseline, baselines())
    console = Console(width=120, highlight=False)
    setting = Setting(baseline=chosen.baseline, steps=chosen.steps, threads=chosen.threads)
    comparison = Comparison(setting, (BASELINE, BASELINE), chosen.rounds)
    before, warnings = os.getloadavg(), fitness("cpu")
    table = Table("figure", "measured", "goal", "reached", box=None, pad_edge=False)
    for figure, measured, goal, reached in figures(comparison, chosen.comparisons):
        table.add_row(figure, measured, goal, "" if goal == "none" else "yes" if reached else "NO")
    machine = fingerprint("cpu", chosen.threads).name
    console.print(f"{machine}: {setting.baseline} {setting.size}, {chosen.steps} steps, "
                  f"{chosen.rounds} rounds, {chosen.threads} threads")  # fmt: skip
    console.print(table)
    loads = " -> ".join(f"{load:.2f}" for load in (before[0], os.getloadavg()[0]))
    console.print(
        f"load average (1 min) before -> after: {loads} on {os.cpu_count()} cores; two contenders take turns: 1 to 2"
    )
    for warning in warnings:
        console.print(f"disturbed: {warning}")


if __name__ == "__main__":
    main()
