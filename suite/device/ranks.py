"""Joins several ranks on one machine: gloo on the CPU, NCCL with a GPU for each."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

import torch
from torch.distributed.device_mesh import DeviceMesh

LOOPBACK = Path("/sys/class/net/lo")
SET_UP_S = 300.0  # ranks that build a model do not begin together
STEP_S = 20.0  # ranks that train do, so one that has not come by then never will, unless steps take as long
PATIENCE = 3.0  # times as long as what they did took


def device_of(rank: int, device: str) -> str:
    """Returns the device of a rank of several: ``"cuda:1"`` of rank 1 on ``"cuda"``."""
    return f"cuda:{rank}" if device == "cuda" else device


def joined(device: str, rank: int, world_size: int, rendezvous: str) -> DeviceMesh:
    """Returns the mesh of this machine's ranks that meet in the folder ``rendezvous``; this process is one of them.
    With ``env://`` they meet where a launcher's environment says.

    Its GPU becomes the current one before anything is made there. Until :func:`wait_at_most` says otherwise, a rank
    waits SET_UP_S for the others in each collective.
    """
    launched = "://" in rendezvous  # perhaps on several machines
    if LOOPBACK.exists() and not launched:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", LOOPBACK.name)
    own = None
    if device == "cuda":
        own = torch.device(device_of(int(os.environ.get("LOCAL_RANK", rank)), device))
        torch.cuda.set_device(own)
    torch.distributed.init_process_group(
        "nccl" if device == "cuda" else "gloo",
        init_method=rendezvous if launched else f"file://{rendezvous}/store",
        rank=rank,
        world_size=world_size,
        device_id=own,
        timeout=timedelta(seconds=SET_UP_S),
    )
    return torch.distributed.init_device_mesh(device, (world_size,))


def wait_at_most(mesh: DeviceMesh, seconds: float) -> None:
    """Sets a limit: from now on a rank that waits longer for another in a collective raises RuntimeError."""
    mesh.get_group().set_timeout(timedelta(seconds=seconds))


def wait_a_few_times(mesh: DeviceMesh, longest_s: float) -> None:
    """Sets the limit of ranks whose work takes ``longest_s``: a few times that, and STEP_S at least. They do not wait
    for a hung one for ever, and take no slow one for hung."""
    wait_at_most(mesh, max(STEP_S, PATIENCE * longest_s))
