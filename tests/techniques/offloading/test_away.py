"""Parameters that are away: whoever reads gets their values, what is written goes to the tier, nothing stays behind."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode

from suite.chain.tiers import HostTier, TierFull
from suite.meters.state import parameter_bytes
from suite.meters.tensors import TensorBytes
from techniques.offloading.shared.away import Away, Unit, in_their_places, sent_away


@pytest.fixture
def plain() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(11, 6), nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 6))


def away(model: nn.Module) -> tuple[nn.Module, Unit, HostTier]:
    tier, sent = HostTier(), copy.deepcopy(model)
    (unit,), _ = sent_away(sent, [sent], tier)
    return sent, unit, tier


def tokens() -> Tensor:
    return torch.arange(10).view(2, 5)


@pytest.mark.parametrize("loaded", [True, False])
def test_outputs_and_gradients_are_the_plain_models_to_the_bit(plain: nn.Module, loaded: bool) -> None:
    sent, unit, _ = away(plain)
    for _ in range(2):  # the second pass adds to the gradients of the first
        if loaded:
            unit.load()
        output = sent(tokens())
        unit.free()
        assert torch.equal(output, plain(tokens()))
        output.square().sum().backward()
        plain(tokens()).square().sum().backward()
    for ours, theirs in zip(sent.parameters(), plain.parameters(), strict=True):
        assert type(ours) is Away and isinstance(ours, nn.Parameter) and ours.is_leaf
        assert torch.equal(ours.grad, theirs.grad)


@contextmanager
def there(unit: Unit) -> Iterator[None]:
    unit.load()
    yield
    unit.free()


def test_readers_get_the_values_and_what_is_written_goes_to_the_tier(plain: nn.Module) -> None:
    sent, unit, tier = away(plain)
    first, weight = sent[1].weight, plain[1].weight
    assert torch.equal(first, weight) and torch.equal(first.detach().clone(), weight)
    assert torch.equal(first.t()[2:4], weight.t()[2:4]) and type(first.detach().t()) is Away
    assert torch.equal(first.detach().view(torch.uint8), weight.detach().view(torch.uint8))
    copied = copy.deepcopy(sent)
    assert type(copied[1].weight) is nn.Parameter and torch.equal(copied[1].weight, weight)
    saved = sent.state_dict()
    assert all(type(each) is Tensor for each in saved.values())
    with torch.no_grad():
        first.mul_(2)
        first[0].zero_()
        with there(unit):
            first.add_(1)
    expected = weight.detach() * 2
    expected[0] = 0
    assert torch.equal(first, expected + 1)
    sent.load_state_dict(saved)
    assert torch.equal(first, weight)
    assert tier.held_bytes == sum(each.nbytes for each in plain.parameters())


def test_only_who_loads_holds_the_device_copy(plain: nn.Module) -> None:
    """Between forward and backward nothing is there, and in a unit all of it, fetched once."""
    sent, unit, tier = away(plain)
    assert parameter_bytes(sent) == 0
    with there(unit):
        assert parameter_bytes(sent) == tier.held_bytes == tier.bytes_in
        output = sent(tokens())
        assert tier.bytes_in == tier.held_bytes
    assert parameter_bytes(sent) == 0
    meter = TensorBytes().seed(sent)
    with meter:
        output.sum().backward()
    largest = max(each.nbytes for each in plain.parameters())
    assert meter.peak_bytes <= sum(each.nbytes for each in plain.parameters()) + 3 * largest + output.nbytes * 4


def test_without_values_only_shapes_are_away() -> None:
    with FakeTensorMode():
        model = nn.Linear(4, 3)
        tier = HostTier()
        (unit,), places = sent_away(model, [model], tier)
        model(torch.ones(2, 4)).sum().backward()
        with there(unit):
            assert parameter_bytes(model) == tier.held_bytes == 60
    groups = in_their_places([{"params": list(places), "lr": 1.0}], places)
    assert groups[0]["params"] == [model.weight, model.bias] or groups[0]["params"][0] is model.weight


def test_a_shared_parameter_goes_once_and_a_small_tier_refuses() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    tier = HostTier()
    units, places = sent_away(model, list(model), tier)
    assert len(places) == 3 and model[1].weight is model[0].weight and len(units[1].parameters) == 1
    with pytest.raises(TierFull, match="give it"):
        sent_away(nn.Linear(4, 4), [nn.Linear(4, 4)], HostTier(capacity_bytes=70))
