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

from suite.contract.data import Batch
from suite.contract.recipe import Recipe
from suite.contract.run import Run
from suite.contract.sites import NotAttached
from suite.contract.stack import Stack
from suite.contract.technique import Technique
from suite.meters.communication import Communication
from suite.meters.state import parameter_count, state_bytes
from suite.meters.tensors import TensorBytes
from techniques.parallelism.dp_ddp.technique import DataParallel, one_gradient
from techniques.parallelism.zero1.technique import Zero1, reduce_scatter_mean
from tests.runs import Planted, new_run

STEPS = 3
BUCKET_MB = 1 / 64  # a fortieth of GPT's parameters at nano


@dataclass
class Watch(Planted):
    """Fixes the clipping norm and keeps the first step's gradients and every batch's indices."""

    clip: float = 0.0
    gradients: list[Tensor | None] = field(init=False, default_factory=list)
    indices: list[Tensor] = field(init=False, default_factory=list)

    def recipe(self, recipe: Recipe) -> Recipe:
        return replace(recipe, gradient_clip=self.clip)

    def after_backward(self, run: Run) -> None:
        if run.step == 0:
            shards = [p for group in run.optimizer.param_groups for p in group["params"]]
            self.gradients = [p.grad.clone() if p.grad is not None else None for p in shards]
        self.indices.append(run.indices.clone())


def trained(mesh, technique: Technique, baseline: str, clip: float = 0.0) -> tuple[Run, dict]:
    watch = Watch(clip)
    stack = Stack({"parallel": technique, "watch": watch})
    run = new_run(baseline, stack, size="nano", recipe="classic", steps=10, mesh=mesh)
    losses = run.train(STEPS)
    names = [name.removeprefix("module.") for name, _ in run.model.named_parameters()]
    return run, {
        "losses": torch.tensor(losses),
        "parameters": {name: p.detach().clone() for name, p in zip(names, run.model.parameters(), strict=True)},
        "gradients": watch.gradients,
        "indices": watch.indices,
        "state_bytes": state_bytes(run.optimizer),
        "groups": [sum(p.numel() for p in group["params"]) for group in run.optimizer.param_groups],
    }


def communicated(run: Run) -> dict[str, int]:
    with Communication() as communication:
        run.train(1)
    return dict(communication.bytes_by_collective)


def hooked(mesh) -> list[Tensor]:
    """Data parallelism written a second time: every gradient is averaged as soon as it is there."""
    run = new_run("vit", Stack({"parallel": Plain()}), size="nano", recipe="classic", steps=10, mesh=mesh)

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


def resumed(mesh, folder: Path, rank: int) -> tuple[list[float], list[float]]:
    def start() -> Run:
        return new_run("gpt", Stack({"z": Zero1()}), size="nano", recipe="classic", steps=10, mesh=mesh)

    whole = start()
    whole.train(2)
    whole.save(folder / f"state{rank}")
    losses = whole.train(2)
    again = start()
    again.load(folder / f"state{rank}")
    return losses, again.train(2)


def main(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    out: dict = {}
    for baseline in ("vit", "gpt"):
        for name, technique in (("ddp", DataParallel()), ("zero", Zero1())):
            run, out[f"{name}_{baseline}"] = trained(mesh, technique, baseline)
            if baseline == "vit":
                out[f"{name}_bytes"] = communicated(run)
    for name, technique in (("ddp", DataParallel()), ("zero", Zero1())):
        _, out[f"{name}_clipped"] = trained(mesh, technique, "vit", clip=0.1)
    _, out["bucketed"] = trained(mesh, Zero1(bucket_mb=BUCKET_MB), "gpt")
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
    out["resumed"] = resumed(mesh, folder, rank)
    mine = torch.arange(6.0) * (rank + 1)
    out["reduce_scatter"] = reduce_scatter_mean(mine, mesh.get_group())
    torch.save(out, folder / f"out{rank}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
