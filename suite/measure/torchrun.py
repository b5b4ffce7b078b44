"""Runs a stack's training under torchrun: the same run, where the launcher starts the ranks.

    torchrun --nproc-per-node 4 -m suite.measure.torchrun -t STACK -b gpt --size nano --steps 20

``leantrain run --ranks`` starts ranks itself, side by side with the reference's, and keeps what it measures. This is
for a cluster's own launcher: it trains, evaluates, and rank 0 prints one line of JSON. The stack gets as many ranks as
the launcher has started.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Sequence

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from suite.device.ranks import device_of, joined, wait_a_few_times
from suite.entries.adapting import baseline_for
from suite.entries.catalogue import lookup
from suite.entries.installed import baselines
from suite.entries.together import run_of
from suite.loop.run import Run
from suite.measure.contenders.contender import world_size
from suite.measure.contenders.world import with_ranks
from suite.record.job import RECIPES, SIZES, Job, Setting, StackError

PARTS = 20
"""Of a run, after each of which rank 0 says how far it is."""


def trained(run: Run, mesh: DeviceMesh, quiet: bool) -> list[float]:
    """Returns the losses of all steps; says now and then, on standard error, how far it is. Ranks wait for each other
    in the first step as in the set-up, since nobody knows how long one takes, and then by the longest so far."""
    steps, began_s, longest_s = run.recipe.steps, time.monotonic(), 0.0
    losses: list[float] = []
    while run.step < steps:
        part_s, before = time.monotonic(), run.step
        losses += run.train(min(math.ceil(steps / PARTS) if before else 1, steps - before))
        longest_s = max(longest_s, (time.monotonic() - part_s) / (run.step - before))
        wait_a_few_times(mesh, longest_s)
        if not quiet:
            step_s = (time.monotonic() - began_s) / run.step
            print(f"{run.step} of {steps} steps, {step_s:.3g} s each", file=sys.stderr, flush=True)
    return losses


def main(arguments: Sequence[str] | None = None) -> None:
    """Trains as one of the ranks that torchrun has started. Outside of it, or of no such stack, it exits with a
    sentence."""
    parser = argparse.ArgumentParser(prog="torchrun -m suite.measure.torchrun", description=__doc__.splitlines()[0])
    parser.add_argument("-t", "--technique", required=True)
    parser.add_argument("-b", "--baseline", default="gpt")
    parser.add_argument("--size", choices=SIZES, default="nano")
    parser.add_argument("--recipe", choices=RECIPES, default="modern")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    asked = parser.parse_args(arguments)
    if "RANK" not in os.environ:
        parser.error("start it by torchrun --nproc-per-node N, which says which rank this process is")
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    try:
        lookup("baseline", asked.baseline, baselines())
        stack = with_ranks(asked.technique, ranks)
        setting = Setting(
            baseline=asked.baseline,
            size=asked.size,
            recipe=asked.recipe,
            steps=asked.steps,
            device=device_of(int(os.environ.get("LOCAL_RANK", rank)), asked.device),
        )
        world_size(Job(setting=setting, stack=stack))
    except (LookupError, ValueError) as error:
        parser.error(str(error))
    mesh = joined(asked.device, rank, ranks, "env://")
    try:
        try:
            run = run_of(Job(setting=setting, stack=stack), baseline=baseline_for(setting), mesh=mesh)
        except StackError as error:
            parser.error(str(error))
        losses = trained(run, mesh, quiet=rank > 0)
        scores = run.evaluate()
        if rank == 0:
            print(json.dumps({"stack": stack, "ranks": ranks, "losses": losses, "validation": scores}), flush=True)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
