"""GPipe on two real ranks: against torch's pipeline, and its schedule against the closed forms."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

from suite.loop.data import mixed_seed
from suite.loop.technique import Technique
from suite.pipeline.simulated import bubble_of_a_step
from suite.pipeline.stages import HandedOn, Stages
from suite.pipeline.timetable import check, in_flight
from techniques.parallelism.gpipe.technique import GPipe, fill_and_drain
from tests.runs import new_run
from tests.techniques.parallelism.pipelines import on_ranks, run_of


class OfTorch(nn.Module):
    """A stage as torch's pipelines take one. The second stage's model gets pictures for their shape alone."""

    def __init__(self, model: nn.Module, stages: Stages, stage: int) -> None:
        super().__init__()
        self.model, self.cut, self.stage = model, stages, stage

    def forward(self, given: Tensor) -> Tensor:
        pictures, hidden = (given, None) if self.stage == 0 else (torch.zeros(len(given), 1, 8, 8), given)
        with self.cut.running(self.stage, hidden):
            try:
                return self.model(pictures)
            except HandedOn as handed:
                return handed.hidden


def torchs_gradients(mesh: DeviceMesh) -> dict[str, Tensor]:
    """Those of torch's ScheduleGPipe in the first step, of this rank's stage."""
    technique = GPipe()
    run = run_of("vit", technique, mesh)
    batch, _ = run.data.batch(mixed_seed(run.seed, 2), 0, run.recipe.batch_size)
    stage = PipelineStage(
        OfTorch(run.model, technique.stages, run.rank), run.rank, 2, run.device, group=mesh.get_group()
    )
    schedule = ScheduleGPipe(stage, n_microbatches=4, loss_fn=nn.functional.cross_entropy)
    if run.rank == 0:
        schedule.step(batch["pixel_values"])
    else:
        schedule.step(target=batch["labels"])
    return {name: each.grad for name, each in run.model.named_parameters() if each.grad is not None}


def own_gradients(mesh: DeviceMesh) -> dict[str, Tensor]:
    run = run_of("vit", GPipe(), mesh, clip=0.0)
    run.train(1)
    return {name: each.grad for name, each in run.model.named_parameters() if each.grad is not None}


def body(mesh: DeviceMesh, folder: Path) -> dict[str, Any]:
    return {"torch": torchs_gradients(mesh), "own": own_gradients(mesh)}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return on_ranks(body, tmp_path_factory.mktemp("ranks"))


def test_gradients_are_those_of_torchs_pipeline(ranks):
    for rank in ranks:
        assert rank["own"].keys() == rank["torch"].keys() and len(rank["own"]) > 10
        for name, each in rank["own"].items():
            torch.testing.assert_close(each, rank["torch"][name], rtol=1e-5, atol=1e-7)


@given(st.integers(2, 6), st.integers(1, 9), st.integers(1, 4))
def test_the_bubble_is_the_papers_and_all_micro_batches_are_under_way(stages, micro_batches, backward):
    schedule = fill_and_drain(stages, micro_batches)
    program = schedule.program(2)
    check(program, stages)
    assert bubble_of_a_step(schedule, backward) == Fraction(stages - 1, micro_batches + stages - 1)
    assert [in_flight(ops) for ops in program] == [micro_batches] * stages


def test_bad_settings_say_what_to_do():
    technique: Technique = GPipe(micro_batches=3)
    with pytest.raises(ValueError, match="a batch of 4 does not divide into 3 micro-batches: set micro_batches to"):
        new_run("vit", technique, size="pico", recipe="classic")
