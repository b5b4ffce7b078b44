"""Several ranks on one machine: gloo on the CPU, NCCL with a GPU for each."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch.distributed.device_mesh import DeviceMesh

LOOPBACK = Path("/sys/class/net/lo")


def device_of(rank: int, device: str) -> str:
    """The device of a rank of several: ``"cuda:1"`` of rank 1 on ``"cuda"``."""
    return f"cuda:{rank}" if device == "cuda" else device


def joined(device: str, rank: int, world_size: int, rendezvous: str) -> DeviceMesh:
    """The mesh of this machine's ranks that meet in the folder ``rendezvous``; this process is one of them.

    Its GPU becomes the current one before anything is made there.
    """
    if LOOPBACK.exists():
        os.environ.setdefault("GLOO_SOCKET_IFNAME", LOOPBACK.name)
    own = None
    if device == "cuda":
        own = torch.device(device_of(rank, device))
        torch.cuda.set_device(own)
    torch.distributed.init_process_group(
        "nccl" if device == "cuda" else "gloo",
        init_method=f"file://{rendezvous}/store", rank=rank, world_size=world_size, device_id=own,
    )  # fmt: skip
    return torch.distributed.init_device_mesh(device, (world_size,))
