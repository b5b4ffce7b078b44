"""The event simulator against two real ranks on a limited link: ``python -m tests.numbers.pipelines [--mbit 30 100]``.

What passes and updates take, and what is left of a step, is measured on the link without a limit, in turn with steps
on the limited one; alpha and beta are those of the limited link as it is. The simulator then says how long a step takes
there, and real steps say whether it is right. A measurement, not a test: neighbours on the cores are not in the model.
"""

from __future__ import annotations

import argparse
import math
import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing

from suite.device.ranks import joined
from suite.entries.adapting import baseline_for
from suite.entries.jobs import run_of
from suite.entries.spelling import build
from suite.loop.run import Run
from suite.loop.stack import Stack
from suite.measure.contenders.fork_servers import shared
from suite.measure.links import LinkedNodes, enter
from suite.pipeline.link import AlphaBeta
from suite.pipeline.schedule import PipelineOp, PipelineSchedule
from suite.pipeline.simulate import PipelineCosts, on_link
from suite.record.job import Job, Setting
from suite.record.numerics import off_the_clock
from techniques.parallelism.shared.pipelined import Pipelined

STEPS, WARMUP, TURNS = 6, 6, 4
LARGE = 1 << 18  # numbers, of an all-reduce that shows a link's rate
WITHIN = 0.10


def pipeline_of(run: Run) -> Pipelined:
    """The technique that the stack is."""
    assert isinstance(run.technique, Stack)
    (own,) = run.technique.techniques.values()
    assert isinstance(own, Pipelined)
    return own


@contextmanager
def waiting(run: Run, spent: list[float]) -> Iterator[None]:
    """While active, what this rank waits for others is added to ``spent[0]``."""
    mail = pipeline_of(run).mail
    take, reduce = mail.take, dist.all_reduce

    def timed(function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            start_s = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                spent[0] += time.perf_counter() - start_s

        return call

    mail.take, dist.all_reduce = timed(take), timed(reduce)  # type: ignore[method-assign]
    try:
        yield
    finally:
        mail.take, dist.all_reduce = take, reduce  # type: ignore[method-assign]


def profiled(run: Run) -> dict[str, Any]:
    """Seconds of this rank's operations by kind and stage, without what it waits for, and what else a step takes."""
    own = pipeline_of(run)
    seconds: dict[tuple[str, int], list[float]] = defaultdict(list)
    spent, inside, rest = [0.0], [0.0], []

    def timed(function: Any) -> Any:
        def call(run: Run, op: PipelineOp) -> Any:
            start_s, before = time.perf_counter(), spent[0]
            try:
                return function(run, op)
            finally:
                whole = time.perf_counter() - start_s
                inside[0] += whole
                seconds[op.kind, op.stage].append(whole - (spent[0] - before))

        return call

    for name in ("_forward", "_backward", "_update"):
        setattr(own, name, timed(getattr(own, name)))
    with waiting(run, spent):
        for _ in range(STEPS):
            dist.barrier()
            inside[0], start_s = 0.0, time.perf_counter()
            run.train(1)
            rest.append(time.perf_counter() - start_s - inside[0])
    for name in ("_forward", "_backward", "_update"):
        delattr(own, name)
    costs = [[kind, stage, each] for (kind, stage), each in seconds.items()]
    return {"costs": costs, "rest": rest}


def rank_main(rank: int, nodes: list[int], stack: str, setting: Setting, folder: str, commands: list[Any]) -> None:
    """A rank: profiles, then measures a link for each command that comes."""
    enter(nodes[rank])
    torch.set_num_threads(1)
    mesh = joined("cpu", rank, 2, folder)
    run = run_of(Job(setting=setting, stack=stack), baseline=baseline_for(setting), mesh=mesh)
    run.train(WARMUP)
    out: dict[str, Any] = {"free": [], "links": []}
    own = pipeline_of(run)
    parameters = dict(own.stages.skeleton.named_parameters())
    tied = [parameters[name].nbytes for name, holders in own._holders.items() if len(holders) > 1]
    handed = [own.stages.shape(stage, 1) for stage in range(own.plan.stages - 1)]
    out |= {"handed": [math.prod(each.size) * each.dtype.itemsize for each in handed], "tied": sum(tied)}
    out["norms"] = 8 * len(parameters)
    for number, (ready, done) in enumerate(commands):
        ready.wait()
        if number % 2:
            out["links"].append(on_this_link(run))
        else:
            out["free"].append(profiled(run))
        dist.barrier()
        done.wait()
    torch.save(out, Path(folder) / f"out{rank}")
    dist.destroy_process_group()


def on_this_link(run: Run) -> dict[str, Any]:
    """Alpha, beta, and the seconds of steps."""

    def seconds(values: torch.Tensor, times: int) -> float:
        taken = []
        for _ in range(times):
            dist.barrier()
            start_s = time.perf_counter()
            dist.all_reduce(values)
            taken.append(time.perf_counter() - start_s)
        return median(taken)

    seconds(torch.zeros(LARGE), 1)
    alpha, large = seconds(torch.zeros(1), 9), seconds(torch.zeros(LARGE), 3)
    taken = []
    for _ in range(STEPS):
        dist.barrier()
        start_s = time.perf_counter()
        run.train(1)
        taken.append(time.perf_counter() - start_s)
    return {"alpha": alpha, "beta": 4 * LARGE / large, "steps": taken}


def predicted_s(
    out: list[dict[str, Any]], turns: slice, plan: PipelineSchedule, examples: int, link: AlphaBeta
) -> float:
    """Seconds of a step by the simulator, from the ranks' profiles of these turns."""
    known: dict[tuple[str, int], list[float]] = defaultdict(list)
    for profile in (each for rank in out for each in rank["free"][turns]):
        for kind, stage, taken in profile["costs"]:
            known[kind, stage] += taken
    rest_s = min(median([each for profile in rank["free"][turns] for each in profile["rest"]]) for rank in out)
    forward, backward, update = (
        [fmean(known[kind, stage]) for stage in range(plan.stages)] for kind in ("forward", "backward", "update")
    )
    handed, joint = [examples * size for size in out[0]["handed"]], out[0]["tied"] + out[0]["norms"]
    costs = PipelineCosts(forward, backward, update, handed, joint, reductions=1 + (out[0]["tied"] > 0))
    return rest_s + float(on_link(plan.step(0), costs, link).end)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.numbers.pipelines", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--stack", nargs="+", default=["mp_naive", "gpipe", "pipedream_flush"])
    parser.add_argument("--mbit", nargs="+", type=float, default=[30.0, 100.0, 300.0])
    parser.add_argument("--size", default="nano")
    chosen = parser.parse_args()
    setting = Setting(baseline="gpt", size=chosen.size, recipe="classic")
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    phases = [limit for rate in chosen.mbit for _ in range(TURNS) for limit in (None, rate)]
    for stack in chosen.stack:
        with LinkedNodes(2) as network, tempfile.TemporaryDirectory() as folder:
            context = shared(off_the_clock())
            with context.starting() as forked:
                commands = [(forked.Event(), forked.Barrier(3)) for _ in phases]
                nodes = [network.holder(node) for node in range(2)]
                ranks = [
                    forked.Process(target=rank_main, args=(rank, nodes, stack, setting, folder, commands), daemon=True)
                    for rank in range(2)
                ]
                for each in ranks:
                    each.start()
            for rate, (ready, done) in zip(phases, commands, strict=True):
                network.limit(rate)
                ready.set()
                done.wait(300)
            for each in ranks:
                each.join()
            out = [torch.load(Path(folder) / f"out{rank}", weights_only=True) for rank in range(2)]
        (technique,) = build(stack).techniques.values()
        assert isinstance(technique, Pipelined)
        plan = technique.schedule()
        examples = baseline_for(setting).recipe_of(setting).batch_size // plan.micro_batches
        for number, rate in enumerate(chosen.mbit):
            turns = slice(number * TURNS, (number + 1) * TURNS)
            links = out[0]["links"][turns]
            alpha_s, beta = median(each["alpha"] for each in links), median(each["beta"] for each in links)
            step_s = fmean(step for each in links for step in each["steps"])
            simulated_s = predicted_s(out, turns, plan, examples, AlphaBeta(alpha_s, beta))
            apart = simulated_s / step_s - 1
            print(
                f"{stack} {rate:g} Mbit/s: alpha {1e3 * alpha_s:.2f} ms, beta {beta * 8e-6:.0f} Mbit/s, "
                f"step {1e3 * step_s:.1f} ms, simulated {1e3 * simulated_s:.1f} ms, apart {apart:+.1%}"
                f"{'' if abs(apart) <= WITHIN else ' (more than 10 %)'}",
                flush=True,
            )


if __name__ == "__main__":
    from tests.numbers import pipelines  # whose functions ranks can import

    pipelines.main()
