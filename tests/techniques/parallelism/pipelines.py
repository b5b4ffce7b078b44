"""Pipelines on real gloo ranks, which are forked with the libraries loaded, and what they are compared with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from suite.device.ranks import joined
from suite.loop.data import mixed_seed
from suite.loop.recipe import Recipe
from suite.loop.run import Run
from suite.loop.stack import Stack
from suite.loop.technique import Technique
from suite.meters.communication import Communication
from suite.pipeline.delayed import Correction, Delayed
from suite.pipeline.timetable import Delay
from techniques.parallelism.shared.pipelined import Pipelined
from tests.real_ranks import Forked
from tests.runs import Planted, new_run

STEPS = 5
Oracle = Callable[[str, Mapping[str, int]], tuple[list[float], dict[str, Tensor]]]
"""One process's losses and last parameters, of a baseline whose parameters are of these stages."""
SETTING: Mapping[str, Any] = {"size": "pico", "recipe": "classic", "steps": 10}


@dataclass
class Rate(Planted):
    """A rate at which versions of the weights differ by more than roundings, and the clipping norm."""

    clip: float = 0.1  # that matters

    def recipe(self, recipe: Recipe) -> Recipe:
        return replace(recipe, warmup_fraction=0.0, gradient_clip=self.clip)


def on_ranks(body: Callable[[DeviceMesh, Path], dict[str, Any]], folder: Path, ranks: int = 2) -> list[dict[str, Any]]:
    """What a function of a module gives on each rank."""
    with Forked(ranks) as each:
        each.do(_rank, ranks, body, folder)
    return [torch.load(folder / f"out{rank}", weights_only=True) for rank in range(ranks)]


def _rank(rank: int, ranks: int, body: Callable[[DeviceMesh, Path], dict[str, Any]], folder: Path) -> None:

    torch.set_num_threads(1)
    mesh = joined("cpu", rank, ranks, str(folder))
    torch.save(body(mesh, folder), folder / f"out{rank}")
    torch.distributed.destroy_process_group()


def run_of(baseline: str, technique: Technique, mesh: DeviceMesh | None = None, **rate: float) -> Run:
    return new_run(baseline, Stack({"own": technique, "rate": Rate(**rate)}), mesh=mesh, **SETTING)


def trained(mesh: DeviceMesh, technique: Pipelined, baseline: str, oracle: Oracle) -> dict[str, Any]:
    """A pipeline's trajectory beside one process's, which the first rank makes, in the same arithmetic."""
    run = run_of(baseline, technique, mesh)
    with Communication() as communication:
        losses = run.train(STEPS)
    whole = run.technique.evaluated(run.model, run)
    parameters = {name: each.detach() for name, each in whole.named_parameters()}
    found: dict[str, Any] = {
        "losses": losses,
        "sent": communication.bytes_by_collective["send"],
        "counted": technique.mail.sent_bytes,
        "versions": technique.weights.live,
    }
    if run.rank == 0:
        stage_of = {name: technique.stages.owners(name)[0] for name in parameters}
        found["losses_alone"], alone = oracle(baseline, stage_of)
        found["same"] = same(parameters, alone)
        found["apart"] = max((each - alone[name]).abs().max().item() for name, each in parameters.items())
    return found


# one process ----------------------------------------------------------------------------------------------------------


@dataclass
class Accumulating(Planted):
    """The gradient of a batch, micro-batch by micro-batch, in one process."""

    micro_batches: int = 4
    backwards: bool = False

    def update(self, run: Run, batch: dict[str, Tensor]) -> None:
        run.optimizer.zero_grad(set_to_none=True)
        parts = [
            {name: each.chunk(self.micro_batches)[n] for name, each in batch.items()} for n in range(self.micro_batches)
        ]
        losses = [run.forward(part) / self.micro_batches for part in parts]
        run.loss = torch.stack([loss.detach() for loss in losses]).sum()
        for loss in reversed(losses) if self.backwards else losses:
            run.backward(loss)
        run.apply_gradients()


def alone(
    baseline: str, stage_of: Mapping[str, int], technique: Technique | None = None
) -> tuple[list[float], dict[str, Tensor]]:
    """The trajectory of one process."""
    run = run_of(baseline, technique or Planted())
    return run.train(STEPS), {name: each.detach() for name, each in run.model.named_parameters()}


def delayed(
    baseline: str, stage_of: Mapping[str, int], micro_batches: int, delay: Callable[[int, int], Delay]
) -> tuple[list[float], dict[str, Tensor]]:
    """The trajectory of one process with delayed weights."""
    run = run_of(baseline, Planted())
    return delayed_steps(run, stage_of, micro_batches, delay)


def delayed_steps(
    run: Run,
    stage_of: Mapping[str, int],
    micro_batches: int,
    delay: Callable[[int, int], Delay],
    rate: Callable[[int, int], float] | None = None,
    after: Callable[[Mapping[str, Tensor], Mapping[str, Tensor]], None] | None = None,
    correction: Correction | None = None,
) -> tuple[list[float], dict[str, Tensor]]:
    """Steps of a run with delayed weights, whose stages clip by their own norms. ``rate`` of a step and a stage;
    ``after`` sees the parameters before an update and after it."""

    def clip(stage: int, own: Sequence[torch.nn.Parameter]) -> None:
        trained = sorted((each for each in own if each.requires_grad), key=lambda each: each.ndim < 2)
        torch.nn.utils.clip_grad_norm_(trained, run.recipe.gradient_clip)  # matrices first, as optimizers have them

    simulator = Delayed(run.model, stage_of, delay, run.optimizer, correction=correction, before_step=clip)
    losses = []
    for step in range(STEPS):
        for group in run.optimizer.param_groups:
            group["lr"] = rate(step, group["stage"]) if rate else run.recipe.learning_rate_at(step)
        count = run.recipe.batch_size
        batch, _ = run.data.batch(mixed_seed(run.seed, 2), step * count, count)
        parts = [{name: each.chunk(micro_batches)[n] for name, each in batch.items()} for n in range(micro_batches)]
        found = simulator.step([lambda part=part: run.forward(part) for part in parts])  # type: ignore[misc]
        if after is not None:
            after(simulator.history[-2], simulator.history[-1])
        losses.append(sum((torch.tensor(each) / micro_batches for each in found), torch.zeros(())).item())
    return losses, {name: each.detach() for name, each in run.model.named_parameters()}


def same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    """To the bit."""
    return one.keys() == other.keys() and all(torch.equal(each, other[name]) for name, each in one.items())
