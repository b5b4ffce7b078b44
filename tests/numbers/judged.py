"""How often the interval of ``leantrain judge`` holds the truth: ``python -m tests.numbers.judged [--draws 2000]``.

The references' recorded curves are taken as the truth, and the recorded scatter of seeds at each budget as the noise:
some runs at each of the budgets, and as many of a contender that is worth a known share of its own, are drawn
and judged as if they had been logged. The noise is normal, of the standard deviation that each budget's seeds have.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from suite.judge.ruler import BUDGETS, Ruler, ruler_of, steps_at
from suite.judge.statistics import Floats, false_alarm_interval
from suite.record.schema import Learned
from suite.record.store import Store
from suite.topics.foreign_runs.run_comparison import compared
from suite.topics.foreign_runs.run_of_log import ForeignRun

ROOT = Path(__file__).parents[2]
SEEDS = 3
WORTHS = (0.85, 1.0, 1.2)
GOAL = (0.93, 0.97)
OWN = BUDGETS.index(1.0)


def recorded(results: Path) -> dict[str, Ruler]:
    """The newest curve of each baseline at nano whose every budget has three seeds, at the reference's own rate."""
    runs: dict[tuple[str, int, float], list[Learned]] = {}
    for run in Store(results).read()[0].learned:
        at = run.conditions
        if run.stack == "baseline" and at.size == "nano" and at.recipe == "modern" and at.task == "pretrain":
            runs.setdefault((at.baseline, at.baseline_version, at.rate), []).append(run)
    found: dict[str, Ruler] = {}
    for (baseline, _, rate), own in sorted(runs.items()):
        lengths = {run.conditions.steps for run in own}
        fitting = [steps for steps in lengths if {steps_at(share, steps) for share in BUDGETS} <= lengths]
        for steps in fitting:
            wanted = {steps_at(share, steps) for share in BUDGETS}
            ruler = ruler_of([run for run in own if run.conditions.steps in wanted], steps)
            if ruler and rate == 1.0 and (np.isfinite(ruler.losses).sum(axis=0) >= SEEDS).all():
                found[baseline] = ruler
    return found


def holds(ruler: Ruler, worth: float, draws: int, seeds: int, rng: np.random.Generator) -> int:
    """How many of the intervals hold the truth."""
    noise = np.nanstd(np.log(ruler.losses), axis=0, ddof=1)
    truth = Ruler(ruler.budgets, np.exp(ruler.log_losses))
    at = [*ruler.budgets, ruler.budgets[OWN]]
    means = np.array([*truth.log_losses, truth.log_loss(math.log(worth))])
    spread = np.array([*noise, noise[OWN]])
    held = 0
    for _ in range(draws):
        losses = np.exp(means + spread * rng.standard_normal((seeds, len(at))))
        runs = [[_run(budget, loss) for loss in own] for budget, own in zip(at, losses.T, strict=True)]
        _, (reading,) = compared([run for own in runs[:-1] for run in own], runs[-1])
        held += reading.worth.low <= worth <= reading.worth.high
    return held


def _run(budget: float, loss: float) -> ForeignRun:
    unknown: Floats = np.array([math.nan])
    return ForeignRun("drawn", "", np.array([budget]), np.array([loss]), unknown)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.numbers.judged", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--draws", type=int, default=2000, help="drawn comparisons of each baseline and worth")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="drawn runs of each length and side")
    parser.add_argument("--results", type=Path, default=ROOT / "results")
    asked = parser.parse_args()
    rng = np.random.default_rng(0)
    table = Table(
        "baseline", *(f"worth {worth:g}" for worth in WORTHS), "all", title="share of 95 % intervals that hold"
    )
    total = [0, 0]
    for baseline, ruler in recorded(asked.results).items():
        held = [holds(ruler, worth, asked.draws, asked.seeds, rng) for worth in WORTHS]
        shares = [f"{100 * each / asked.draws:.1f} %" for each in held]
        of_all = sum(held) / asked.draws / len(WORTHS)
        total = [total[0] + sum(held), total[1] + asked.draws * len(WORTHS)]
        table.add_row(baseline, *shares, f"{100 * of_all:.1f} %")
    interval = false_alarm_interval(*total)
    Console(width=100).print(table)
    reached = GOAL[0] <= interval.estimate <= GOAL[1]
    print(
        f"all: {100 * interval.estimate:.1f} % [{100 * interval.low:.1f}, {100 * interval.high:.1f}] of {total[1]}; "
        f"goal {100 * GOAL[0]:g} to {100 * GOAL[1]:g} %: {'reached' if reached else 'missed'}"
    )


if __name__ == "__main__":
    main()
