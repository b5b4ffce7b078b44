"""Versions of weights: which are there, what they cost, and that the parameters hold the one that is used."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from suite.pipeline.weight_versions import WeightVersions


def test_an_exchange_brings_back_what_was_there_and_makes_no_copy():
    parameter = nn.Parameter(torch.tensor([1.0, 2.0]))
    weights = WeightVersions([parameter])
    for version in range(3):
        weights.begin_update({version})
        with torch.no_grad():
            parameter.add_(10.0)
        weights.end_update()
    assert weights.live == 2, "those that nobody wants are gone"
    kept = weights.beside[2]
    weights.use(2)
    assert parameter.tolist() == [21.0, 22.0] and weights.live == 2
    weights.use(3)
    assert parameter.tolist() == [31.0, 32.0]
    assert weights.beside[2][0] is kept[0]
    with pytest.raises(KeyError):
        weights.use(0)


def test_an_update_is_of_the_newest_whatever_was_in_place():
    parameter = nn.Parameter(torch.zeros(1))
    weights = WeightVersions([parameter])
    for _ in range(2):
        weights.use(0)
        weights.begin_update({0})
        with torch.no_grad():
            parameter.add_(1.0)
        weights.end_update()
    assert parameter.item() == 2.0 and weights.newest == weights.held == 2


def test_a_backward_pass_uses_what_is_in_place_then():
    """As a pipeline without a stash does; autograd is not told that the parameter was written."""
    weight = nn.Parameter(torch.tensor([3.0]))
    given = torch.tensor([2.0], requires_grad=True)
    weights = WeightVersions([weight])
    output = given * weight
    weights.begin_update({0})
    weight.data.fill_(5.0)
    weights.end_update()
    output.sum().backward()
    assert given.grad.item() == 5.0


def test_a_state_is_restored():
    parameter = nn.Parameter(torch.zeros(2))
    weights = WeightVersions([parameter])
    weights.begin_update({0})
    weights.end_update()
    again = WeightVersions([parameter])
    again.restore(weights.state())
    assert (again.newest, again.held, again.live) == (1, 1, 2)
