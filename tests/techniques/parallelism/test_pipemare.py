"""PipeMare on two real ranks: one process with delayed forward passes and corrected backward passes, to the bit."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from suite.pipeline.simulated import bubble_in_the_middle
from suite.pipeline.timetable import Delay, check, delays, live_versions
from techniques.parallelism.pipemare.technique import PipeMare, ahead, corrected, drifted, rescheduled, without_stash
from tests.techniques.parallelism.pipelines import Planted, alone, delayed_steps, on_ranks, run_of, trained

TAU = {0: 3.0, 1: 1.0}


def plain(baseline: str, stage_of: Mapping[str, int]) -> tuple[list[float], dict[str, Tensor]]:
    """Without T1 and T2: old weights forward, the newest backward."""
    return _simulated(baseline, stage_of, reschedule=False, correct=False)


def both(baseline: str, stage_of: Mapping[str, int]) -> tuple[list[float], dict[str, Tensor]]:
    return _simulated(baseline, stage_of, reschedule=True, correct=True)


def _simulated(
    baseline: str, stage_of: Mapping[str, int], reschedule: bool, correct: bool
) -> tuple[list[float], dict[str, Tensor]]:
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


def body(mesh: DeviceMesh, folder: Path) -> dict[str, Any]:
    return {
        "plain": trained(mesh, PipeMare(reschedule=False, correct=False), "vit", plain),
        "both": trained(mesh, PipeMare(), "vit", both, folder),
        "tied": trained(mesh, PipeMare(), "gpt", alone),
    }


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return on_ranks(body, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("case", ["plain", "both"])
def test_the_trajectory_is_that_of_one_process_with_delays_to_the_bit(ranks, case):
    first, second = (rank[case] for rank in ranks)
    assert first["losses"] == second["losses"] == first["losses_alone"]
    assert first["same"], first["apart"]


def test_a_resumed_run_goes_on_to_the_bit_though_old_weights_are_gone(ranks):
    before, rest = ranks[0]["both"]["resumed"]
    assert before + rest == ranks[0]["both"]["losses"]
    assert [rank["both"]["versions"] for rank in ranks] == [1, 1]


def test_a_tied_embedding_has_one_rate_and_stays_one(ranks):
    table = "transformer.wte.weight"
    assert torch.equal(ranks[0]["tied"]["held"][table], ranks[1]["tied"]["held"][table])


@given(st.integers(2, 5), st.integers(1, 6))
def test_forward_passes_are_late_by_the_papers_delay_on_average(stages, micro_batches):
    schedule = without_stash(stages, micro_batches)
    steps = 4 * stages
    program = schedule.program(steps)
    check(program, stages)
    for stage, ops in enumerate(program):
        assert live_versions(ops, stage) == 1
        late = {micro: each for micro, each in delays(ops, stage).items() if micro >= 2 * stages * micro_batches}
        assert all(each.backward == 0 for each in late.values())
        assert sum(each.forward for each in late.values()) * micro_batches == ahead(stages, stage) * len(late)
    assert bubble_in_the_middle(schedule, 3 * steps) == 0


def test_the_rate_is_divided_by_the_delay_and_comes_back():
    assert rescheduled(3.0, 0, 10.0) == pytest.approx(1 / 3)
    assert rescheduled(4.0, 5, 10.0) == pytest.approx(1 / 2)
    assert rescheduled(3.0, 10, 10.0) == rescheduled(3.0, 99, 10.0) == 1.0
    assert rescheduled(0.25, 0, 10.0) == 1.0, "a stage that is hardly late is not sped up"


def test_weights_that_drift_evenly_are_corrected_to_those_of_the_forward_pass():
    moved, tau, delta = torch.tensor([0.5, -0.25], dtype=torch.float64), 3.0, torch.zeros(2, dtype=torch.float64)
    for _ in range(200):
        delta = drifted(delta, moved, tau, decay=0.1)
    weight = torch.tensor([10.0, 20.0], dtype=torch.float64)
    torch.testing.assert_close(corrected(weight, delta, tau), weight - tau * moved)


def test_bad_settings_say_what_to_do():
    with pytest.raises(ValueError, match="take the recipe classic"):
        PipeMare().model(torch.nn.Identity(), SimpleNamespace(recipe=SimpleNamespace(precision="bf16")))
