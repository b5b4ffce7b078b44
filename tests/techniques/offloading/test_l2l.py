"""L2L: unequal micro-batches, dropout that runs again, and refusals."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from suite.loop.run import Run
from suite.loop.technique import Unavailable
from techniques.offloading.l2l.layerwise import NotAChain
from techniques.offloading.l2l.technique import L2L
from tests.model.further_models import further_run
from tests.runs import new_run


def running(technique: L2L | None, baseline: str = "gpt", **setting: str) -> Run:
    return new_run(baseline, technique or "baseline", **{"size": "pico", "recipe": "classic", "steps": 6, **setting})


@pytest.mark.parametrize("baseline", ["gpt", "mae"])
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


@pytest.mark.parametrize("name", ["t5", "albert"])
def test_blocks_that_are_no_chain_are_refused(name: str) -> None:
    with pytest.raises(NotAChain, match="take zero_infinity_param"):
        further_run(name, L2L())


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="has no 1000 micro-batches"):
        running(L2L(micro_batches=1000))
    with pytest.raises(Unavailable, match="one at a time"):
        running(L2L(), recipe="compiled")


def test_gradients_of_an_update_that_is_left_out_are_no_part_of_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a loss scale overflows: the host has them, and drops them."""
    runs = [running(L2L(micro_batches=2)), running(None)]
    for run in runs:
        monkeypatch.setattr(run.technique, "after_backward", lambda each: each.step == 0)
        run.train(2)
    ours, plain = (run.model.state_dict() for run in runs)
    for name, weight in plain.items():
        torch.testing.assert_close(ours[name], weight, rtol=0, atol=2e-4, msg=name)
