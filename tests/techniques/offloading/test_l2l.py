"""L2L: the reference's trajectory, a peak that does not grow with depth, saved and resumed, and refusals."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from suite.loop.run import Run
from suite.loop.stack import Stack
from suite.loop.technique import Unavailable
from suite.measure.at_scale.full_size import Scale, counted
from suite.measure.contenders.stock import data_of
from suite.meters.holders import Living
from suite.meters.state import parameter_bytes
from suite.model.anatomy import anatomy
from suite.record.job import Setting
from techniques.offloading.l2l.layerwise import NotAChain
from techniques.offloading.l2l.probes import blocks_of
from techniques.offloading.l2l.technique import L2L
from tests.model.further_models import further_run
from tests.runs import Planted, new_run

BASELINES = ("bert", "gpt", "vit", "mae")


def running(technique: L2L | None, baseline: str = "gpt", **setting: str) -> Run:
    return new_run(baseline, technique or "baseline", **{"size": "pico", "recipe": "classic", "steps": 6, **setting})


def same(left: Run, right: Run) -> bool:
    pairs = zip(left.model.parameters(), right.model.parameters(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("baseline", BASELINES)
def test_with_one_micro_batch_the_trajectory_is_the_baselines_to_the_bit(baseline: str) -> None:
    ours, plain = running(L2L(micro_batches=1), baseline), running(None, baseline)
    assert ours.train(3) == plain.train(3)
    if baseline in ("vit", "mae"):  # a tied table sums its two gradients in another order
        assert same(ours, plain)


@pytest.mark.parametrize("baseline", BASELINES)
def test_micro_batches_of_unequal_size_add_up_to_the_batch(baseline: str) -> None:
    ours, plain = running(L2L(micro_batches=3), baseline), running(None, baseline)
    assert ours.train(3) == pytest.approx(plain.train(3), rel=1e-4)


def test_dropout_leaves_out_the_same_values_when_a_layer_runs_again() -> None:
    """The gradient along a direction is the loss's slope along it, with the same dropout."""
    run = running(L2L(micro_batches=2))
    for module in run.model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.3
    batch, run.indices = run.next_batch()
    own, sums = run.technique.member(L2L), {}
    own.host.update = lambda: sums.update(
        {p: state.gradient.host().clone() for p, state in own.host.host.items() if state.gradient}
    )
    state = torch.get_rng_state()
    own.update(run, batch)
    weight = run.anatomy.blocks[0].mlp_linears[0].module.weight
    direction = torch.randn(weight.shape)
    losses = []
    for sign in (1, -1):
        with torch.no_grad():
            weight.add_(direction, alpha=sign * 1e-3)
        torch.set_rng_state(state)
        own.update(run, batch)
        losses.append(run.loss.item())
        with torch.no_grad():
            weight.add_(direction, alpha=-sign * 1e-3)
        if sign == 1:
            first = sums[weight]
    torch.set_rng_state(state)
    own.update(run, batch)
    slope = (losses[0] - losses[1]) / 2e-3
    assert slope == pytest.approx((sums[weight] * direction).sum().item(), rel=0.05)
    assert first.shape == weight.shape


@dataclass
class Deeper(Planted):
    """Makes the model ``times`` as deep."""

    times: int = 1

    def model(self, model: nn.Module, run: Run) -> nn.Module:
        parts = anatomy(model)
        parts.set_blocks([copy.deepcopy(block.module) for _ in range(self.times) for block in parts.blocks])
        return model


def test_the_devices_peak_does_not_grow_with_depth() -> None:
    peaks = []
    for times in (1, 4):
        run = new_run("gpt", Stack({"deeper": Deeper(times), "l2l": L2L()}), size="pico", recipe="classic", steps=6)
        run.train(2)
        peaks.append(run.count_step().peak_tensor_bytes)
    assert max(peaks) <= 1.002 * min(peaks), peaks


def test_without_values_the_device_holds_what_it_does_with_them() -> None:
    setting = Setting(baseline="gpt", size="pico", recipe="classic", steps=6)
    before = Living()
    run = running(L2L())
    run.train(2)
    with before.left_out(*data_of(run)):
        real = run.count_step()
    shapes = counted("l2l", Scale(setting))
    assert shapes.counters is not None, shapes.unavailable
    outside = sum(each.nbytes for name, each in run.model.named_parameters() if not name.startswith(blocks_of(run)))
    assert shapes.parameter_bytes == parameter_bytes(run.model) == outside
    assert shapes.gradient_bytes == shapes.counters.optimizer_state_bytes == 0
    assert shapes.counters.peak_tensor_bytes == real.peak_tensor_bytes
    assert shapes.counters.flops == real.flops


@pytest.mark.parametrize("name", ["t5", "albert"])
def test_blocks_that_are_no_chain_are_refused(name: str) -> None:
    with pytest.raises(NotAChain, match="take zero_infinity_param"):
        further_run(name, L2L())


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="has no 1000 micro-batches"):
        running(L2L(micro_batches=1000))
    with pytest.raises(Unavailable, match="one at a time"):
        running(L2L(), recipe="compiled")
