"""One rank of the communication tests: ``ranks.py RANK FOLDER`` writes its results to the folder."""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from suite.meters.communication import Communication
from suite.meters.state import gradient_bytes, parameter_bytes, parameter_count, state_bytes
from suite.meters.tensors import TensorBytes
from tests.leaving import leave

MIB = 2**20
WORLD = 2


def all_reduce():
    dist.all_reduce(torch.ones(4 * MIB))


def all_to_all():
    dist.all_to_all_single(torch.empty(4 * MIB), torch.ones(4 * MIB))


def all_gather():
    dist.all_gather_into_tensor(torch.empty(4 * MIB), torch.ones(4 * MIB // WORLD))


def reduce_scatter():
    dist.reduce_scatter_tensor(torch.empty(4 * MIB // WORLD), torch.ones(4 * MIB))


def data_parallel():
    model = nn.parallel.DistributedDataParallel(nn.Linear(1024, 4096, bias=False))
    model(torch.ones(1, 1024)).sum().backward()


def sharded():
    model = fully_shard(nn.Linear(1024, 4096, bias=False))
    model(torch.ones(1, 1024)).sum().backward()


def shards():
    """This rank's share of sharded training's model state, by the state meters and by kinds at the peak."""
    model = fully_shard(nn.Linear(64, 128, bias=False))
    optimizer, x = torch.optim.AdamW(model.parameters()), torch.ones(1, 64)
    model(x).sum().backward()
    optimizer.step()
    with TensorBytes().seed(model, optimizer, x) as meter:
        model(x).sum().backward()
        optimizer.step()
    state = parameter_bytes(model), gradient_bytes(model), state_bytes(optimizer)
    peak = [meter.peak_by_kind[kind] for kind in ("parameters", "gradients", "optimizer_state")]
    return {"state": list(state), "peak": peak, "parameters": parameter_count(model)}


PROGRAMS = [all_reduce, all_to_all, all_gather, reduce_scatter, data_parallel, sharded]


def rank_main(rank, folder):
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/store", WORLD), rank=rank, world_size=WORLD)
    results = {}
    for program in PROGRAMS:
        with Communication() as meter:
            program()
        results[program.__name__] = dict(meter.bytes_by_collective)
    results["shards"] = shards()
    torch.save(results, f"{folder}/rank{rank}.pt")
    leave()


if __name__ == "__main__":
    rank_main(int(sys.argv[1]), sys.argv[2])
