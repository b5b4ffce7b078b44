"""Times composed of short windows against races of whole runs: ``python -m tests.numbers.races [stack:baseline ...]``.

A leaderboard's time is composed: a set-up, and the pace in the windows of a timing. A race trains both sides from their
set-up to their last step, one after the other and then in the other order, and reads the clock twice. Both say what the
contender's run costs in trainings of the reference; where they differ beyond their own spread, composing is wrong.
Wants an idle machine.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from suite.judge.known import timed_pair
from suite.measure.campaign import Effort, measure
from suite.measure.contenders.contender import Contender
from suite.measure.missing import CampaignPlan, Pair, Wanted, pair_of
from suite.record.job import Job, Setting
from suite.record.machine import busy_cores
from suite.record.store import Store
from tests.numbers.paired import entry

KINDS_OF_COST = {  # one of each kind
    "lion": "gpt",  # another optimizer
    "sam": "bert",  # two passes
    "esam": "gpt",  # a second pass that shrinks
    "progressive_stacking": "gpt",  # a model that grows
    "ckpt_chen_sqrt": "bert",  # recomputation
    "rigl": "vit",  # masks and their updates
    "saf": "vit",  # a memory of the epochs before
    "el2n": "vit",  # a costly set-up
    "layerscale": "mae",  # another model
    "lora": "gpt",  # another task
}
WANTED = Wanted(seeds=1, timings=3, tuned=False, most_seeds=1)


def composed(pair: Pair, folder: Path) -> list[float]:
    """What the contender's run costs in trainings of the reference, as each timing has it."""
    measure([pair], folder, Effort(WANTED, minutes=30))
    plan = CampaignPlan([pair], Store(folder).read()[0], WANTED)
    return [math.exp(timed_pair(each, 1).log_cost) for each in plan.timed(pair.setting, pair.sides)]


def whole_run_s(setting: Setting, stack: str) -> tuple[float, float]:
    """Wall seconds of the set-up and of the training."""
    with Contender(Job(setting=setting, stack=stack)) as contender:
        contender.prepare()
        start_s = time.perf_counter()
        ready = contender.set_up()
        ready_s = time.perf_counter()
        contender.block(ready.steps)
        return ready_s - start_s, time.perf_counter() - ready_s


def raced(pair: Pair) -> list[float]:
    """The same, as two races in opposite orders have it."""
    costs = []
    for order in (pair.sides, pair.sides[::-1]):
        taken_s = {stack: whole_run_s(pair.setting, stack) for stack in order}
        (their_setup_s, their_training_s), own_s = taken_s[pair.reference], taken_s[pair.stack]
        costs.append((sum(own_s) - their_setup_s) / their_training_s)
    return costs


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.numbers.races", description=(__doc__ or "").splitlines()[0])
    default = [*KINDS_OF_COST.items()]
    parser.add_argument("entries", nargs="*", type=entry, default=default, metavar="stack:baseline")
    parser.add_argument("--results", type=Path, default=Path("results"), help="what is known, and gets the timings")
    chosen = parser.parse_args()
    console = Console(width=120, highlight=False)
    if (busy := busy_cores()) > 0.5:
        console.print(f"disturbed: others use {busy:.1f} cores")
    table = Table("stack", "on", "composed, each timing", "raced, each race", "apart", box=None, pad_edge=False)
    for stack, baseline in chosen.entries:
        pair = pair_of(Setting(baseline=baseline, size="nano"), stack)
        costs, races = composed(pair, chosen.results), raced(pair)
        apart = statistics.mean(costs) / statistics.mean(races) - 1
        listed = (" ".join(f"×{each:.3f}" for each in values) for values in (costs, races))
        table.add_row(stack, baseline, *listed, f"{apart:+.1%}")
        console.print(f"{stack} on {baseline}: {apart:+.1%}")
    console.print(table)


if __name__ == "__main__":
    main()
