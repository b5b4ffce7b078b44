"""One of two gloo ranks: trains small models sharded by FSDP2, and writes their whole weights."""

import copy
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from leantrain import optim
from suite.kernels import optimizer as base
from tests.leaving import leave

STEPS = 3
Make = Callable[[Any], torch.optim.Optimizer]
CASES: dict[str, Make] = {
    "adamw": lambda p: optim.AdamW(p, lr=0.01, weight_decay=0.1),
    "unfused_adam": lambda p: optim.Adam(p, lr=0.01, fused=False),
    "sgd": lambda p: optim.SGD(p, lr=0.1, dampening=0.3),
    "unfused_sgd": lambda p: optim.SGD(p, lr=0.1, fused=False),
    "lion": lambda p: optim.Lion(p, lr=0.01, weight_decay=0.1),
    "acclip": lambda p: optim.ACClip(p, lr=0.1),
    "agd": lambda p: optim.AGD(p, lr=0.1),
    "lars": lambda p: optim.Lars(p, lr=1.0, weight_decay=0.1),
    "lamb": lambda p: optim.Lamb(p, lr=0.1),
    "nvlamb": lambda p: optim.Lamb(p, lr=0.1, variant="nvlamb", max_norm=0.1),
    "trust": lambda p: optim.LayerwiseTrust(p, lr=0.1, base="adam"),
    "apgnc": lambda p: optim.APGnc(p, lr=0.1),
    "sam": lambda p: optim.SAM(optim.Lion(p, lr=0.01), rho=0.1),
    "asam": lambda p: optim.SAM(optim.AdamW(p, lr=0.01), rho=0.5, adaptive=True),
    "esam": lambda p: optim.ESAM(optim.AdamW(p, lr=0.01), rho=0.5),
    "saf": lambda p: optim.SAF(optim.AdamW(p, lr=0.01), examples=8, classes=2, strength=5.0, epochs_ago=1),
    "mesa": lambda p: optim.AdamW(p, lr=0.01),
    "lawa": lambda p: optim.AdamW(p, lr=0.01),
}
KERNELS = ("adamw", "sgd", "lion", "acclip", "lars", "lamb", "nvlamb")
CLIPPED = ("adamw", "lamb", "lion")


def network() -> nn.Sequential:
    """A bias of 1 element has an empty shard on one of the ranks."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3), nn.Tanh(), nn.Linear(3, 1))


def losses_of(model: nn.Module, step: int, kept: Tensor | None = None) -> Tensor:
    generator = torch.Generator().manual_seed(step)
    inputs = torch.randn(8, 5, generator=generator)  # the same on both ranks: their mean gradient is one's
    inputs = inputs if kept is None else inputs[kept]
    return F.mse_loss(model(inputs), inputs.sum(1, keepdim=True), reduction="none").flatten()


def loss_of(model: nn.Module, step: int) -> Tensor:
    return losses_of(model, step).mean()


def logits(model: nn.Module, inputs: Tensor = torch.eye(5)[:2]) -> Tensor:  # noqa: B008
    outputs: Tensor = model(inputs).cos()
    return torch.cat([outputs, outputs.square()], dim=1)


def examples_of(model: nn.Module, step: int) -> Tensor:
    """All eight, or half of them on each rank, which are on the other one in the next step."""
    sharded = any(hasattr(each, "placements") for each in model.parameters())
    return torch.arange((dist.get_rank() + step) % 2, 8, 2) if sharded else torch.arange(8)


def trained(name: str, shard: Callable[[nn.Module], nn.Module], resume: bool = False) -> nn.Module:
    """The model, or what averages it."""
    model = network()
    teacher: Any = optim.LAWA(model, k=2) if name == "lawa" else copy.deepcopy(model) if name == "mesa" else None
    shard(model)
    if teacher is not None:
        shard(teacher.module if name == "lawa" else teacher)
    optimizer: Any = CASES[name](model.parameters())
    if name == "mesa":
        optimizer = optim.MESA(optimizer, model, decay=0.5, strength=5.0, teacher=teacher)
    for step in range(STEPS):
        if name == "esam":
            optimizer.step(partial(losses_of, model, step))
            continue
        optimizer.zero_grad()
        loss = loss_of(model, step)
        if name == "mesa":
            loss = loss + optimizer.term(logits(model), lambda each: 2 * logits(each))
        if name == "saf":
            rows = examples_of(model, step)
            inputs = torch.linspace(-1, 1, 40).view(8, 5)[rows]
            loss = loss + optimizer.term(logits(model, inputs) * (1 + step), rows)
        loss.backward()
        if "sam" in name:
            with optimizer.worst_point():
                loss_of(model, step).backward()
        if name in CLIPPED:
            optimizer.clip(0.5)
        optimizer.step()
        if name == "lawa":
            teacher.update_parameters(model)
        if resume and step == 0:
            saved = copy.deepcopy(get_optimizer_state_dict(model, optimizer))
            optimizer = CASES[name](model.parameters())
            set_optimizer_state_dict(model, optimizer, saved)
    return teacher.module if name == "lawa" else model


def refused(shard: Callable[[nn.Module], nn.Module]) -> None:
    model = shard(network())
    with pytest.raises(ValueError, match="copy it before, shard both alike"):
        optim.MESA(torch.optim.SGD(model.parameters(), lr=0.1), model)


def whole(model: nn.Module) -> list[Tensor]:
    return [p.full_tensor() if hasattr(p, "full_tensor") else p.detach().clone() for p in model.parameters()]


def always(tensors: list[Tensor]) -> bool:
    return all(tensor.dtype in (torch.float32, torch.bfloat16) for tensor in tensors)


def main(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))

    def shard(model: nn.Module) -> nn.Module:
        for layer in model:  # type: ignore[attr-defined]
            if isinstance(layer, nn.Linear):
                fully_shard(layer, mesh=mesh)
        return fully_shard(model, mesh=mesh)

    results: dict[str, dict[str, list[Tensor]]] = {"alone": {}, "sharded": {}, "resumed": {}, "kernel": {}}
    for name in CASES:
        results["alone"][name] = whole(trained(name, lambda model: model))
        results["sharded"][name] = whole(trained(name, shard))
        if name == "mesa":
            refused(shard)
        if name in ("adamw", "lion", "lamb", "sgd"):
            results["resumed"][name] = whole(trained(name, shard, resume=True))
    base.launchable = always
    for name in KERNELS:
        results["kernel"][name] = whole(trained(name, shard))
    torch.save(results, folder / f"out{rank}")
    leave()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
