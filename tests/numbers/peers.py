"""Ours beside other people's, on this machine: ``python -m tests.numbers.peers [--baseline bert] [--size micro]``.

AdamW, and in low bits: CPU seconds of a step and bytes of state over torch's fused one, bitsandbytes' and torchao's, on
the parameters of the baseline, all of them in low bits. Recomputation: CPU seconds and peak bytes of a pass over those
of torch.utils.checkpoint, by the executor on the same segments, and by Rotor's plan for as much memory. torchao is an
extra of its own (``pip install .[peers]``); where a peer is not installed its row says so. What whole processes take in
pairs, for the board, ``leantrain run --peers`` times.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from importlib.util import find_spec

import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.optim import Optimizer
from torch.utils.checkpoint import checkpoint

from suite.chain.engine import scheduled
from suite.chain.plan import Plan, plan_of, planned
from suite.chain.schedule import segmented as schedule_of
from suite.chain.tiers import HostTier
from suite.entries.installed import baselines
from suite.entries.jobs import run_of
from suite.judge.statistics import Interval
from suite.loop.chains import blocks_of, chains_of
from suite.loop.run import Run
from suite.meters.live import LiveBytes
from suite.meters.state import state_bytes
from suite.model.segments import segmented
from suite.record.job import BASELINE, SIZES, Job, Setting
from techniques.optimizers.adamw.technique import AdamW
from techniques.precision.adam4bit_rank1.optimizer import AdamW4bit
from techniques.precision.adam8bit_blockwise.optimizer import AdamW8bit
from techniques.rematerialization.ckpt_chen_sqrt.technique import segments
from techniques.rematerialization.rotor.technique import Rotor
from tests.numbers.paired import ratio

BLOCK = 256  # of both peers, and of ours here
SMALLEST = 4096

Make = Callable[[list[nn.Parameter]], Optimizer]


def torchao(name: str) -> Make:
    def make(parameters: list[nn.Parameter]) -> Optimizer:
        from torchao import optim

        optimizer: Optimizer = getattr(optim, name)(parameters)
        return optimizer

    return make


def bitsandbytes(parameters: list[nn.Parameter]) -> Optimizer:
    from bitsandbytes.optim import AdamW8bit as Theirs

    optimizer: Optimizer = Theirs(parameters, min_8bit_size=SMALLEST)
    return optimizer


def ours(parameters: list[nn.Parameter]) -> Optimizer:
    return AdamW(parameters)


def fused(parameters: list[nn.Parameter]) -> Optimizer:
    return torch.optim.AdamW(parameters, fused=True)


def ours_in_8_bits(parameters: list[nn.Parameter]) -> Optimizer:
    return AdamW8bit(parameters, block=BLOCK, smallest=SMALLEST)


def ours_in_4_bits(parameters: list[nn.Parameter]) -> Optimizer:
    return AdamW4bit(parameters, smallest=SMALLEST)


PEERS: list[tuple[str, Make, str, Make]] = [
    ("AdamW", ours, "torch", fused),
    ("8-bit AdamW", ours_in_8_bits, "bitsandbytes", bitsandbytes),
    ("8-bit AdamW", ours_in_8_bits, "torchao", torchao("AdamW8bit")),
    ("4-bit AdamW", ours_in_4_bits, "torchao", torchao("AdamW4bit")),
]


def with_gradients(run: Run) -> list[nn.Parameter]:
    """Copies of the run's parameters with a gradient each."""
    own = torch.Generator().manual_seed(0)
    parameters = [nn.Parameter(each.detach().clone()) for each in run.model.parameters() if each.requires_grad]
    for each in parameters:
        each.grad = torch.randn(each.shape, generator=own) * 1e-3
    return parameters


def optimizers(run: Run) -> Iterator[tuple[str, ...]]:
    """A row for each of PEERS."""
    for name, make, peer, theirs in PEERS:
        if find_spec(peer) is None:
            yield name, peer, f"{peer} is not installed", ""
            continue
        one, other = make(with_gradients(run)), theirs(with_gradients(run))
        seen = shown(ratio(one.step, other.step, time.process_time))
        yield name, peer, seen, f"{state_bytes(one) / state_bytes(other):.3f}"


def recomputation(run: Run) -> Iterator[tuple[str, ...]]:
    """sqrt(L) equal segments in the executor, and Rotor's plan for as much memory, beside torch's own checkpoints of
    these segments."""
    batch, _ = run.next_batch()
    stacks, chains = blocks_of(run), chains_of(run, on_the_clock=True)
    ranges = [segments(len(stack), math.isqrt(len(stack) - 1) + 1) for stack in stacks]
    equal = plan_of([schedule_of(len(stack), each) for stack, each in zip(stacks, ranges)], chains)

    def one_pass(in_stacks: Sequence[AbstractContextManager[object]]) -> None:
        run.optimizer.zero_grad(set_to_none=True)
        with ExitStack() as contexts:
            for each in in_stacks:
                contexts.enter_context(each)
            run.forward(batch).backward()

    def by_torch() -> None:
        keep = partial(checkpoint, use_reentrant=False)
        one_pass([segmented(stack, each, keep) for stack, each in zip(stacks, ranges)])

    def by_executor(plan: Plan) -> None:
        tier = HostTier()
        one_pass([scheduled(stack, each, tier) for stack, each in zip(stacks, plan.schedules)])

    def peak_bytes(work: Callable[[], None]) -> int:
        with LiveBytes() as live:
            work()
        return live.high_bytes

    for name, plan in (("equal segments", equal), ("rotor's plan", planned(Rotor(), chains, equal.peak_bytes))):
        ours = partial(by_executor, plan)
        bytes_ratio = peak_bytes(ours) / peak_bytes(by_torch)
        yield name, "torch.utils.checkpoint", shown(ratio(ours, by_torch, time.process_time)), f"{bytes_ratio:.3f}"


def shown(seen: Interval) -> str:
    return f"{seen.estimate:.3f} [{seen.low:.3f}, {seen.high:.3f}]"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.numbers.peers", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--baseline", choices=list(baselines()), default="bert")
    parser.add_argument("--size", choices=SIZES, default="micro")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    run = run_of(Job(setting=Setting(baseline=chosen.baseline, size=chosen.size), stack=BASELINE))
    table = Table("what", "beside", "CPU time", "bytes", box=None, pad_edge=False)
    for row in (*optimizers(run), *recomputation(run)):
        table.add_row(*row)
    Console(width=120, highlight=False).print(table)


if __name__ == "__main__":
    main()
