"""One of two gloo ranks: trains small stacks and writes what the tests compare. Run by the ``two_ranks`` fixture."""

import json
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

from suite.entries.spelling import build
from suite.loop.data import Batch
from suite.loop.recipe import Recipe
from suite.loop.run import Run
from suite.loop.sites import NotAttached
from suite.loop.stack import Stack
from suite.loop.technique import Technique
from suite.measure.at_scale.full_size import noted_state
from suite.meters.state import parameter_count
from suite.meters.tensors import TensorBytes
from techniques.parallelism.comm_overlap.technique import CommunicationOverlap
from techniques.parallelism.dp_ddp.technique import DataParallel, one_gradient
from techniques.parallelism.shared.collectives import all_gather_flat, begin_reduce_scatter_mean, reduce_scatter_mean
from techniques.parallelism.zero1.technique import Zero1
from techniques.parallelism.zero2.technique import Zero2
from techniques.parallelism.zero3_fsdp.technique import Zero3
from tests.leaving import leave
from tests.runs import Planted, new_run

STEPS = 3
BUCKET_MB = 1 / 64  # a fortieth of GPT's parameters at nano


@dataclass
class Watch(Planted):
    """Clips nothing, and keeps the first step's gradients."""

    gradients: list[Tensor | None] = field(init=False, default_factory=list)

    def recipe(self, recipe: Recipe) -> Recipe:
        return replace(recipe, gradient_clip=0.0)

    def after_backward(self, run: Run) -> None:
        if run.step == 0:
            shards = [p for group in run.optimizer.param_groups for p in group["params"]]
            self.gradients = [p.grad.clone() if p.grad is not None else None for p in shards]


def trained(mesh, technique: Technique) -> dict[str, Any]:
    watch = Watch()
    run = new_run(
        "gpt", Stack({"parallel": technique, "watch": watch}), size="pico", recipe="classic", steps=10, mesh=mesh
    )
    losses = run.train(STEPS)
    names = [name.removeprefix("module.") for name, _ in run.model.named_parameters()]
    return {
        "losses": torch.tensor(losses),
        "parameters": {name: p.detach().clone() for name, p in zip(names, run.model.parameters(), strict=True)},
        "gradients": watch.gradients,
        "groups": [sum(p.numel() for p in group["params"]) for group in run.optimizer.param_groups],
    }


def hooked(mesh) -> list[Tensor]:
    """Data parallelism written a second time: every gradient is averaged as soon as it is there."""
    run = new_run("gpt", Stack({"parallel": Plain()}), size="pico", recipe="classic", steps=10, mesh=mesh)

    def average(parameter: Tensor) -> None:
        dist.all_reduce(parameter.grad.div_(run.world_size), group=run.group)

    for parameter in run.model.parameters():
        parameter.register_post_accumulate_grad_hook(average)
    batch: Batch = run.next_batch()[0]
    run.backward(run.forward(batch))
    return [p.grad for group in run.default_parameters() for p in group["params"]]


@dataclass
class Plain(Planted):
    """Two ranks that do not talk."""

    def recipe(self, recipe: Recipe) -> Recipe:
        return replace(recipe, world_size=2)

    def parallelize(self, model, mesh):
        return model


@dataclass
class Silent(DataParallel):
    """Its reducer never fires."""

    def parallelize(self, model, mesh):
        replica = super().parallelize(model, mesh)
        replica.require_backward_grad_sync = False
        return replica


def refusal(mesh, technique: Technique) -> str:
    run = new_run("vit", Stack({"parallel": technique}), size="pico", recipe="classic", mesh=mesh)
    try:
        run.train(1)
    except NotAttached as error:
        return str(error)
    return ""


def comparisons(group, rank: int) -> dict[str, bool]:
    def compared(*gradients: Tensor | None) -> bool:
        parameters = [torch.zeros_like(each if each is not None else torch.ones(2)) for each in gradients]
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        return one_gradient(parameters, group)

    return {
        "same": compared(torch.ones(3), None, torch.full((), torch.nan), torch.ones(3).bfloat16()),
        "other": compared(torch.ones(3), torch.full((2, 2), 1.0 + rank)),
        "missing": compared(torch.ones(2) if rank else None),
    }


def peak_bytes_per_parameter(mesh, technique: Technique) -> float:
    """From the gradients being there to the parameters being gathered: when no activation is left. The least of three
    steps: gloo's thread lets a buffer go a moment after it is done with it, on a busy machine a later one."""
    run = new_run("gpt", Stack({"z": technique}), size="nano", recipe="classic", steps=10, mesh=mesh)
    run.train(1)
    peaks = []
    for _ in range(3):
        run.optimizer.zero_grad(set_to_none=True)
        run.backward(run.forward(run.next_batch()[0]))
        with TensorBytes().seed(run.model, run.optimizer) as meter:
            run.apply_gradients()
            run.technique.after_step(run)
        peaks.append(meter.peak_bytes / parameter_count(run.model))
    return min(peaks)


def with_an_unused_parameter(mesh, folder: Path) -> dict[str, Any]:
    """A user's DINOv2: its mask token belongs to another task."""
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "mlp_ratio": 2, "patch_size": 8}
    (folder / "config.json").write_text(json.dumps({"model_type": "dinov2", **sizes}))
    run = new_run(
        "vit", Stack({"parallel": DataParallel()}), size="pico", recipe="classic", model=str(folder), mesh=mesh
    )
    return {"losses": run.train(3), "parameters": [p.detach().clone() for p in run.model.parameters()]}


def counted(mesh, technique: Technique) -> dict[str, Any]:
    """What a rank really holds when a backward pass ends, and sends in a step; bytes, the volume on an ideal ring."""
    run = new_run("gpt", Stack({"z": technique}), size="pico", recipe="classic", steps=4, mesh=mesh)
    run.train(2)
    with noted_state(run) as states:
        counters = run.count_step()
    full = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in run.model.parameters()]
    return {
        "state_bytes": states[-1],
        "communication_bytes": counters.communication_bytes,
        "parameter_count": counters.parameter_count,
        "optimizer_state_bytes": counters.optimizer_state_bytes,
        "values": torch.cat([p.detach().float().flatten() for p in full]),
        "losses": run.train(1),
    }


def resumed(mesh, folder: Path, rank: int, technique: type[Technique] = Zero1, **settings) -> tuple[list, list]:
    def start() -> Run:
        stack = Stack({"z": technique(**settings)})
        return new_run("gpt", stack, size="pico" if settings else "nano", recipe="classic", steps=10, mesh=mesh)

    whole = start()
    whole.train(2)
    whole.save(folder / f"state{rank}")
    losses = whole.train(2)
    again = start()
    again.load(folder / f"state{rank}")
    return losses, again.train(2)


def collectives(group, rank: int) -> dict[str, bool]:
    """By type: whether small and large tensors come out as their definitions say, whole, in pieces and begun early."""
    right = {}
    for kind in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        for size in (0, 2, 10, 2 * 100_003):
            own = torch.randn(size, generator=torch.Generator().manual_seed(rank)).to(kind)
            both = [torch.empty_like(own) for _ in range(2)]
            dist.all_gather(both, own, group=group)
            wide = torch.promote_types(kind, torch.float32)
            expected = ((both[0].to(wide) + both[1].to(wide)) / 2).to(kind).view(2, size // 2)
            shard = reduce_scatter_mean(own, group)
            flat = torch.zeros_like(own)
            flat.view(2, size // 2)[rank] = shard
            all_gather_flat(flat, flat.view(2, size // 2)[rank], group)
            early = begin_reduce_scatter_mean(own, group)()
            same = torch.equal(shard, expected[rank]) and torch.equal(early, shard)
            right[f"{kind} {size}"] = same and torch.equal(flat, expected.flatten())
    return right


COUNTED: dict[str, Technique] = {
    "dp_ddp": DataParallel(),
    "zero1": Zero1(),
    "zero2": Zero2(),
    "zero2:bucket_mb=0.02": Zero2(bucket_mb=0.02),
    "zero3_fsdp": Zero3(),
    "comm_overlap": CommunicationOverlap(),
    "comm_overlap:overlapped=false": CommunicationOverlap(overlapped=False),
    "zero1:mixed_precision=true": Zero1(mixed_precision=True),
    "zero2:mixed_precision=true": Zero2(mixed_precision=True),
    "zero3_fsdp:mixed_precision=true": Zero3(mixed_precision=True),
    "sam+dp_ddp": build("sam+dp_ddp"),
    "esam+dp_ddp": build("esam+dp_ddp"),
}


def main(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    out: dict = {}
    for name, technique in (("ddp", DataParallel()), ("zero", Zero1()), ("zero2", Zero2())):
        out[name] = trained(mesh, technique)
    out["bucketed"] = trained(mesh, Zero1(bucket_mb=BUCKET_MB))
    out["peaks"] = {
        name: peak_bytes_per_parameter(mesh, technique)
        for name, technique in (("ddp", DataParallel()), ("whole", Zero1()), ("bucketed", Zero1(bucket_mb=BUCKET_MB)))
    }
    own = folder / str(rank)
    own.mkdir()
    out["unused"] = with_an_unused_parameter(mesh, own)
    out["silent"] = refusal(mesh, Silent())
    out["comparisons"] = comparisons(mesh.get_group(), rank)
    out["hooked"] = hooked(mesh)
    out["resumed_masters"] = resumed(mesh, folder, rank, Zero2, mixed_precision=True)
    out["counted"] = {name: counted(mesh, each) for name, each in COUNTED.items()}
    out["collectives"] = collectives(mesh.get_group(), rank)
    torch.save(out, folder / f"out{rank}")
    leave()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
