"""1-bit Adam: who serves which entries, steps of the frozen optimizer, and which steps probes read."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given as generated
from hypothesis import strategies as st

from techniques.communication.onebit_adam.optimizer import FrozenAdam
from techniques.communication.onebit_adam.probes import records
from techniques.communication.onebit_adam.technique import OneBitAdam
from techniques.communication.onebit_adam.two_sided import Layout


@pytest.mark.parametrize(("steps", "recorded"), [(16, [0, 1, 8]), (1000, [0, 1, 149, 500]), (6, [0, 3])])
def test_probes_follow_adamw_from_the_start_and_see_the_warm_up_end_however_long_a_run_is(steps, recorded):
    runs = [SimpleNamespace(step=step, recipe=SimpleNamespace(steps=steps)) for step in range(steps)]
    assert [run.step for run in runs if records(run, OneBitAdam())] == recorded


@generated(st.lists(st.integers(1, 40), min_size=1, max_size=6), st.integers(2, 5))
def test_parts_have_every_entry_once(lengths, ranks):
    layout = Layout(tuple(lengths), ranks)
    assert layout.part % 8 == 0 and layout.padded - sum(lengths) < 8 * ranks
    found = [0] * len(layout.whole)
    for rank in range(ranks):
        pieces = layout.pieces(rank)
        assert sum(count for _, count in pieces) == layout.part
        for number, count in pieces:
            found[number] += count
    assert found == layout.whole and found[: len(lengths)] == lengths


def trained(steps: int, frozen_at: int | None) -> tuple[list[torch.Tensor], FrozenAdam]:
    generator = torch.Generator().manual_seed(0)
    parameters = [torch.nn.Parameter(torch.randn(5, 3, generator=generator)) for _ in range(2)]
    optimizer = FrozenAdam(parameters, lr=0.01, weight_decay=0.1, decay="decoupled", fused=False)
    for step in range(steps):
        if step == frozen_at:
            optimizer.freeze(step)
        for each in parameters:
            each.grad = torch.randn(5, 3, generator=generator)
            each.grad[0] = 0.0
        optimizer.step()
    return parameters, optimizer


def test_frozen_it_steps_along_the_momentum_that_it_is_given():
    parameters, optimizer = trained(3, None)
    optimizer.freeze(3)
    assert optimizer.frozen
    before = [each.detach().double().clone() for each in parameters]
    second = [optimizer.state[each]["second_moment"].clone() for each in parameters]
    for each in parameters:
        optimizer.state[each]["first_moment"].fill_(0.5)
        each.grad = torch.full((5, 3), torch.nan)  # what is there does not matter
    optimizer.step()
    for each, old, v in zip(parameters, before, second, strict=True):
        assert torch.equal(optimizer.state[each]["second_moment"], v)
        direction = 0.5 / (1 - 0.9**4) / ((v.double() / (1 - 0.999**3)).sqrt() + 1e-8)
        direction[0] = 0.0  # these have never had a gradient
        torch.testing.assert_close(
            each.detach().double(), (1 - 0.01 * 0.1) * old - 0.01 * direction, rtol=1e-6, atol=1e-7
        )
