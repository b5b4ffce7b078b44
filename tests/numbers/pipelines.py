"""The event simulator against two real ranks on a limited link: ``python -m tests.numbers.pipelines [--mbit 30 100]``.

In turns of a second or so: what passes take, each at its place in the batch, what updates do, and what is left of a
step, is measured on the link without a limit; then alpha (half of a message there and back) and beta of the limited
link as it is, and steps there. From its own turn's profile the simulator says how long a step takes, so that a
neighbour on the cores meets both. Within a turn means are taken, since those of operations add up to a step's; the
median over turns is the answer. The limiter's burst is part of the model: at 30 Mbit/s what it lets through at once
after a pause would take 9 ms. A measurement, not a test: neighbours on the cores are not in the model, and two ranks
need two.
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
from statistics import mean, median
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from suite.device.ranks import STEP_S, joined, wait_at_most
from suite.entries.adapting import baseline_for
from suite.entries.jobs import run_of
from suite.entries.spelling import build
from suite.loop.run import Run
from suite.loop.stack import Stack
from suite.measure.contenders.deputies import failure
from suite.measure.contenders.fork_servers import shared
from suite.measure.links import BURST_BYTES, LinkedNodes, enter
from suite.pipeline.link import AlphaBeta
from suite.pipeline.simulated import PipelineCosts, on_link
from suite.pipeline.timetable import PipelineOp, PipelineSchedule
from suite.process.child import ContenderFailed
from suite.process.groups import Ranks
from suite.record.job import Job, Setting
from suite.record.numerics import off_the_clock
from techniques.parallelism.shared.pipelined import AHEAD, Pipelined

STEPS, WARMUP, TURNS, RANKS = 5, 6, 6, 2
STEADY = 3  # simulated steps after the first: what a limiter saves up depends on the step before
PATIENCE_S = 120.0  # with a rank that has not answered: setting up, or a window
LARGE = 1 << 18  # numbers, of an all-reduce that shows a link's rate
THERE_AND_BACK = 20  # messages of one number, each way
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
    """Seconds of this rank's operations by kind, stage and place in the batch, without what it waits for, and what else
    a step takes."""
    own = pipeline_of(run)
    seconds: dict[tuple[str, int, int], list[float]] = defaultdict(list)
    spent, inside, rest = [0.0], [0.0], []

    def timed(function: Any) -> Any:
        def call(run: Run, op: PipelineOp) -> Any:
            start_s, before = time.perf_counter(), spent[0]
            try:
                return function(run, op)
            finally:
                whole = time.perf_counter() - start_s
                inside[0] += whole
                seconds[op.kind, op.stage, op.micro % own.plan.micro_batches].append(whole - (spent[0] - before))

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
    costs = [[*operation, each] for operation, each in seconds.items()]
    return {"costs": costs, "rest": rest}


class Rank:
    """One rank, in its process: profiles, or measures the link, as it is asked to."""

    def __init__(self, rank: int, node: int, stack: str, setting: Setting, folder: str) -> None:
        enter(node)
        torch.set_num_threads(1)
        mesh = joined("cpu", rank, RANKS, folder)
        self.run = run_of(Job(setting=setting, stack=stack), baseline=baseline_for(setting), mesh=mesh)
        self.run.train(WARMUP)
        wait_at_most(mesh, STEP_S)

    def about(self) -> dict[str, Any]:
        """What it hands on."""
        own = pipeline_of(self.run)
        parameters = dict(own.stages.skeleton.named_parameters())
        tied = [parameters[name].nbytes for name, holders in own._holders.items() if len(holders) > 1]
        handed = [own.stages.shape(stage, 1) for stage in range(own.plan.stages - 1)]
        return {
            "handed": [math.prod(each.size) * each.dtype.itemsize for each in handed],
            "tied": sum(tied),
            "norms": 8 * len(parameters),
        }

    def profile(self) -> dict[str, Any]:
        return profiled(self.run)

    def measure(self) -> dict[str, Any]:
        return on_this_link(self.run)


class Pair(Ranks):
    """Two ranks that do what they are asked to."""

    def __init__(self, stack: str, setting: Setting, network: LinkedNodes, folder: str) -> None:
        super().__init__()
        places = [(rank, network.holder(rank), stack, setting, folder) for rank in range(RANKS)]
        self._begin(shared(off_the_clock()), failure, Rank, *places)
        self.about = self.ask("about")

    def __enter__(self) -> Pair:
        return self

    def ask(self, what: str) -> list[Any]:
        """What each rank says. Ends the measurement where one fails, has ended, or does not answer."""
        try:
            return self._all_replies(what, limit_s=PATIENCE_S)
        except ContenderFailed as failed:
            raise SystemExit(f"{failed}: {failed.details}") from None


def on_this_link(run: Run) -> dict[str, Any]:
    """Alpha, beta, what an all-reduce takes besides, and the seconds of steps."""

    def seconds(values: torch.Tensor, times: int) -> float:
        taken = []
        for _ in range(times):
            dist.barrier()
            start_s = time.perf_counter()
            dist.all_reduce(values)
            taken.append(time.perf_counter() - start_s)
        return median(taken)

    seconds(torch.zeros(LARGE), 1)
    alpha, large = there_and_back_s() / 2, seconds(torch.zeros(LARGE), 3)
    reduction = max(0.0, seconds(torch.zeros(1), THERE_AND_BACK) - 2 * alpha)
    taken = []
    for _ in range(STEPS):
        dist.barrier()
        start_s = time.perf_counter()
        run.train(1)
        taken.append(time.perf_counter() - start_s)
    return {"alpha": alpha, "beta": 4 * LARGE / large, "reduction": reduction, "steps": taken}


def there_and_back_s() -> float:
    """Seconds that a message of one number and its answer take, each expected before it is sent."""
    other, taken = 1 - dist.get_rank(), []
    ball, room = torch.zeros(1), torch.zeros(1)
    dist.barrier()
    for _ in range(THERE_AND_BACK):
        coming = dist.irecv(room, other)
        assert coming is not None
        start_s = time.perf_counter()
        if dist.get_rank() == 0:
            dist.send(ball, other)
        coming.wait()
        if dist.get_rank() == 1:
            dist.send(ball, other)
        taken.append(time.perf_counter() - start_s)
    return median(taken)


def predicted_s(
    ranks: Pair, profiles: list[Any], plan: PipelineSchedule, examples: int, link: AlphaBeta, reduction_s: float
) -> float:
    """Seconds of a step by the simulator, from the ranks' profiles of a turn."""
    known: dict[tuple[str, int, int], list[float]] = defaultdict(list)
    for kind, stage, place, taken in (each for profile in profiles for each in profile["costs"]):
        known[kind, stage, place] += taken
    rest_s = min(mean(profile["rest"]) for profile in profiles)
    forward, backward = (
        [[mean(known[kind, stage, place]) for place in range(plan.micro_batches)] for stage in range(plan.stages)]
        for kind in ("forward", "backward")
    )
    update = [mean(known["update", stage, -1 % plan.micro_batches]) for stage in range(plan.stages)]
    about = ranks.about[0]
    handed, joint = [examples * size for size in about["handed"]], about["tied"] + about["norms"]
    costs = PipelineCosts(forward, backward, update, handed, joint, 1 + (about["tied"] > 0), reduction_s, AHEAD)
    first, later = (float(on_link(plan.program(steps), costs, link).end) for steps in (1, 1 + STEADY))
    return rest_s + (later - first) / STEADY


class Turn(NamedTuple):
    """What a turn has shown of a link, and of a step there: as the simulator has it, and as it was."""

    alpha_s: float
    beta: float
    simulated_s: float
    step_s: float


def turns_of(ranks: Pair, network: LinkedNodes, mbit: float, plan: PipelineSchedule, examples: int) -> Iterator[Turn]:
    """Profile without a limit, steps within it, one after the other."""
    for _ in range(TURNS):
        network.limit(None)
        profiles = ranks.ask("profile")
        network.limit(mbit)
        seen = ranks.ask("measure")[0]
        burst = BURST_BYTES * min(1.0, 8e-6 * seen["beta"] / mbit)  # without what packets have around it
        link = AlphaBeta(seen["alpha"], seen["beta"], burst)
        simulated_s = predicted_s(ranks, profiles, plan, examples, link, seen["reduction"])
        yield Turn(link.latency_s, link.bytes_per_s, simulated_s, mean(seen["steps"]))


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.numbers.pipelines", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--stack", nargs="+", default=["mp_naive", "gpipe", "pipedream_flush"])
    parser.add_argument("--mbit", nargs="+", type=float, default=[30.0, 100.0, 300.0])
    parser.add_argument("--size", default="nano")
    chosen = parser.parse_args()
    setting = Setting(baseline="gpt", size=chosen.size, recipe="classic")
    for stack in chosen.stack:
        (technique,) = build(stack).techniques.values()
        assert isinstance(technique, Pipelined)
        plan = technique.schedule()
        examples = baseline_for(setting).recipe_of(setting).batch_size // plan.micro_batches
        with (
            LinkedNodes(RANKS) as network,
            tempfile.TemporaryDirectory() as folder,
            Pair(stack, setting, network, folder) as ranks,
        ):
            for rate in chosen.mbit:
                print(said_of(stack, rate, list(turns_of(ranks, network, rate, plan, examples))), flush=True)


def said_of(stack: str, mbit: float, turns: list[Turn]) -> str:
    """A line for a rate."""
    apart = sorted(each.simulated_s / each.step_s - 1 for each in turns)
    middle = median(apart)
    alpha_s, beta, simulated_s, step_s = (median(each) for each in zip(*turns, strict=True))
    return (
        f"{stack} {mbit:g} Mbit/s: alpha {1e3 * alpha_s:.2f} ms, beta {beta * 8e-6:.0f} Mbit/s, step "
        f"{1e3 * step_s:.1f} ms, simulated {1e3 * simulated_s:.1f} ms, apart {middle:+.1%} ({apart[0]:+.0%} to "
        f"{apart[-1]:+.0%} in {len(turns)} turns){'' if abs(middle) <= WITHIN else ', more than 10 %'}; load "
        f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    )


if __name__ == "__main__":
    from tests.numbers import pipelines  # whose functions ranks can import

    pipelines.main()
