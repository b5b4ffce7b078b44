"""FLOPs of whole runs as records hold them, against the sum over every step: ``python -m tests.numbers.whole_runs``.

What a learned run stores counts its set-up whole, and one step of each stratum, drawn by chance
(:mod:`suite.meters.whole_run`). Here every operator of the same run is counted as well, which takes half as long again.
Beside both stands what the run cost over its reference's, set-up and search included: what a schedule saves, and what
a search or further trainings cost.
"""

from __future__ import annotations

import argparse

import torch
from rich.console import Console
from rich.table import Table

from suite.entries.catalogue import reference_of
from suite.entries.jobs import run_of
from suite.meters.whole_run import FlopTally
from suite.record.job import SIZES, Job, Setting
from tests.numbers.paired import entry

ENTRIES = {
    "autoprog": "vit",
    "progressive_patch": "vit",
    "compound_grow": "bert",
    "progressive_stacking": "bert",
    "bert2bert": "gpt",
    "pld": "bert",
    "early_bird": "bert",
    "earlybert": "bert",
    "lth_imp": "gpt",
    "el2n": "vit",
    "is_gradnorm": "vit",
    "sam": "gpt",
    "ckpt_chen_sqrt": "gpt",
}
WITHIN = 0.01


def flops_of(job: Job) -> tuple[int, int]:
    """Every operator of the run, and what its record would say of that."""
    whole, tally = FlopTally(job.seed), FlopTally(job.seed)
    with whole.counting():
        with tally.counting():
            run = run_of(job)
        tally.train(run.train, run.recipe.steps)
    return whole.total, tally.total


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.numbers.whole_runs", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("entries", nargs="*", type=entry, default=[*ENTRIES.items()], metavar="stack:baseline")
    parser.add_argument("--size", choices=SIZES, default="nano")
    parser.add_argument("--steps", type=int, help="of the reference; its own where none are named")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    console = Console(width=120, highlight=False)
    references: dict[tuple[Setting, str], int] = {}
    table = Table("stack", "on", "over its reference's", "summed", "as recorded", "apart", box=None, pad_edge=False)
    for stack, baseline in chosen.entries:
        against, task = reference_of(stack)
        setting = Setting(baseline=baseline, size=chosen.size, task=task, steps=chosen.steps)
        if (setting, against) not in references:
            references[setting, against] = flops_of(Job(setting=setting, stack=against))[0]
        summed, recorded = flops_of(Job(setting=setting, stack=stack))
        apart = recorded / summed - 1
        sign = "" if abs(apart) <= WITHIN else f", beyond {WITHIN:.0%}"
        ratio = f"{summed / references[setting, against]:.3f}"
        row = stack, baseline, ratio, f"{summed:.4e}", f"{recorded:.4e}", f"{apart:+.2%}{sign}"
        console.print(*row)
        table.add_row(*row)
    console.print(table)


if __name__ == "__main__":
    main()
