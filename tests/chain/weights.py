"""Weights for tests: a model's blocks' parameters in a second tier, where their gradients go, too."""

from __future__ import annotations

from torch import Tensor, nn

from suite.chain.tiers import StoredTensor, Tier
from suite.model.anatomy import anatomy
from techniques.offloading.shared.away import Away, Unit, sent_away


class Moved:
    """``units``, by stack, of a model whose blocks' parameters are in ``tier`` from now on."""

    def __init__(self, model: nn.Module, tier: Tier) -> None:
        self.model, self.tier = model, tier
        self.received: dict[int, StoredTensor] = {}
        stacks = [[block.module for block in stack.blocks] for stack in anatomy(model).stacks]
        self.units: list[list[Unit]] = [sent_away(model, blocks, tier, self.receive)[0] for blocks in stacks]

    def receive(self, parameter: Away) -> None:
        if parameter.grad is not None:
            self.received[id(parameter)], parameter.grad = self.tier.store(parameter.grad), None

    def reset(self) -> None:
        """Weights away, gradients gone."""
        for unit in (unit for units in self.units for unit in units):
            unit.free()
        self.gradients()
        self.model.zero_grad()

    def gradients(self) -> dict[str, Tensor]:
        """All gradients, wherever they are."""
        stored = {name: self.received.pop(id(each), None) for name, each in self.model.named_parameters()}
        there = {name: each.grad for name, each in self.model.named_parameters() if each.grad is not None}
        return there | {name: each.take() for name, each in stored.items() if each is not None}

    @property
    def loaded(self) -> int:
        """Parameters on the device or on their way there."""
        homes = [home for units in self.units for unit in units for home in unit.homes]
        return sum(home.here is not None or home.stored.coming for home in homes)
