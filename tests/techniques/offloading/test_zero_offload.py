"""ZeRO-Offload: AdamW's trajectory to the bit, its formula with a delay, and several backward passes."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from suite.chain.tiers import HostTier, TierFull
from suite.loop.run import Run
from techniques.offloading.shared.host_adam import HostAdamW
from techniques.offloading.zero_offload.technique import ZeroOffload
from tests.runs import new_run


def running(technique: ZeroOffload | None, baseline: str = "gpt", recipe: str = "classic") -> Run:
    return new_run(baseline, technique or "baseline", size="pico", recipe=recipe, steps=6)


def same(left: Run, right: Run) -> bool:
    pairs = zip(left.model.parameters(), right.model.parameters(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize(("baseline", "recipe"), [("gpt", "modern"), ("mae", "classic")])
def test_in_float32_the_trajectory_is_the_baselines_to_the_bit(baseline: str, recipe: str) -> None:
    ours, plain = running(ZeroOffload(half=False), baseline, recipe), running(None, baseline, recipe)
    assert ours.train(4) == plain.train(4)
    assert same(ours, plain) and all(each.grad is None for each in ours.model.parameters())


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("delay_after", [None, 0, 2])
def test_update_by_update_the_formula_in_float64_one_update_late_where_it_is_delayed(
    fused: bool, delay_after: int | None
) -> None:
    torch.manual_seed(0)
    parameter = nn.Parameter(torch.randn(40))
    optimizer = HostAdamW([parameter], HostTier(), lr=0.01, weight_decay=0.1, fused=fused, delay_after=delay_after)
    theta = parameter.detach().double()
    m, v, history = torch.zeros_like(theta), torch.zeros_like(theta), [theta.clone()]
    for t in range(1, 7):
        target = torch.randn(40)
        with optimizer.receiving():
            (parameter * target).sum().backward()
        optimizer.step()
        g = target.double()
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        theta = theta - 0.01 * (m / (1 - 0.9**t) / ((v / (1 - 0.999**t)).sqrt() + 1e-8) + 0.1 * theta)
        history.append(theta.clone())
        expected = history[t - 1] if delay_after is not None and t > delay_after else history[t]
        torch.testing.assert_close(parameter.detach().double(), expected, rtol=1e-5, atol=1e-6)


def test_several_backward_passes_add_up_as_on_the_device() -> None:
    torch.manual_seed(1)
    model = nn.Linear(5, 3)
    plain = copy.deepcopy(model)
    ours = HostAdamW(model.parameters(), HostTier(), lr=0.1, max_norm=0.5)
    theirs = torch.optim.AdamW(plain.parameters(), lr=0.1, fused=True)
    batches = [torch.randn(4, 5) for _ in range(3)]
    for _ in range(2):
        ours.zero_grad()
        theirs.zero_grad()
        for batch in batches:
            with ours.receiving():
                model(batch).square().sum().backward()
            plain(batch).square().sum().backward()
        nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
        ours.step()
        theirs.step()
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), plain.parameters(), strict=True))


def test_without_a_gradient_a_parameter_rests() -> None:
    moving, resting = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    optimizer = HostAdamW([moving, resting], HostTier(), lr=0.1, weight_decay=0.5)
    with optimizer.receiving():
        moving.sum().backward()
    optimizer.step()
    assert (moving < 1).all() and (resting == 1).all()


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(TierFull, match="give it"):
        HostAdamW([nn.Parameter(torch.ones(10))], HostTier(capacity_bytes=100))
