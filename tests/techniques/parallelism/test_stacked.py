"""Ranks beside techniques that look at the model: they train as in one process, or a sentence names the conflict."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.optim import SGD, Optimizer

from suite.device.ranks import wait_at_most
from suite.entries.spelling import build
from suite.loop.recipe import Recipe
from suite.loop.run import Run
from suite.loop.stack import Stack
from suite.loop.technique import ParameterGroups, with_auxiliary
from suite.record.job import StackError
from techniques.parallelism.shared.pipelined import Pipelined
from tests.runs import Planted, new_run
from tests.techniques.parallelism.pipelines import on_ranks

STEPS = 3
TRAINS = (
    ("gpipe", "lora"),
    ("pipedream_flush", "bitfit"),
    ("gpipe", "adapter_houlsby"),
    ("gpipe", "adam4bit_rank1"),
    ("gpipe", "albert_sharing"),
    ("gpipe", "rezero"),
    ("pipedream_flush", "ckpt_chen_sqrt"),
    ("chimera", "ckpt_chen_sqrt"),
    ("gpipe", "int8_mixed"),
    ("zero3_fsdp", "albert_sharing"),
    ("dp_ddp", "elsa"),
    ("dp_ddp", "rotor"),
    ("dp_ddp", "vitcod:weight=0"),  # a norm over a rank's own examples else
    ("dp_ddp", "prox_grad_momentum"),
    ("zero1", "dota:bits=16"),
    ("zero2", "vdnn"),
)
REFUSED = {
    "gpipe+dota": "attn.dota_query learns from a loss of its own block",
    "gpipe+saf_mesa": "learns from a copy of the whole model",
    "gpipe+vitcod": "adds up what the autoencoders of all blocks lose",
    "gpipe+prompt_tuning": "all that trains is in other stages than those of rank 1",
    "zero3_fsdp+sam": "acts on the gradients of each rank's own examples",
    "zero3_fsdp+grasp": "computes with whole parameters",
    "tp_megatron+dota": "ranks cannot divide the layers that are left",
    "gpipe+rotor": "a schedule is of all blocks",
    "gpipe+l2l": "each replaces",
    "dp_ddp+int_only": "moves integer weights by the gradients of one process",
    "comm_overlap+zero_offload": "one process's gradients to the host",
    "dp_ddp+zero_infinity_param": "one process's gradients to the host",
    "zero2+l2l": "l2l updates the layers of one process",
}
PARTNER_FIRST = (("elsa:p=8", "gpipe"), ("elsa:p=8", "tp_megatron"), ("rigl", "topk_ef:ratio=1"))
"""What evaluates another model than trains, or looks at gradients, before what ranks do with both."""
CLIPPING = ("gpipe", "pipedream_2bw")  # by one norm; by a stage's, here of two that hold one table
LIMIT = 1e-3
ASCENDING = ("dp_ddp", "zero1", "zero2", "comm_overlap", "comm_overlap:overlapped=false")


@dataclass
class Descent(Planted):
    """SGD in place of Adam, which would hide how large a gradient is."""

    def recipe(self, recipe: Recipe) -> Recipe:
        return replace(recipe, gradient_clip=0.0, learning_rate=0.1, schedule="constant", warmup_fraction=0.0)

    def optimizer(self, parameters: ParameterGroups, recipe: Recipe) -> Optimizer:
        return SGD([{**group, "weight_decay": 0.0} for group in parameters], lr=recipe.learning_rate)


@dataclass
class Beside(Planted):
    """Calls biases and norms auxiliary, and notes the squares of both kinds' gradients as the optimizer gets them, of
    each parameter on the first rank that has it."""

    squares: list[list[float]] = field(default_factory=list)

    def recipe(self, recipe: Recipe) -> Recipe:
        return replace(recipe, gradient_clip=LIMIT)

    def parameters(self, groups: ParameterGroups, run: Run) -> ParameterGroups:
        return with_auxiliary(groups, [each for group in groups for each in group["params"] if each.ndim < 2])

    def wrap_optimizer(self, optimizer: Optimizer, run: Run) -> Optimizer:
        def note(*_: Any) -> None:
            holders = run.technique.member(Pipelined)._holders
            first = [each for name, each in run.model.named_parameters() if holders[name][0] == run.rank]
            sizes = [[each.grad.square().sum().item() for each in first if (each.ndim < 2) == kind] for kind in (0, 1)]
            self.squares.append([sum(each) for each in sizes])

        optimizer.register_step_pre_hook(note)
        return optimizer


def clipped(stack: str, mesh: DeviceMesh) -> Tensor:
    """Those squares [steps, 2]."""
    beside = Beside()
    run_on(stack, mesh, beside).train(STEPS)
    return torch.tensor(beside.squares)


def run_on(stack: str, mesh: DeviceMesh | None, *others: Planted) -> Run:
    stacked = Stack({**build(stack).techniques, **{str(number): each for number, each in enumerate(others)}})
    return new_run("gpt", stacked, size="pico", recipe="classic", steps=6, mesh=mesh)


def losses(run: Run) -> list[float]:
    """Of the steps, and, at the end, of the evaluated model."""
    return [*run.train(STEPS), run.evaluate()["loss"]]


def refusal(stack: str, mesh: DeviceMesh) -> str:
    try:
        run_on(stack, mesh).train(1)
    except StackError as error:
        return str(error)
    return ""


def ascended(stack: str, mesh: DeviceMesh) -> Tensor:
    run = run_on(stack, mesh, Descent())
    run.train(STEPS)
    return torch.cat([each.detach().flatten() for each in run.model.parameters()])


def body(mesh: DeviceMesh, folder: Path) -> dict[str, Any]:
    wait_at_most(mesh, 30)
    return {
        "together": {f"{ranks}+{other}": losses(run_on(f"{ranks}+{other}", mesh)) for ranks, other in TRAINS},
        "reversed": {f"{other}+{ranks}": losses(run_on(f"{other}+{ranks}", mesh)) for other, ranks in PARTNER_FIRST},
        "refused": {stack: refusal(stack, mesh) for stack in REFUSED},
        "ascended": {ranks: ascended(f"{ranks}+sam:rho=0.5", mesh) for ranks in ASCENDING},
        "descended": ascended("dp_ddp", mesh),
        "clipped": {ranks: clipped(ranks, mesh) for ranks in CLIPPING},
    }


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return on_ranks(body, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize(("distributes", "other"), TRAINS)
def test_a_stack_trains_as_its_other_part_does_alone(ranks, distributes, other):
    found = torch.tensor([rank["together"][f"{distributes}+{other}"] for rank in ranks]).mean(0)
    assert found.tolist() == pytest.approx(losses(run_on(other, None)), rel=1e-4)


@pytest.mark.parametrize(("other", "distributes"), PARTNER_FIRST)
def test_whichever_stands_first_others_see_the_model_and_the_gradients_of_all_ranks(ranks, other, distributes):
    found = torch.tensor([rank["reversed"][f"{other}+{distributes}"] for rank in ranks]).mean(0)
    assert found.tolist() == pytest.approx(losses(run_on(other, None)), rel=1e-4)


@pytest.mark.parametrize("stack", REFUSED)
def test_what_cannot_be_is_refused_with_the_conflict_and_not_the_model(ranks, stack):
    for rank in ranks:
        assert REFUSED[stack] in rank["refused"][stack] and "cannot be stacked" in rank["refused"][stack]
        assert "another model" not in rank["refused"][stack]


def test_sam_ascends_by_each_ranks_own_examples_whoever_reduces(ranks):
    first, *others = (ranks[0]["ascended"][each] for each in ASCENDING)
    for other in others:
        torch.testing.assert_close(other, first, rtol=1e-4, atol=1e-6)
    assert (first - ranks[0]["descended"]).abs().max() > 1e-3


@pytest.mark.parametrize("stack", CLIPPING)
def test_stages_clip_auxiliary_parameters_by_a_norm_of_their_own(ranks, stack):
    norms = torch.stack([rank["clipped"][stack] for rank in ranks]).sum(0).sqrt()
    assert len(norms) and norms.flatten().tolist() == pytest.approx([LIMIT] * norms.numel(), rel=1e-3)
