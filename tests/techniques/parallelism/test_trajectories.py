"""Every pipeline on two real ranks against one process: accumulated, in reverse, or with delayed weights."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from suite.pipeline.timetable import Delay
from techniques.parallelism.chimera.technique import Chimera
from techniques.parallelism.gpipe.technique import GPipe
from techniques.parallelism.mp_naive.technique import NaiveModelParallel
from techniques.parallelism.pipedream.technique import PipeDream
from techniques.parallelism.pipedream_2bw.technique import PipeDream2BW
from techniques.parallelism.pipedream_flush.technique import PipeDreamFlush
from techniques.parallelism.pipemare.technique import PipeMare
from techniques.parallelism.shared.pipelined import Pipelined
from techniques.parallelism.torchgpipe.technique import TorchGPipe
from tests.runs import Planted
from tests.techniques.parallelism.pipelines import (
    STEPS,
    Accumulating,
    Oracle,
    alone,
    delayed,
    delayed_steps,
    on_ranks,
    run_of,
    trained,
)

TAU = {0: 3.0, 1: 1.0}
"""How many half steps PipeMare's stages are late."""


def mare(
    baseline: str, stage_of: Mapping[str, int], reschedule: bool, correct: bool
) -> tuple[list[float], dict[str, Tensor]]:
    """Old weights forward, the newest backward, with T1 and T2 where they are asked for."""
    run = run_of(baseline, Planted())
    names = {id(each): name for name, each in run.model.named_parameters()}
    groups = [
        {**group, "params": [each for each in group["params"] if stage_of[names[id(each)]] == stage], "stage": stage}
        for group in run.default_parameters()
        for stage in TAU
    ]
    run.optimizer = torch.optim.AdamW(
        [group for group in groups if group["params"]],
        betas=(run.recipe.beta1, run.recipe.beta2),
        eps=run.recipe.eps,
        foreach=False,
    )
    deltas = {name: torch.zeros_like(each) for name, each in run.model.named_parameters()}

    def correction(name: str, newest: Tensor, stage: int) -> Tensor:
        return newest - TAU[stage] * deltas[name] if correct else newest

    def rate(step: int, stage: int) -> float:
        base = run.recipe.learning_rate_at(step)
        late = TAU[stage] ** -(1 - min(step / (0.25 * run.recipe.steps), 1)) if reschedule else 1.0
        return base * late

    def after(before: Mapping[str, Tensor], now: Mapping[str, Tensor]) -> None:
        for name, delta in deltas.items():
            gamma = 0.1 ** (1 / TAU[stage_of[name]])
            deltas[name] = gamma * delta + (1 - gamma) * (now[name] - before[name])

    def delay(stage: int, place: int) -> Delay:
        return Delay(int(TAU[stage]), 0)

    return delayed_steps(run, stage_of, 1, delay, rate=rate, after=after, correction=correction)


class Case(NamedTuple):
    """A pipeline beside one process; ``versions`` of the weights that its two ranks have at most."""

    technique: Pipelined
    baseline: str
    oracle: Oracle
    versions: tuple[int, int] = (1, 1)


accumulated = partial(alone, technique=Accumulating())
in_reverse = partial(alone, technique=Accumulating(backwards=True))
by_stage = partial(delayed, micro_batches=1, delay=lambda stage, place: Delay(1 - stage, 1 - stage))
by_one = partial(delayed, micro_batches=4, delay=lambda stage, place: Delay(1, 1))
EXACT = {
    "mp_naive": Case(NaiveModelParallel(), "vit", alone),
    "mp_naive-tied": Case(NaiveModelParallel(), "gpt", alone),
    "gpipe": Case(GPipe(), "vit", accumulated),
    "gpipe-kept": Case(GPipe(rematerialize=False), "vit", accumulated),
    "pipedream": Case(PipeDream(), "mae", by_stage, (2, 1)),
    "pipedream_2bw": Case(PipeDream2BW(), "mae", by_one, (2, 2)),
    "pipedream_flush": Case(PipeDreamFlush(), "mae", accumulated),
    "pipemare": Case(PipeMare(), "vit", partial(mare, reschedule=True, correct=True)),
    "pipemare-plain": Case(
        PipeMare(reschedule=False, correct=False), "vit", partial(mare, reschedule=False, correct=False)
    ),
    "torchgpipe": Case(TorchGPipe(), "vit", in_reverse),
    "torchgpipe-never": Case(TorchGPipe(checkpoint="never"), "vit", in_reverse),
}
SUMMED_IN_ANOTHER_ORDER = {
    "gpipe-tied": Case(GPipe(), "gpt", accumulated),
    "chimera": Case(Chimera(), "vit", accumulated),
    "chimera-tied": Case(Chimera(), "gpt", accumulated),
}


def body(mesh: DeviceMesh, folder: Path) -> dict[str, Any]:
    cases = (EXACT | SUMMED_IN_ANOTHER_ORDER).items()
    return {name: trained(mesh, case.technique, case.baseline, case.oracle) for name, case in cases}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return on_ranks(body, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("name", EXACT)
def test_the_trajectory_is_one_processs_to_the_bit(ranks: list[dict[str, Any]], name: str) -> None:
    """Clipping included, whose norm is over both ranks where no stage clips alone."""
    first, second = (rank[name] for rank in ranks)
    assert first["losses"] == second["losses"] == pytest.approx(first["losses_alone"], rel=1e-6)
    assert first["same"], first["apart"]
    assert (first["versions"], second["versions"]) == EXACT[name].versions


@pytest.mark.parametrize("name", SUMMED_IN_ANOTHER_ORDER)
def test_what_is_summed_in_another_order_is_as_near_as_roundings(ranks: list[dict[str, Any]], name: str) -> None:
    first, second = (rank[name] for rank in ranks)
    assert first["losses"] == second["losses"]
    torch.testing.assert_close(first["losses"], first["losses_alone"], rtol=1e-4, atol=1e-4)


def test_a_boundary_costs_the_hidden_states_once_each_way(ranks: list[dict[str, Any]]) -> None:
    """2 b s d numbers for each boundary and step, and one for the loss."""
    batch, tokens, width = 4, 16, 32
    hidden = batch * tokens * width * 4
    first, second = (rank["mp_naive"] for rank in ranks)
    assert first["sent"] == first["counted"] == STEPS * hidden
    assert second["sent"] == second["counted"] == STEPS * (hidden + 4)
