"""What a technique's own methods take of a run: ``python -m tests.numbers.upkeep [--size micro] [stack:baseline ...]``.

CPU seconds, of one thread, in the methods after the gradients and after the step: growth, topology updates, masks. A
short run makes as many growths as a whole one, since they follow the progress, so their seconds are held against a
whole run's; masks and updates every so many steps are held against the steps of the short run.

Then, of techniques that grow, CPU seconds of a step of the model that the run ended with over those of a fresh one of
that size, in ABBA order.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from suite.entries.installed import baseline_of
from suite.entries.jobs import run_of
from suite.entries.spelling import build
from suite.loop.run import Run
from suite.loop.technique import overrides
from suite.record.job import BASELINE, SIZES, Job, Setting
from tests.numbers.paired import entry, step_ratio

BY_PROGRESS = {
    "progressive_stacking": "bert",
    "bert2bert": "bert",
    "compound_grow": "bert",
    "autoprog": "vit",
    "progressive_resolution": "vit",
    "progressive_patch": "vit",
}
EVERY = {
    "rigl": "gpt",
    "set": "gpt",
    "svite:interval=20": "vit",  # as in a whole run, of 2000 steps
    "snip": "gpt",
    "grasp": "gpt",
    "lth_imp": "gpt",
}
METHODS = ("after_backward", "after_step")


def metered(run: Run) -> list[float]:
    """The CPU seconds of the technique's own methods so far, which it goes on to add to."""
    spent = [0.0]
    for technique in run.technique.techniques.values():  # type: ignore[attr-defined]
        for name in METHODS:
            if overrides(technique, name):
                setattr(technique, name, partial(_clocked, spent, getattr(technique, name)))
    return spent


def _clocked(spent: list[float], method: Callable[..., Any], *args: Any) -> Any:
    start_s = time.process_time()
    try:
        return method(*args)
    finally:
        spent[0] += time.process_time() - start_s


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.numbers.upkeep", description=(__doc__ or "").splitlines()[0])
    default = [*(BY_PROGRESS | EVERY).items()]
    parser.add_argument("entries", nargs="*", type=entry, default=default, metavar="stack:baseline")
    parser.add_argument("--size", choices=SIZES, default="micro")
    parser.add_argument("--steps", type=int, default=240)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    table = Table("stack", "on", "own, s", "a step, ms", "of a run", "grown over fresh step", box=None, pad_edge=False)
    console = Console(width=120, highlight=False)
    for stack, baseline in chosen.entries:
        setting = Setting(baseline=baseline, size=chosen.size)
        whole = build(stack).recipe(baseline_of(setting).recipe_of(setting)).steps
        run = run_of(Job(setting=setting.but(steps=chosen.steps), stack=stack))
        steps, spent = run.recipe.steps, metered(run)
        start_s = time.process_time()
        run.train(steps)
        taken_s = time.process_time() - start_s
        step_s = (taken_s - spent[0]) / steps
        grows = stack in BY_PROGRESS
        share = spent[0] / (spent[0] + step_s * (whole if grows else steps))
        beside = ""
        if grows:
            ratio = step_ratio(run, run_of(Job(setting=setting.but(steps=chosen.steps), stack=BASELINE)))
            beside = f"{ratio.estimate:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]"
        line = (stack, baseline, f"{spent[0]:.3f}", f"{1e3 * step_s:.1f}", f"{share:.2%}", beside)
        console.print("  ".join(line))
        table.add_row(*line)
    console.print(table)


if __name__ == "__main__":
    main()
