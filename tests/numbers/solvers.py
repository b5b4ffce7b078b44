"""Seconds that every solver takes for a deep chain: ``python -m tests.numbers.solvers [--blocks 48]``.

The chain is the baseline's, profiled without values, with its last block repeated; budgets are shares of the way from
the least peak to a plain pass's. Where a solver has no schedule for a budget, its cell says so.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

from rich.console import Console
from rich.table import Table

from suite.chain.plan import budget_between
from suite.entries.installed import baselines
from suite.measure.at_scale.full_size import Scale
from suite.record.job import SIZES, Setting
from suite.topics.memory_plan.within_budgets import Device, profile_at, solved, solvers

SHARES = (0.1, 0.5)
DEVICE = Device(flops_per_s=5e14, link_bytes_per_s=25e9)
WITHIN_S = 5.0


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.numbers.solvers", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--blocks", type=int, default=48)
    parser.add_argument("--baseline", choices=list(baselines()), default="gpt")
    parser.add_argument("--size", choices=SIZES, default="large")
    chosen = parser.parse_args()
    if chosen.blocks < 1:
        parser.error(f"a chain has one block or more, not {chosen.blocks}")
    setting = Setting(baseline=chosen.baseline, size=chosen.size, device="cuda")
    (chain, *_), *_ = profile_at(Scale(setting), DEVICE)
    stages = (*chain.stages, *[chain.stages[-1]] * chosen.blocks)[: chosen.blocks]
    deep = replace(chain, stages=stages)
    table = Table("solver", *(f"at {share:.0%} of the memory" for share in SHARES), "", box=None, pad_edge=False)
    for name, solver in solvers().items():
        answers = [solved(name, solver, [deep], budget_between([deep], share), DEVICE.link) for share in SHARES]
        seen = [f"{each.solve_s:.2f} s{'' if each.plan else ', no plan'}" for each in answers]
        slow = any(each.solve_s > WITHIN_S for each in answers)
        table.add_row(name, *seen, f"beyond {WITHIN_S:.0f} s" if slow else "")
    Console(width=120, highlight=False).print(table)


if __name__ == "__main__":
    main()
