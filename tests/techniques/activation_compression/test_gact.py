"""GACT's sensitivities at their bounds, and that measuring them leaves no trace in the run."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from suite.loop.run import Run
from suite.loop.stack import Stack
from suite.reading.recording import Recording
from suite.record.job import Job, Setting
from techniques.activation_compression.gact import technique
from techniques.activation_compression.gact.technique import GACT, as_it_was, distance, sensitivity
from techniques.activation_compression.shared.saved_tensors import Saved
from tests.runs import new_run


def technique_of(run: Run) -> GACT:
    assert isinstance(run.technique, Stack)
    technique = run.technique.techniques["gact"]
    assert isinstance(technique, GACT)
    return technique


def gradients(*values: float) -> list[Tensor]:
    return [torch.tensor([value]) for value in values]


def test_the_sensitivity_is_the_largest_of_three_distances_and_bounded() -> None:
    assert distance(gradients(1.0, 2.0), gradients(4.0, 6.0)) == 25.0
    assert sensitivity(gradients(0.0), gradients(3.0), gradients(1.0)) == 9.0  # 9, 2 and 8
    assert sensitivity(gradients(0.0), gradients(0.0), gradients(2.0)) == 8.0
    assert sensitivity(gradients(0.0), gradients(1.0), gradients(3.0)) == 18.0
    for spoilt in (math.nan, math.inf, 1e6):
        assert sensitivity(gradients(0.0), gradients(spoilt), gradients(1.0)) == 1e10
        assert sensitivity(gradients(spoilt), gradients(0.0), gradients(1.0)) == 1e10
        assert sensitivity(gradients(0.0), gradients(0.0), gradients(spoilt)) == 1e10


def test_the_variance_is_judged_at_the_parameters_at_which_it_was_predicted() -> None:
    """As the authors' autoprec.py does, by its formula; later it may be larger, and no sensitivity foresaw it."""
    recording = Recording.of(Job(setting=Setting(baseline="vit", size="pico", recipe="classic", steps=4), stack="gact"))
    recording.train(4)
    measuring, later = recording.traces
    for parameter in later.before.parameters.values():
        parameter.mul_(3)
    assert measuring is not later and recording.probes()["gact.variance_ratio"] == pytest.approx(0.193, rel=0.2)


def test_measuring_leaves_no_trace_in_the_step() -> None:
    """The first step's loss and gradients are those of fixed bits, and so is the randomness after it."""
    states, weights = [], []
    for stack in ("gact", "gact:adaptive=false"):
        run = new_run("gpt", stack, size="pico", recipe="classic", steps=4)
        run.train(1)
        states.append((torch.get_rng_state(), run.generator.get_state()))
        weights.append([each.detach().clone() for each in run.model.parameters()])
    assert all(torch.equal(*pair) for pair in zip(*weights, strict=True))
    assert all(torch.equal(*pair) for pair in zip(*states, strict=True))


def test_running_statistics_come_back() -> None:
    run = new_run("vit", "gact", size="pico", recipe="classic", steps=4)
    norm = nn.BatchNorm1d(3)
    run.model.add_module("further", norm)
    with as_it_was(run) as again:
        drawn = torch.rand(3)
        norm(torch.randn(5, 3))
        again()
        assert torch.equal(torch.rand(3), drawn)
    assert torch.equal(norm.running_mean, torch.zeros(3)) and norm.num_batches_tracked == 0


def test_in_a_step_of_several_passes_the_first_measures() -> None:
    run = new_run("vit", "gact+sam", size="pico", recipe="classic", steps=4)
    passes: list[int] = []
    run.model.register_forward_pre_hook(lambda *_: passes.append(1))
    run.train(1)
    assert len(passes) == 2 + 3 * len(technique_of(run).sensitivities)
    run.train(1)
    assert len(passes) == 4 + 3 * len(technique_of(run).sensitivities)


def test_what_a_measuring_pass_recomputes_is_no_tensor_of_the_step() -> None:
    run = new_run("gpt", "gact+rotor", size="pico", recipe="classic", steps=4)
    gact = technique_of(run)
    of_the_step: list[set[str]] = []
    measure = gact.measure

    def noting(*arguments: Any) -> dict[str, float]:
        of_the_step.append({*gact.sizes})
        measured = measure(*arguments)
        of_the_step.append({*gact.sizes})
        return measured

    gact.measure = noting
    run.train(2)
    before, after = of_the_step
    assert before == after == {*gact.sensitivities}


def test_before_anything_is_measured_all_have_the_widest_bits_of_the_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is 4 of 4 and of 7.9, and 8 of what a gradient is exponential in."""
    used: list[tuple[bool, int]] = []
    packed = technique.quantized

    def noted(saved: Saved, bits: int, noise: torch.Generator) -> Any:
        used.append((saved.sensitive, bits))
        return packed(saved, bits, noise)

    monkeypatch.setattr(technique, "quantized", noted)
    monkeypatch.setattr(GACT, "measure", lambda own, *_: dict.fromkeys(own.sizes, 1.0))
    for bits, expected in (("4", 4), ("7.9", 4), ("2.5", 2)):
        used.clear()
        run = new_run("gpt", f"gact:bits={bits}", size="pico", recipe="modern", steps=4)
        run.train(1)
        assert set(used) == {(False, expected), (True, 8)}
