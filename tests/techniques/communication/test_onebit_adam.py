"""1-bit Adam: two workers and two servers by hand in float64, and the optimizer before and after it is frozen."""

import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given as generated
from hypothesis import strategies as st

from techniques.communication.onebit_adam.optimizer import FrozenAdam
from techniques.communication.onebit_adam.probes import records
from techniques.communication.onebit_adam.technique import OneBitAdam
from techniques.communication.onebit_adam.two_sided import Layout, signed, signs
from tests.techniques.communication.given import RANKS, SHAPES, STEPS, gradients

LENGTHS = [torch.Size(shape).numel() for shape in SHAPES.values()]


def compressed(x: torch.Tensor, lengths: list[int]) -> torch.Tensor:
    """Each tensor as its sign and its root mean square."""
    sizes = torch.cat([each.square().mean().sqrt().expand(len(each)) for each in x.split(lengths)])
    return torch.where(x >= 0, sizes, -sizes)


def test_means_are_those_of_two_workers_and_two_servers(two_ranks):
    """The vector's halves, padded to whole bytes, have a server each; a tensor may lie across."""
    total = sum(LENGTHS)
    part = 8 * math.ceil(total / 16)
    lengths = [*LENGTHS, *([2 * part - total] if 2 * part > total else [])]
    workers = [torch.zeros(2 * part).double() for _ in range(RANKS)]
    servers = torch.zeros(2, part).double()
    cuts = Layout(tuple(LENGTHS), RANKS)
    for step in range(STEPS):
        sent = torch.zeros(2 * part).double()
        for rank in range(RANKS):
            flat = torch.cat([each.double().flatten() for each in gradients(step, rank).values()])
            wanted = workers[rank] + torch.nn.functional.pad(flat, (0, 2 * part - total))
            message = compressed(wanted, lengths)
            workers[rank] = wanted - message
            sent += message / RANKS
        halves = []
        for rank in range(RANKS):
            wanted = servers[rank] + sent[rank * part : (rank + 1) * part]
            halves.append(compressed(wanted, [count for _, count in cuts.pieces(rank)]))
            servers[rank] = wanted - halves[-1]
        expected = torch.cat(halves)[:total].split(LENGTHS)
        for got, want in zip(two_ranks[0]["onebit_adam"]["means"][step], expected, strict=True):
            torch.testing.assert_close(got.double(), want, rtol=1e-4, atol=1e-5)
    for rank, result in enumerate(two_ranks):
        torch.testing.assert_close(result["onebit_adam"]["errors"]["server"].double(), servers[rank], rtol=0, atol=1e-4)


def test_a_bit_there_and_a_bit_back_and_a_scale_for_each_piece(two_ranks):
    layout = Layout(tuple(LENGTHS), RANKS)
    pieces = [len(layout.pieces(rank)) for rank in range(RANKS)]
    there = max(2 * (4 * pieces[0] + layout.part / 8), 4 * sum(pieces) + layout.padded / 8)
    back = 2 * (4 * max(pieces) + layout.part / 8)
    assert two_ranks[0]["onebit_adam"]["ring_bytes"] == STEPS * (there + back) / 2


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


def test_signs_keep_each_tensors_norm():
    x = torch.randn(40, generator=torch.Generator().manual_seed(0))
    scales, bits = signs(x, [8, 32])
    back = signed(scales, bits, [8, 32])
    assert torch.equal(back.sign(), x.sign()) and len(bits) == 5
    for ours, theirs in zip(back.split([8, 32]), x.split([8, 32]), strict=True):
        torch.testing.assert_close(ours.norm(), theirs.norm())


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


def test_until_it_is_frozen_it_is_adamw():
    ours, _ = trained(4, None)
    generator = torch.Generator().manual_seed(0)
    theirs = [torch.nn.Parameter(torch.randn(5, 3, generator=generator)) for _ in range(2)]
    adamw = torch.optim.AdamW(theirs, lr=0.01, weight_decay=0.1, foreach=False)
    for _ in range(4):
        for each in theirs:
            each.grad = torch.randn(5, 3, generator=generator)
            each.grad[0] = 0.0
        adamw.step()
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-6, atol=1e-7)


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


def test_a_saved_optimizer_stays_frozen():
    _, optimizer = trained(3, 2)
    _, again = trained(1, None)
    again.load_state_dict(optimizer.state_dict())
    assert again.frozen and again.param_groups[0]["frozen_at"] == 2
