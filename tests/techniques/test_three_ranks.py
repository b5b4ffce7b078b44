"""What two ranks cannot tell: every technique of several ranks on three of them, of parts that are not all alike.

With two ranks a 2 stands for their number, and 1 - rank for the others. Here a model of four blocks, three heads and
tensors that do not divide by three trains by plain gradient descent, without clipping: an optimizer that scales each
weight by its own gradients, and clipping, would hide a sum in the place of a mean.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.optim import SGD, Optimizer

from suite.device.ranks import wait_at_most
from suite.entries.catalogue import catalogue
from suite.entries.spelling import build
from suite.loop.recipe import Recipe
from suite.loop.run import Run
from suite.loop.stack import Stack
from suite.loop.technique import ParameterGroups
from suite.pipeline.delayed import Delayed
from suite.pipeline.timetable import Delay
from techniques.parallelism.pipemare.technique import ahead
from techniques.parallelism.shared.pipelined import Pipelined
from tests.runs import OF_SEVERAL_RANKS, Planted, new_run
from tests.techniques.communication.given import SHAPES, gradients
from tests.techniques.parallelism.pipelines import on_ranks

RANKS, STEPS = 3, 4
BATCH = 12
MODEL = {
    "model_type": "gpt2",
    "n_layer": 4,
    "n_head": 3,
    "n_embd": 15,
    "n_positions": 16,
    "vocab_size": 128,
    "tie_word_embeddings": False,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
}
AS_ONE = (
    "dp_ddp",
    "comm_overlap",
    "comm_overlap:overlapped=false",
    "zero1",
    "zero2:bucket_mb=0.01",
    "zero3_fsdp",
    "tp_megatron",
    "mp_naive",
    "gpipe",
    "torchgpipe",
    "pipedream_flush",
    "dp_ddp+albert_sharing",
)
"""Stacks whose update is that of one process; of those of two techniques, with the second."""
REPLICATED = ("dp_ddp", "zero1", "zero2:bucket_mb=0.01", "zero3_fsdp", "tp_megatron")
TIED = (*REPLICATED, "mp_naive", "gpipe", "pipedream_flush")
"""Stacks that are tried with tied embeddings, too; and those of which every rank has all weights, with dropout."""
FORMS: dict[str, dict[str, Any]] = {
    "tied": {"tie_word_embeddings": True},
    "dropped": {"tie_word_embeddings": True, "resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1},
}
OF_FOUR = "chimera:units=1"
"""Which needs an even number of ranks, of which each has two of the stages."""
LATE: dict[str, tuple[int, Callable[[int], Delay]]] = {
    "pipedream": (1, lambda stage: Delay(RANKS - 1 - stage, RANKS - 1 - stage)),
    "pipedream_2bw": (4, lambda stage: Delay(1, 1)),
    "pipemare:reschedule=false,correct=false": (1, lambda stage: Delay(ahead(RANKS, stage), 0)),
}
"""Micro-batches, and the delay of a stage."""
EXCHANGING = {
    "topk_ef": {"ratio": 0.1},
    "onebit_sgd": {},
    "svd_lowrank": {},
    "powersgd": {},
    "qsgd": {"bits": 8},
    "dgc": {"ratio": 1.0, "warmup": 0.0},
    "onebit_adam": {},
}


@dataclass
class Plainly(Planted):
    """Gradient descent at one rate."""

    def recipe(self, recipe: Recipe) -> Recipe:
        return replace(recipe, batch_size=BATCH, gradient_clip=0.0, learning_rate=0.5, schedule="constant")

    def optimizer(self, parameters: ParameterGroups, recipe: Recipe) -> Optimizer:
        return SGD([{**group, "weight_decay": 0.0} for group in parameters], lr=recipe.learning_rate)


def run_on(folder: Path, stack: str | None, mesh: DeviceMesh | None = None) -> Run:
    """With ``stack`` on as many ranks as the mesh has."""
    own = build(stack).techniques if stack else {}
    for each in own.values():
        if mesh is not None and hasattr(each, "ranks"):
            each.ranks = mesh.size()
            each.__post_init__()
    stacked = Stack({"plainly": Plainly(), **own})
    return new_run("gpt", stacked, size="pico", recipe="classic", steps=STEPS, model=str(folder), mesh=mesh)


def trajectory(run: Run) -> dict[str, Any]:
    losses = run.train(STEPS)
    model = run.technique.evaluated(run.model, run)
    values = {name.removeprefix("module."): each.detach() for name, each in model.named_parameters()}
    whole = {name: each.full_tensor() if hasattr(each, "full_tensor") else each for name, each in values.items()}
    return {"losses": losses, "weights": {name: each.clone() for name, each in whole.items()}}


def late(folder: Path, name: str, stage_of: dict[str, int]) -> dict[str, Any]:
    """One process's trajectory with weights as late as on a pipeline's stages."""
    run, (micro_batches, delay) = run_on(folder, None), LATE[name]
    simulator = Delayed(run.model, stage_of, lambda stage, place: delay(stage), run.optimizer)
    losses = []
    for _ in range(STEPS):
        run._set_learning_rate()
        batch, _ = run.next_batch()
        parts = [{key: each.chunk(micro_batches)[n] for key, each in batch.items()} for n in range(micro_batches)]
        found = simulator.step([partial(run.forward, part) for part in parts])
        losses.append(sum(found) / micro_batches)
        run.position, run.step = run.position + BATCH, run.step + 1
    return {"losses": losses, "weights": {name: each.detach() for name, each in run.model.named_parameters()}}


def exchanged(name: str, mesh: DeviceMesh) -> dict[str, Any]:
    """The mean that a technique gives of the first step's gradients, and what it remembers."""
    technique = replace(build(name).techniques[name], ranks=RANKS, **EXCHANGING[name])
    run: Any = SimpleNamespace(group=mesh.get_group(), rank=mesh.get_local_rank(), seed=7, step=0, progress=0.0)
    technique.model(nn.Identity(), run)
    own = gradients(0, run.rank)
    if name == "onebit_adam":
        flat = technique.mean(list(own.values()), run)
        means = {key: each.view(own[key].shape) for key, each in zip(own, flat, strict=True)}
    else:
        means = technique.exchange(own, run)
    return {"means": means, "errors": dict(technique.errors)}


def body(mesh: DeviceMesh, folder: Path) -> dict[str, Any]:
    """All four ranks train, then three of them, while the fourth does the same alone."""
    three = DeviceMesh("cpu", torch.arange(RANKS))
    for each in (mesh, three) if mesh.get_local_rank() < RANKS else (mesh,):
        wait_at_most(each, 30)
    found: dict[str, Any] = {OF_FOUR: trajectory(run_on(folder, OF_FOUR, mesh))}  # first: ranks count their pipelines
    if mesh.get_local_rank() < RANKS:
        for stack in (*AS_ONE, *LATE):
            run = run_on(folder, stack, three)
            found[stack] = trajectory(run)
            (first, *_) = [each for name, each in run.technique.techniques.items() if name != "plainly"]
            if isinstance(first, Pipelined):
                names = found[stack]["weights"]
                found[stack]["stage_of"] = {name: first.stages.owners(name)[0] for name in names}
        found |= {name: exchanged(name, three) for name in EXCHANGING}
        found |= {f"{stack} tied": trajectory(run_on(folder / "tied", stack, three)) for stack in TIED}
        found |= {f"{stack} dropped": trajectory(run_on(folder / "dropped", stack, three)) for stack in REPLICATED}
    else:
        found |= {stack: trajectory(run_on(folder, stack)) for stack in ("", "albert_sharing")}
        found["tied"] = trajectory(run_on(folder / "tied", None))
    return found


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("ranks")
    for form, changes in {"": {}, **FORMS}.items():
        (folder / form).mkdir(exist_ok=True)
        (folder / form / "config.json").write_text(json.dumps(MODEL | changes))
    found = on_ranks(body, folder, RANKS + 1)
    return [*found, {"folder": folder}]


def close(ranks: list[dict[str, Any]], stack: str, expected: dict[str, Any]) -> None:
    """Every rank's weights are the expected ones, and so is the mean of their losses: each may have that of its own
    examples."""
    losses = torch.tensor([rank[stack]["losses"] for rank in ranks]).mean(0)
    assert losses.tolist() == pytest.approx(expected["losses"], rel=2e-5)
    for rank in ranks:
        assert rank[stack]["weights"].keys() == expected["weights"].keys()
        for name, weight in expected["weights"].items():
            torch.testing.assert_close(rank[stack]["weights"][name], weight, rtol=1e-4, atol=2e-5, msg=name)


def test_every_entry_of_several_ranks_is_tried_here():
    tried = {name for stack in (*AS_ONE, *LATE, *EXCHANGING, OF_FOUR) for name in build(stack).techniques}
    assert tried == {name for name, entry in catalogue().items() if entry.card.category in OF_SEVERAL_RANKS}


@pytest.mark.parametrize("stack", [*AS_ONE, OF_FOUR])
def test_the_update_is_one_process_s(ranks, stack):
    close(ranks[: RANKS + (stack == OF_FOUR)], stack, ranks[RANKS][stack.partition("+")[2]])


@pytest.mark.parametrize("stack", TIED)
def test_so_it_is_with_tied_embeddings(ranks, stack):
    close(ranks[:RANKS], f"{stack} tied", ranks[RANKS]["tied"])


@pytest.mark.parametrize("stack", REPLICATED)
def test_with_dropout_all_ranks_have_the_same_weights(ranks, stack):
    """To the bit; other ones than without it."""
    first, *others = (rank[f"{stack} dropped"]["weights"] for rank in ranks[:RANKS])
    for theirs in others:
        assert theirs.keys() == first.keys()
        assert all(torch.equal(weight, theirs[name]) for name, weight in first.items())
    undropped = ranks[0][f"{stack} tied"]["weights"]
    assert any(not torch.allclose(weight, undropped[name], atol=1e-3) for name, weight in first.items())


@pytest.mark.parametrize("stack", LATE)
def test_an_asynchronous_pipeline_is_one_process_with_late_weights(ranks, stack):
    stage_of = ranks[0][stack]["stage_of"]
    assert [sum(name.endswith("ln_1.weight") and stage == s for name, stage in stage_of.items()) for s in range(3)] == [
        2,
        1,
        1,
    ]
    close(ranks[:RANKS], stack, late(ranks[-1]["folder"], stack, stage_of))


def means_of(ranks: list[dict[str, Any]], name: str) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """What all ranks got, float64, and the mean of their gradients."""
    first = ranks[0][name]["means"]
    assert all(torch.equal(rank[name]["means"][key], each) for rank in ranks[:RANKS] for key, each in first.items())
    own = [gradients(0, rank) for rank in range(RANKS)]
    wanted = {key: sum(each[key].double() for each in own) / RANKS for key in SHAPES}
    return {key: each.double() for key, each in first.items()}, wanted


@pytest.mark.parametrize("name", ["topk_ef", "onebit_sgd", "svd_lowrank", "dgc"])
def test_what_is_sent_and_what_is_kept_are_the_gradients_of_three(ranks, name):
    """The mean of what ranks have sent, and that of what they have not: DGC at a ratio of 1 sends all."""
    sent, wanted = means_of(ranks, name)
    for key in SHAPES:
        kept = sum((rank[name]["errors"][key].double() for rank in ranks[:RANKS] if key in rank[name]["errors"]), 0.0)
        torch.testing.assert_close(sent[key] + kept / RANKS, wanted[key], rtol=0, atol=1e-5)


def test_qsgd_s_mean_of_three_is_within_a_level_of_it(ranks):
    means, wanted = means_of(ranks, "qsgd")
    for key in SHAPES:
        norms = [gradients(0, rank)[key].norm().item() for rank in range(RANKS)]
        assert (means[key] - wanted[key]).abs().max() <= sum(norms) / RANKS / 127 * (1 + 1e-5)
        assert sum(norms) / RANKS / 127 < 0.25 * wanted[key].abs().max(), "a sum of another number of ranks is seen"


def test_powersgd_s_mean_of_three_is_its_projection(ranks):
    """P P^T M of the mean M: what is left out of it stands at right angles to it."""
    means, wanted = means_of(ranks, "powersgd")
    for key in ("matrix", "kernel"):
        got, whole = (values[key].flatten(1) for values in (means, wanted))
        assert (got.T @ (whole - got)).abs().max() < 1e-4
        assert got.norm() > 0.1 * whole.norm()
    for key in ("vector", "thin"):
        torch.testing.assert_close(means[key], wanted[key], rtol=0, atol=1e-6)


def test_onebit_adam_s_workers_and_servers_lose_nothing_of_three(ranks):
    """Each server has a third of the vector, padded to whole bytes."""
    means, wanted = means_of(ranks, "onebit_adam")
    flat, whole = (torch.cat([values[key].flatten() for key in SHAPES]) for values in (means, wanted))
    errors = [rank["onebit_adam"]["errors"] for rank in ranks[:RANKS]]
    workers = sum(each["worker"].double() for each in errors) / RANKS
    servers = torch.cat([each["server"].double() for each in errors])
    assert len(servers) > len(whole) and len(whole) % RANKS
    torch.testing.assert_close(flat + (workers + servers)[: len(whole)], whole, rtol=0, atol=1e-5)
