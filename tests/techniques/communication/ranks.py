"""One of two gloo ranks: exchanges given gradients, step by step, and writes what the tests compare. Run by the
``two_ranks`` fixture."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from suite.meters.communication import Communication
from techniques.communication.onebit_sgd.technique import OneBitSGD
from techniques.communication.powersgd.technique import PowerSGD
from techniques.communication.qsgd.technique import QSGD
from techniques.communication.shared.exchange import from_bytes, gathered, in_bytes, mean_over_ranks
from techniques.communication.topk_ef.technique import TopK
from tests.leaving import leave
from tests.techniques.communication.given import STEPS, gradients

TRIED = {
    "topk_ef": lambda: TopK(ratio=0.1),
    "onebit_sgd": OneBitSGD,
    "qsgd": lambda: QSGD(bucket=64),
    "powersgd_without": lambda: PowerSGD(feedback=False),
}


def run_of(group: Any, rank: int, step: int = 0) -> Any:
    """As much of a run as an exchange asks for."""
    return SimpleNamespace(group=group, rank=rank, seed=7, step=step, progress=step / STEPS)


def tried(make: Any, group: Any, rank: int) -> dict[str, Any]:
    """All steps."""
    technique, results = make(), []
    technique.model(nn.Identity(), run_of(group, rank))
    with Communication() as traffic:
        for step in range(STEPS):
            means = technique.exchange(gradients(step, rank), run_of(group, rank, step))
            results.append({name: each.clone() for name, each in means.items()})
    return {"means": results, "collectives": dict(traffic.bytes_by_collective)}


def theirs(group: Any, rank: int) -> dict[str, Any]:
    """torch's PowerSGD beside ours, which begins where theirs is after its first compressed step."""
    model = DistributedDataParallel(nn.Linear(16, 24, bias=False), process_group=group)
    state = PowerSGDState(group, matrix_approximation_rank=2, start_powerSGD_iter=2, min_compression_rate=1)
    model.register_comm_hook(state, powerSGD_hook)
    ours, pairs = PowerSGD(), []
    for step in range(3 + STEPS):
        model.zero_grad()
        gradient = {"matrix": gradients(step, rank)["matrix"]}
        # A loss whose gradient is the given one; the forward pass arms the reducer.
        (model(torch.eye(16)).T * gradient["matrix"]).sum().backward()
        if step > 2:
            mean = ours.exchange(gradient, run_of(group, rank, step))["matrix"]
            pairs.append((mean, model.module.weight.grad.clone()))
        elif step == 2:
            ours.errors = {"matrix": state.error_dict[0].clone().view(24, 16)}
            ours.queries = {"matrix": state.q_memory_dict[0].clone().view(16, 2)}
    return {"pairs": pairs}


def messages(group: Any, rank: int) -> dict[str, Any]:
    """Parts of every width and odd lengths."""
    own = [
        (torch.arange(3, dtype=torch.uint8) + rank, torch.tensor([1.5, rank])),
        (torch.tensor(2.5 + rank), torch.zeros(0), torch.tensor([[2**40 + rank]])),
    ]
    return {
        "there_and_back": from_bytes(in_bytes(own), own),
        "own": own,
        "gathered": list(gathered(own, group)),
        "none": list(gathered([], group)),
        "mean": mean_over_ranks({"a": torch.full((2, 2), 1.0 + rank), "b": torch.full((), 4.0 * rank).double()}, group),
    }


def main(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    group = dist.group.WORLD
    out: dict[str, Any] = {name: tried(make, group, rank) for name, make in TRIED.items()}
    out |= {"theirs": theirs(group, rank), "messages": messages(group, rank)}
    torch.save(out, folder / f"out{rank}")
    leave()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
