"""Steps that drop tokens against what their FLOPs predict: ``python -m tests.numbers.dropped [--size micro]``.

CPU seconds of a step over the reference's, in ABBA order in one process and thread, beside the ratio of counted FLOPs.
What the time has beyond the FLOPs is what does not shrink with the tokens: the calls of operators above all.
"""

from __future__ import annotations

import argparse

import torch
from rich.console import Console
from rich.table import Table

from suite.entries.catalogue import catalogue, reference_of
from suite.entries.jobs import run_of
from suite.record.job import SIZES, Job, Setting
from tests.numbers.paired import entry, step_ratio

ENTRIES = {"mae": "mae", "flip": "vit", "mass": "bert", "mlm_sparse_head": "bert", "mlm_mask_later": "bert"}
WITHIN = 0.10


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.numbers.dropped", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("entries", nargs="*", type=entry, default=[*ENTRIES.items()], metavar="stack:baseline")
    parser.add_argument("--size", choices=SIZES, default="micro")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    table = Table("stack", "on", "against", "FLOPs", "CPU time of a step", "apart", box=None, pad_edge=False)
    for stack, baseline in chosen.entries:
        against = reference_of(stack)[0]
        task = catalogue()[stack.partition(":")[0]].card.task
        setting = Setting(baseline=baseline, size=chosen.size, task=task)
        ours, theirs = (run_of(Job(setting=setting, stack=name)) for name in (stack, against))
        ratio = step_ratio(ours, theirs)
        flops = ours.count_step().flops / theirs.count_step().flops
        apart = ratio.estimate / flops - 1
        sign = "" if abs(apart) <= WITHIN else f", beyond {WITHIN:.0%}"
        seen = f"{ratio.estimate:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]"
        table.add_row(stack, baseline, against, f"{flops:.3f}", seen, f"{apart:+.1%}{sign}")
    Console(width=120, highlight=False).print(table)


if __name__ == "__main__":
    main()
